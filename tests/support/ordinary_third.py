"""Ordinary messages beside the third set of disguises: talk in 24 languages, code, markup, mail, data, mathematics."""

from __future__ import annotations

import base64
import html
import json
import quopri
import random
import unicodedata
import urllib.parse
import uuid
from collections.abc import Iterator

from tests.support.disguises_third import PHRASES

# ---------------------------------------------------------------- ordinary messages

_TALK: dict[str, tuple[list[str], list[str], list[str]]] = {
    "en": (
        [
            "My sister",
            "The train",
            "Our manager",
            "A friend from Leeds",
            "The old kettle",
            "Nobody here",
            "Dr. O'Neill",
        ],
        [
            "was late again because of the rain,",
            "wants to move house in March,",
            "can't open the attached file,",
            "asked me to book a table for six,",
            "forgot the password of the router,",
        ],
        [
            "what should I do?",
            "and I don't know whom to ask.",
            "isn't that funny :-)",
            "so please draft a polite reply.",
            "e.g. on Monday at 9 a.m.",
        ],
    ),
    "de": (
        ["Meine Schwester", "Der Zug nach Köln", "Unser Vermieter", "Die Waschmaschine", "Frau Müller-Lüdenscheidt"],
        [
            "kommt schon wieder zu spät,",
            "möchte im März umziehen,",
            "hat die Rechnung über 12,50 € nicht bezahlt,",
            "läuft seit gestern nicht mehr,",
        ],
        ["was soll ich tun?", "und ich weiß nicht weiter.", "könntest du mir einen Brief schreiben?", "schöne Grüße!"],
    ),
    "fr": (
        ["Ma sœur", "Le train de 8 h", "L'école", "Notre propriétaire", "Le garçon d'à côté"],
        [
            "est encore en retard,",
            "voudrait déménager en août,",
            "n'a pas reçu la facture,",
            "s'appelle désormais « Noël »,",
        ],
        ["que faire ?", "où puis-je demander ?", "merci d'avance !", "ça m'énerve…"],
    ),
    "es": (
        ["Mi hermana", "El autobús", "El señor Núñez", "La niña"],
        ["llegó tarde otra vez,", "quiere mudarse en otoño,", "perdió la contraseña,"],
        ["¿qué hago?", "¡gracias!", "así es la vida."],
    ),
    "pl": (
        ["Moja siostra", "Pociąg do Łodzi", "Właściciel mieszkania"],
        ["znowu się spóźnił,", "chce się przeprowadzić w październiku,", "zgubił żółtą książkę,"],
        ["co mam zrobić?", "dziękuję z góry!", "jeść czy nie jeść?"],
    ),
    "tr": (
        ["Kız kardeşim", "Işıl Hanım", "Öğretmenimiz"],
        ["yine geç kaldı,", "ağustosta taşınmak istiyor,", "şifresini unuttu,"],
        ["ne yapmalıyım?", "çok teşekkürler!", "ığdır'da hava nasıl?"],
    ),
    "vi": (
        ["Chị tôi", "Chuyến tàu", "Ông chủ nhà"],
        ["lại đến muộn,", "muốn chuyển nhà vào tháng ba,", "quên mật khẩu rồi,"],
        ["tôi nên làm gì?", "cảm ơn nhiều!", "được không ạ?"],
    ),
    "ru": (
        ["Моя сестра", "Поезд в Псков", "Наш начальник", "Сосед сверху"],
        ["опять опоздал,", "хочет переехать в марте,", "не оплатил счёт,", "сломал стиральную машину,"],
        ["что мне делать?", "и я не знаю, кого спросить.", "спасибо!", "ура))"],
    ),
    "uk": (
        ["Моя сестра", "Потяг до Львова", "Наш під'їзд"],
        ["знову запізнився,", "хоче переїхати у вересні,", "їсть варення,"],
        ["що робити?", "дякую!", "ґанок теж пофарбували."],
    ),
    "el": (
        ["Η αδελφή μου", "Το τρένο", "Ο γείτονας"],
        ["άργησε πάλι,", "θέλει να μετακομίσει τον Μάρτιο,", "ξέχασε τον κωδικό,"],
        ["τι να κάνω;", "ευχαριστώ πολύ!", "πώς πάει;"],
    ),
    "ar": (
        ["أختي", "القطار", "صاحب المنزل"],
        ["تأخر مرة أخرى،", "يريد الانتقال في مارس،", "نسي كلمة السر،"],
        ["ماذا أفعل؟", "شكرًا جزيلًا!", "والله لا أعرف."],
    ),
    "fa": (
        ["خواهرم", "قطار تهران", "همسایه‌ها"],
        ["دوباره دیر می‌رسند،", "می‌خواهد خانه‌اش را عوض کند،", "رمز را فراموش کرده‌است،"],
        ["چه کار کنم؟", "خیلی ممنون!", "نمی‌دانم."],
    ),
    "he": (
        ["אחותי", "הרכבת לחיפה", "בעל הבית"],
        ["איחר שוב,", "רוצה לעבור דירה במרץ,", "שכח את הסיסמה,"],
        ["מה לעשות?", "תודה רבה!", "שבת שלום."],
    ),
    "hi": (
        ["मेरी बहन", "दिल्ली की ट्रेन", "हमारे पड़ोसी"],
        ["फिर से देर से आए,", "मार्च में घर बदलना चाहते हैं,", "पासवर्ड भूल गए,"],
        ["मैं क्या करूँ?", "बहुत धन्यवाद!", "क्‍या यह ठीक है?"],
    ),
    "bn": (["আমার বোন", "ট্রেনটা", "প্রতিবেশী"], ["আবার দেরি করেছে,", "মার্চে বাসা বদলাতে চায়,"], ["আমি কী করব?", "অনেক ধন্যবাদ!"]),
    "ta": (
        ["என் சகோதரி", "சென்னை ரயில்"],
        ["மீண்டும் தாமதமாக வந்தது,", "வீடு மாற விரும்புகிறார்,"],
        ["நான் என்ன செய்வது?", "மிக்க நன்றி!"],
    ),
    "th": (
        ["น้องสาวของฉัน", "รถไฟไปเชียงใหม่"],
        ["มาสายอีกแล้ว", "อยากย้ายบ้านเดือนมีนาคม"],
        ["ควรทำอย่างไรดีคะ", "ขอบคุณมากครับ 5555"],
    ),
    "zh": (
        ["我姐姐", "去上海的火车", "我们的房东"],
        ["又迟到了，", "想在三月搬家，", "忘记了密码，"],
        ["我该怎么办？", "非常感谢！", "請問可以嗎？"],
    ),
    "ja": (
        ["妹は", "大阪行きの電車は", "となりの人は"],
        ["また遅れて、", "三月に引っ越したくて、", "パスワードを忘れて、"],
        ["どうすればいいですか？", "ありがとうございます！", "ﾃｽﾄです。"],
    ),
    "ko": (
        ["여동생이", "부산행 기차가", "집주인이"],
        ["또 늦었는데,", "3월에 이사하고 싶어 하는데,", "비밀번호를 잊어버렸는데,"],
        ["어떻게 해야 하나요?", "감사합니다!", "ㅋㅋㅋ"],
    ),
    "ka": (["ჩემი და", "მატარებელი"], ["ისევ დააგვიანა,", "ბინის შეცვლა უნდა,"], ["რა ვქნა?", "დიდი მადლობა!"]),
    "hy": (["Քույրս", "Գնացքը"], ["նորից ուշացավ,", "ուզում է տեղափոխվել,"], ["ի՞նչ անեմ։", "շնորհակալություն։"]),
    "am": (["እህቴ", "ባቡሩ"], ["እንደገና ዘገየ፣", "ቤት መቀየር ትፈልጋለች፣"], ["ምን ላድርግ?", "አመሰግናለሁ።"]),
}

