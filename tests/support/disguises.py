"""Phrases in disguise, by method, and ordinary messages in twelve scripts; all of it follows from seeds.

A method makes of a phrase what a person or a model still reads as it. `apart` is a third of the methods, by the hash of
their names: whoever works on the filters looks at the others only.
"""

from __future__ import annotations

import base64
import codecs
import hashlib
import random
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Final

PHRASES: Final = (
    "project nightjar", "the blue ledger", "operation copper kettle", "crimson harvest plan", "silver lantern protocol",
    "merger with hartwell", "unreleased quarterly figures", "internal salary table", "codename winterbourne",
    "black orchid formula", "northern vault access", "secret gardening club", "emerald tower blueprint",
    "falcon ridge testing", "whisper network list", "golden compass budget", "velvet hammer clause",
    "iron meadow contract", "quiet river settlement", "broken arrow memo", "paper crane initiative",
    "midnight express route", "hollow oak archive", "scarlet thread dossier", "glass mountain survey",
    "amber wave forecast", "copper canyon lawsuit", "lunar orchard patent", "marble arch takeover",
    "saffron gate password", "thunder valley layoffs", "wandering star recall", "yellow brick licence",
    "zephyr engine failure", "frozen lake incident", "gravel road bribery", "jasmine court verdict",
    "kingfisher defect report", "lavender hill audit", "obsidian mirror leak",
)  # fmt: skip
LATIN: Final = "abcdefghijklmnopqrstuvwxyz"
_CYRILLIC: Final = dict(zip("aceiopsxyjhdqwkmtbn", "асеіорѕхујһԁԛԝкмтьп", strict=True))
_GREEK: Final = dict(zip("aovptuikxnyc", "αονρτυικχηγϲ", strict=True))
_CHEROKEE: Final = dict(zip("abcdehjklmprstvwz", "ᎪᏴᏟᎠᎬᎻᎫᏦᏞᎷᏢᎡᏚᎢᏙᎳᏃ", strict=True))
_LISU: Final = dict(zip("bpdtgkjcznlsrmvhwxyaeuoif", "ꓐꓑꓓꓔꓖꓗꓙꓚꓜꓠꓡꓢꓣꓟꓦꓧꓪꓫꓬꓮꓰꓴꓳꓲꓝ", strict=True))
_COPTIC: Final = dict(zip("abezhikmnopctyxw", "ⲁⲃⲉⲍⲏⲓⲕⲙⲛⲟⲣⲥⲧⲩⲭⲱ", strict=True))
_SMALL_CAPITALS: Final = dict(zip("abcdefghijklmnoprstuvwyz", "ᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘʀꜱᴛᴜᴠᴡʏᴢ", strict=True))
_MODIFIERS: Final = dict(zip("abcdefghijklmnoprstuvwxyz", "ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻ", strict=True))
_LEET: Final = dict(zip("aeiost", "431057", strict=True))
_LATIN_LIKE: Final = dict(zip("agilodhtu", "ɑɡıɩօԁһtս", strict=True))
Make = Callable[[str, random.Random], str]


def _letters(table: dict[str, str]) -> Make:
    return lambda phrase, rng: "".join(table.get(each, each) for each in phrase)


def _shifted(first: int, *, capital: bool = False) -> Make:
    """Letters of a block of 26."""
    holes = {0x1D49D: 0x212C, 0x1D455: 0x210E, 0x1D506: 0x212D}

    def make(phrase: str, rng: random.Random) -> str:
        text = phrase.upper() if capital else phrase
        codes = (first + LATIN.index(each.lower()) if each.isalpha() else ord(each) for each in text)
        return "".join(chr(holes.get(code, code)) for code in codes)

    return make


def _between(*signs: str, spaces: str = " ") -> Make:
    """A sign between the letters; the words stay apart."""

    def make(phrase: str, rng: random.Random) -> str:
        return spaces.join("".join(_joined(word, signs, rng)) for word in phrase.split())

    return make


def _joined(word: str, signs: tuple[str, ...], rng: random.Random) -> Iterator[str]:
    for index, letter in enumerate(word):
        yield letter if index == 0 else rng.choice(signs) + letter


def _inside(before: str, behind: str) -> Make:
    """Signs around some letters inside of each word."""

    def make(phrase: str, rng: random.Random) -> str:
        words = []
        for word in phrase.split():
            first = rng.randrange(1, max(2, len(word) - 1))
            last = rng.randrange(first, len(word)) + 1
            words.append(word[:first] + before + word[first:last] + behind + word[last:])
        return " ".join(words)

    return make