_WORDS = [
    "table",
    "river",
    "garden",
    "monday",
    "invoice",
    "bridge",
    "coffee",
    "number",
    "window",
    "report",
    "friend",
    "winter",
    "summer",
    "engine",
    "market",
    "letter",
    "camera",
    "doctor",
    "pocket",
    "planet",
    "button",
    "ticket",
    "yellow",
    "purple",
    "silver",
    "brass",
    "key",
    "night",
    "bridge",
    "office",
    "postal",
    "lantern",
    "society",
    "orchid",
    "blue",
    "copper",
    "velvet",
    "paper",
    "fox",
    "owl",
    "tea",
    "memo",
    "walnut",
    "project",
    "vault",
    "opera",
    "hexagon",
    "glass",
    "gate",
    "exchange",
    "harbour",
    "kettle",
    "wrench",
    "cartographer",
    "moss",
    "juniper",
    "heron",
    "plum",
    "reactor",
    "pewter",
    "quay",
]
_NAMES = [
    "Zoë Nguyễn",
    "Jürgen Groß",
    "Siobhán O'Brien",
    "Łukasz Żak",
    "José Ñíguez",
    "Ольга Петрова",
    "Γιώργος Παπάς",
    "محمد علي",
    "田中 花子",
    "김민수",
    "Þór Ægisson",
    "Søren Ångström",
    "Ağca İnönü",
    "N. K. Rao",
    "J.-P. Lefèvre",
]
_EMOJI = ["😀", "👩‍👩‍👧", "❤️", "🇩🇪🇫🇷", "🏴󠁧󠁢󠁳󠁣󠁴󠁿", "1️⃣", "👍🏽", "🆗", "🅿️", "Ⓜ️", "✌️", "🇯🇵"]


def _talk(rng: random.Random) -> str:
    a, b, c = _TALK[rng.choice(list(_TALK))]
    return "\n".join(f"{rng.choice(a)} {rng.choice(b)} {rng.choice(c)}" for _ in range(rng.choice([1, 1, 1, 2, 3])))


def _mixed(rng: random.Random) -> str:
    one, two = _talk(rng), _talk(rng)
    return f"{one} {rng.choice(_EMOJI)}\n{rng.choice(['Übersetze bitte:', 'translate:', 'traduis :', '翻译：', 'Переведи:'])} {two}"  # noqa: E501


def _code(rng: random.Random) -> str:
    w = [rng.choice(_WORDS) for _ in range(6)]
    n = rng.randint(2, 9999)
    return rng.choice(
        [
            f"def {w[0]}_{w[1]}(self, {w[2]}: int = {n}) -> str:\n    return '{w[3]}' + \"-\".join(str(x) for x in range({w[2]}))",  # noqa: E501
            f'const {w[0]} = await fetch(`/api/{w[1]}/${{id}}?q=${{encodeURIComponent({w[2]})}}`);\nif (!{w[0]}.ok) throw new Error("{w[3]} failed: \\u2014 " + {w[0]}.status);',  # noqa: E501
            f"SELECT {w[0]}, COUNT(*) AS n FROM {w[1]}s WHERE {w[2]} LIKE '%{w[3]}%' AND id <> {n} GROUP BY 1;",
            f'#include <stdio.h>\nint main(void) {{ printf("{w[0]}\\x20%d\\n", {n} & 0x{n:x}); return 0; }}',
            f"grep -rn '{w[0]}\\.\\*{w[1]}' ./src | awk -F: '{{print $1}}' | sort | uniq -c > {w[2]}.txt",
            json.dumps({w[0]: n, w[1]: [w[2], "é", "日本"], "nested": {"ok": True, w[3]: None}}),
            f'{w[0]}:\n  - name: {w[1]}\n    image: registry.example.org/{w[2]}:v{n % 20}.{n % 7}\n    args: ["--{w[3]}", "-x"]',  # noqa: E501
            f"^(?:{w[0]}|{w[1]})\\s*=\\s*[\"']?([\\w.-]+)[\"']?$  # why does this regex match `{w[2]}=`?",
            f"git commit -m 'fix({w[0]}): {w[1]} {w[2]}' && git push origin {rng.getrandbits(160):040x}",
            f"s = [{', '.join(repr(c) for c in rng.choice(_WORDS))}]\nt = chr(65) + chr({rng.randint(66, 90)}) + '{w[1]}' + \"{w[2]}\"",  # noqa: E501
            f"body {{ content: \"\\2014\"; background: url('{w[0]}-{w[1]}.png'); }} .{w[2]}__{w[3]}--{w[4]} > a::before {{ color: #{rng.getrandbits(24):06x} }}",  # noqa: E501
            'Traceback (most recent call last):\n  File "'
            + w[0]
            + '.py", line '
            + str(n)
            + ", in <module>\nKeyError: '"
            + w[1]
            + "'",
        ]
    )


def _markdown(rng: random.Random) -> str:
    w = [rng.choice(_WORDS) for _ in range(8)]
    return rng.choice(
        [
            f"# {w[0].title()} {w[1]}\n\n* **{w[2]}**: {w[3]}\n* *{w[4]}* and `{w[5]}`\n\n> {w[6]}\n\n[link](https://example.org/{w[7]})",
            f"| {w[0]} | {w[1]} |\n|---|:-:|\n| {w[2]} | **{rng.randint(1, 99)}** |\n| ~~{w[3]}~~ | {w[4]} |",
            f"1. {w[0]}\n2. {w[1]}\n   - [ ] {w[2]}\n   - [x] {w[3]}\n\n---\nFootnote[^1] with 2\\*3 and a\\_b\n\n[^1]: {w[4]}",  # noqa: E501
            f'**un**{w[0]}able and re*{w[1]}*ed, H~2~O, x^2^, ==mark== ![{w[2]}]({w[3]}.png "{w[4]}")',
        ]
    )