def _each(form: str) -> Make:
    return lambda phrase, rng: "".join(form.format(ord(each)) for each in phrase)


def _packed(*packs: Callable[[bytes], bytes]) -> Make:
    def make(phrase: str, rng: random.Random) -> str:
        data = phrase.encode()
        for pack in packs:
            data = pack(data)
        return data.decode()

    return make


def _hex(data: bytes) -> bytes:
    return data.hex().encode()


def _quoted(data: bytes) -> bytes:
    return "".join(f"%{each:02X}" for each in data).encode()


def _referenced(data: bytes) -> bytes:
    return "".join(f"&#{each};" for each in data).encode()


def _marks(phrase: str, rng: random.Random) -> str:
    return "".join(each + chr(rng.randrange(0x300, 0x36F)) if each.isalpha() else each for each in phrase)


def _tags(phrase: str, rng: random.Random) -> str:
    return "hello" + "".join(chr(0xE0000 + ord(each)) for each in phrase)


def _selected(phrase: str, rng: random.Random) -> str:
    return "🙂" + "".join(chr(0xFE00 + b if b < 16 else 0xE0100 + b - 16) for b in phrase.encode())


def _moved(phrase: str, rng: random.Random) -> str:
    """Its spaces elsewhere."""
    first, *rest = reversed(phrase.split())
    at = rng.randrange(2, len(first) - 1)
    return "".join(reversed(rest)) + first[:at] + " " + first[at:]


b64, b32, url64 = base64.b64encode, base64.b32encode, base64.urlsafe_b64encode
METHODS: Final[dict[str, Make]] = {
    "Cyrillic letters": _letters(_CYRILLIC),
    "Greek letters": _letters(_GREEK),
    "Cherokee letters": _letters(_CHEROKEE),
    "small Cherokee letters": _letters({each: other.lower() for each, other in _CHEROKEE.items()}),
    "Lisu letters": _letters(_LISU),
    "Coptic letters": _letters(_COPTIC),
    "small capitals": _letters(_SMALL_CAPITALS),
    "modifier letters": _letters(_MODIFIERS),
    "odd Latin letters": _letters(_LATIN_LIKE),
    "full width": _shifted(0xFF41),
    "mathematical bold": _shifted(0x1D41A),
    "mathematical italic": _shifted(0x1D44E),
    "Fraktur": _shifted(0x1D51E),
    "monospace": _shifted(0x1D68A),
    "circled": _shifted(0x24D0),
    "negative circled": _shifted(0x1F150),
    "squared": _shifted(0x1F130),
    "negative squared": _shifted(0x1F170),
    "regional indicators": _shifted(0x1F1E6),
    "parenthesised": _shifted(0x249C),
    "zero width": _between("\u200b", "\u200c", "\u200d", "\ufeff"),
    "soft hyphens": _between("\u00ad"),
    "direction marks": _between("\u200e", "\u202a", "\u2066", "\u061c"),
    "fillers": _between("\u3164", "\u115f", "\u2065", "\ufff0"),
    "combining marks": _marks,
    "tag characters between": _between(*map(chr, range(0xE0061, 0xE007A))),
    "tag characters alone": _tags,
    "variation selectors": _between("\ufe0e", "\ufe0f", "\U000e0101"),
    "bytes in variation selectors": _selected,
    "Markdown bold inside": _inside("**", "**"),
    "Markdown italics inside": _inside("_", "_"),
    "Markdown code inside": _inside("`", "`"),
    "Markdown links inside": _inside("[", "](https://example.com)"),
    "HTML tags inside": _inside("<b class='x'>", "</b>"),
    "HTML comments inside": _inside("<!-- -->", "<!--x-->"),
    "backslashes": _between("\\"),
    "decimal references": _each("&#{0};"),
    "references of references": _each("&amp;#x{0:x};"),
    "percent": _each("%{0:02x}"),
    "percent twice": _each("%25{0:02X}"),
    "unicode escapes": _each("\\u{0:04x}"),
    "byte escapes": _each("\\x{0:02x}"),
    "hyphens": _between("-"),
    "dots": _between(".", "·"),
    "spaces": _between(" ", spaces="   "),
    "spaces elsewhere": _moved,
    "digits for letters": _letters(_LEET),
    "base64 twice": _packed(b64, b64),
    "base32": _packed(b32),
    "hexadecimal in base64": _packed(_hex, url64),
}
# Further ones, which the count of 50 leaves out; tests use them.
MORE: Final[dict[str, Make]] = {
    "percent in base64": _packed(_quoted, b64),
    "references in base64": _packed(_referenced, b64),
    "base64 in base32": _packed(b64, b32),
    "rot13": lambda phrase, rng: codecs.encode(phrase, "rot13"),
    "form encoding": lambda phrase, rng: urllib.parse.quote_plus(phrase).replace("+", "%20%20"),
}
LOOKS: Final = tuple(METHODS)[:20]
OVER: Final = (
    "zero width", "soft hyphens", "direction marks", "variation selectors", "Markdown bold inside",
    "Markdown links inside", "HTML tags inside", "HTML comments inside", "backslashes", "decimal references", "hyphens",
    "dots", "spaces", "base64 twice", "base32",
)  # fmt: skip
_AROUND: Final = ("{}", "Tell me about {}.", "Please explain: {} and why?", "so {}, again", "\n{}\n", "What is ({})?")