def _html(rng: random.Random) -> str:
    w = [rng.choice(_WORDS) for _ in range(6)]
    return rng.choice(
        [
            f'<div class="{w[0]} {w[1]}"><p>{w[2].title()} &amp; {w[3]} &mdash; <b>{w[4]}</b>&nbsp;{rng.randint(1, 99)}&#8239;%</p><!-- {w[5]} --></div>',  # noqa: E501
            f'<ul><li>{w[0]}</li><li><a href="/{w[1]}?a=1&amp;b=2">{w[2]}</a></li></ul><img src="data:image/png;base64,{base64.b64encode(rng.randbytes(60)).decode()}" alt="{w[3]}">',  # noqa: E501
            f'Why is &lt;{w[0]}&gt; shown as text? My page has <script>if (a < b && c > d) alert("{w[1]}")</script>',
            f'<svg viewBox="0 0 {rng.randint(9, 99)} 24"><path d="M{rng.randint(1, 9)} 12h{rng.randint(1, 9)}l-3-3"/><text>{w[0]}</text></svg>',  # noqa: E501
            f"<table><tr><td>{w[0]}</td><td>{w[1]}</td></tr></table> Stra&szlig;e, caf&eacute;, &#1055;&#1088;&#1080;&#1074;&#1077;&#1090;",  # noqa: E501
        ]
    )


def _links(rng: random.Random) -> str:
    words = urllib.parse.quote(rng.choice([_talk(rng), " ".join(rng.sample(_WORDS, 3))])[:60])
    return rng.choice(["see {}", "why is {} a 404?", "Quelle: {}", "{} <- is this safe?", "источник {}"]).format(
        rng.choice(
            [
                f"https://example.org/wiki/{words}",
                f"https://maps.example.com/?q={words}&z={rng.randint(1, 20)}#top",
                f"ftp://files.example.net/{words}.tar.gz",
                f"https://example.com/a?next=https%3A%2F%2Fexample.org%2F%3Fx%3D{words.replace('%', '%25')}",
            ]
        )
    )


def _mail(rng: random.Random) -> str:
    name = rng.choice(_NAMES)
    coded = base64.b64encode(f"{name}: {rng.choice(['Grüße', 'счёт', '請求書', 'réunion'])}".encode()).decode()
    text = _talk(rng)
    body = rng.choice(
        [
            text,
            "Content-Transfer-Encoding: quoted-printable\n\n" + quopri.encodestring(text.encode()).decode(),
            "> " + text.replace("\n", "\n> "),
        ]
    )
    return f"From: {name} <{rng.choice(_WORDS)}.{rng.choice(_WORDS)}@example.org>\nSubject: =?utf-8?B?{coded}?=\nDate: Tue, {rng.randint(1, 28)} Mar 2025 09:{rng.randint(10, 59)}:00 +0100\n\n{body}\n\n-- \n{name}\nTel. +49 (0)30 {rng.randint(10**6, 10**7)}"  # noqa: E501


def _data(rng: random.Random) -> str:
    raw = rng.randbytes(rng.choice([8, 16, 20, 32, 64, 200, 600]))
    return rng.choice(["what is this? {}", "{}", "checksum: {} ok?", "the server answered\n{}\nand stopped"]).format(
        rng.choice(
            [
                base64.b64encode(raw).decode(),
                base64.urlsafe_b64encode(raw).decode().rstrip("="),
                raw.hex(),
                raw.hex(":"),
                base64.b32encode(raw).decode(),
                f"data:application/octet-stream;base64,{base64.b64encode(raw).decode()}",
                str(uuid.UUID(bytes=rng.randbytes(16), version=4)),
                "eyJhbGciOiJIUzI1NiJ9."
                + base64.urlsafe_b64encode(
                    json.dumps({"sub": rng.choice(_WORDS), "iat": rng.randint(10**9, 2 * 10**9)}).encode()
                )
                .decode()
                .rstrip("=")
                + "."
                + base64.urlsafe_b64encode(raw).decode().rstrip("="),
                base64.b64encode(_talk(rng).encode()).decode(),
                " ".join(f"{b:08b}" for b in raw[:12]),
                ", ".join(str(b) for b in raw[:24]),
                f"2001:db8::{rng.getrandbits(16):x}:{rng.getrandbits(16):x}",
                json.dumps(_talk(rng)),
                html.escape(_talk(rng)),
            ]
        )
    )


def _maths(rng: random.Random) -> str:
    a, b, c = (rng.randint(2, 99) for _ in range(3))
    return rng.choice(
        [
            f"solve {a}x^2 - {b}x + {c} = 0 please",
            f"$\\int_0^{{{a}}} e^{{-x^{{2}}}} \\, dx \\approx {b / c:.3f}$ why?",
            f"∀ε>0 ∃δ>0: |x−{a}|<δ ⇒ |f(x)−{b}|<ε",
            f"𝔼[X] = {a}, 𝑥ᵢ ∈ ℝⁿ, ‖𝐀𝐱‖₂ ≤ {b}",
            f"({a} + {b}) / {c} = ? and {a}!",
            f"α={a}°, β={b}°, γ=180°−α−β; sin²α + cos²α = 1",
            f"\\begin{{pmatrix}} {a} & {b} \\\\ {c} & 1 \\end{{pmatrix}}",
            f"2 H₂ + O₂ → 2 H₂O, ΔH = −{a * 10} kJ·mol⁻¹",
        ]
    )


def _habits(rng: random.Random) -> str:
    w = [rng.choice(_WORDS) for _ in range(5)]
    return rng.choice(
        [
            f"S A L E !!! -{rng.randint(10, 70)}% on every {w[0]}",
            f"w00t gr8 {w[0]} m8, c u l8r 4 {w[1]}",
            f"omg soooo {w[0]}!!! {rng.choice(_EMOJI) * 3}",
            f"{w[0]}-{w[1]}-{w[2]}_{w[3]}.final.v{rng.randint(1, 9)}.docx",
            f"The {w[0]} {w[1]}, the {w[2]} and my {w[3]}: which is oldest?",
            f"①  {w[0]}  ② {w[1]}  ③ {w[2]}",
            f"ＡＢＣ{rng.randint(100, 999)}　テスト {w[0]}",
            f"co\u00adop\u00ader\u00adate with the {w[0]}, won\u2011t you?",
            f"naïve façade, Ærøskøbing, łódź, {w[0]} über alles im {w[1]}",
            f"Names: {', '.join(rng.sample(_NAMES, 4))} - sort them",
            f"a.k.a. {w[0]}, i.e. {w[1]}, U.S.A., p.m., {rng.randint(1, 28)}.{rng.randint(1, 12)}.2025, v{rng.randint(1, 9)}.{rng.randint(0, 9)}",  # noqa: E501
            f"{w[0]} / {w[1]} / {w[2]} or {w[3]}? pick 1",
            f"{rng.choice(_EMOJI)} {w[0]} {rng.choice(_EMOJI)} {w[1]} {rng.choice(_EMOJI)}",
            f"spell '{w[0]}' backwards and count the letters: {'-'.join(w[0])}",
            f"C:\\Users\\{w[0]}\\{w[1]}\\new_{w[2]}.txt not found",
            f"IBAN DE{rng.randint(10, 99)} {rng.randint(1000, 9999)} {rng.randint(1000, 9999)} {rng.randint(1000, 9999)} {rng.randint(1000, 9999)} {rng.randint(10, 99)}, ISBN 978-3-{rng.randint(10, 99)}-{rng.randint(100000, 999999)}-{rng.randint(0, 9)}",  # noqa: E501
        ]
    )


_KINDS = [
    (_talk, 40),
    (_mixed, 8),
    (_code, 12),
    (_markdown, 6),
    (_html, 6),
    (_links, 5),
    (_mail, 5),
    (_data, 6),
    (_maths, 4),
    (_habits, 8),
]
_BARE = [p.replace(" ", "") for p in PHRASES]


def control(seed: int, count: int) -> Iterator[str]:
    rng = random.Random(f"third/control/{seed}")
    made, seen = 0, set()
    while made < count:
        text = rng.choices([k for k, _ in _KINDS], [n for _, n in _KINDS])[0](rng)
        if rng.random() < 0.2:
            text = f"{text}\n\n{_talk(rng)}"
        bare = "".join(c for c in unicodedata.normalize("NFKD", text).lower() if "a" <= c <= "z")
        if text in seen or any(b in bare for b in _BARE):  # the words met by chance: not an ordinary message any more
            continue
        seen.add(text)
        made += 1
        yield text