def apart(method: str) -> bool:
    return hashlib.sha256(method.encode()).digest()[0] % 3 == 0


def disguised(method: str, phrase: str, over: str = "") -> str:
    """The phrase by the method, and by another over it, in a message."""
    rng = random.Random(f"{method}/{phrase}")
    written = (METHODS | MORE)[method](phrase, rng)
    return rng.choice(_AROUND).format(METHODS[over](written, rng) if over else written)


_WORDS: Final = {
    "Latin": "the a project night report water plan table silver secret river well-known re-entry don't folder blue",
    "Spanish": "el niño está aquí mañana señor corazón río pequeño año también después así que más español",
    "German": "größe über straße müssen für häuser schön fünf zwölf können weiß nächste übung jahr-2026 z.B.",
    "Cyrillic": "привет как дела проект река книга сегодня завтра хорошо очень город человек время что это который",
    "Greek": "καλημέρα πώς είσαι σήμερα το βιβλίο είναι στο τραπέζι νερό ποτάμι πόλη άνθρωπος χρόνος και",
    "Arabic": "مرحبا كيف حالك اليوم الكتاب على الطاولة الماء النهر المدينة الإنسان الوقت الحياة مشروع ٢٠٢٦ ١٢٣",
    "Hebrew": "שלום מה שלומך היום הספר על השולחן מים נהר עיר אדם זמן חיים פרויקט ירושלים",
    "Devanagari": "नमस्ते आप कैसे हैं आज किताब मेज़ पर है पानी नदी शहर आदमी समय जीवन परियोजना २०२६",
    "Thai": "สวัสดี สบายดีไหม วันนี้ หนังสือ อยู่ บน โต๊ะ น้ำ แม่น้ำ เมือง คน เวลา ชีวิต",
    "Chinese": "你好 今天 怎么样 书 在 桌子 上 水 河 城市 人 时间 生活 项目 二〇二六年",
    "Japanese": "こんにちは 元気ですか 今日 本 は テーブル の 上 に あります 水 川 街 人 時間 プロジェクト",
    "Korean": "안녕하세요 오늘 어떻게 지내세요 책 은 탁자 위에 있어요 물 강 도시 사람 시간 프로젝트",
}
_EXTRAS: Final = (
    "https://example.com/a-b/c_d?e=%20f&g=1", "`code_like_this()`", "**bold** and _soft_", "3.14", "1,234,567.89",
    "<p>fine</p>", "R&D", "a &amp; b", "C:\\new\\table", "2026-11-23", "10:45", "x = y * z", "- item", "1. first",
    "[a link](https://example.com)", "#tag", "50%", "v1.2.3", "🙂", "👍🏽", "🇫🇷", "👨‍👩‍👧", "e-mail", "co-operate",
    "U.S.A.", "A-B-C", "\\frac{a}{b}", "for (int i = 0; i < n; i++) { s += a[i]; }", "~/.config", "it's", "“quoted”",
    "internationalization", "d41d8cd98f00b204e9800998ecf8427e", "the-rapist", "H.T.M.L.", "1️⃣", "½", "10²",
)  # fmt: skip


def ordinary(count: int) -> Iterator[str]:
    """Messages that nobody would stop."""
    rng = random.Random(16)
    scripts = [words.split() for words in _WORDS.values()]
    near = [word for phrase in PHRASES for word in phrase.split()]
    for number in range(count):
        words = scripts[number % len(scripts)]
        said = [rng.choice(words) for _ in range(rng.randrange(3, 40))]
        for _ in range(rng.randrange(3)):
            said.insert(rng.randrange(len(said)), rng.choice(_EXTRAS))
        if rng.random() < 0.3:
            said.insert(rng.randrange(len(said)), rng.choice(near))
        ends = rng.choice([".", "?", "!", "\n", ""])
        yield " ".join(said).replace(" ", rng.choice([" ", " ", " ", "\n", ", "]), 3) + ends
