"""What letters each character may stand for: one character may be read as several.

`normalize` chooses one plain form for each character, which a stream needs. Here all of them count: of the confusables
of UTS #39, of Unicode's names ("LATIN SMALL LETTER O WITH STROKE"), of upside-down letters, and of the alphabets that
generators of fancy text make of other scripts' letters and of currency signs. Pure.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from typing import Final

from inference.moderation.normalize import lookalikes_of, plain_form
from sessions.turn.keyword_filter import fold

LATIN: Final = "abcdefghijklmnopqrstuvwxyz"
_BLOCKS: Final = ((0x80, 0x2FFF), (0xA640, 0xABFF), (0xFB00, 0xFFFF), (0x10780, 0x107BF), (0x1D400, 0x1D7FF))
_MORE_BLOCKS: Final = ((0x1DF00, 0x1DFFF), (0x1F100, 0x1F1FF))
_NAME: Final = re.compile(
    r"(?:LATIN|MODIFIER|SUBSCRIPT|SUPERSCRIPT|PHONETIC|FULLWIDTH|MATHEMATICAL|SQUARED|CIRCLED|NEGATIVE|PARENTHESIZED|REGIONAL)"
    r"\b[A-Z -]*?\b(?:LETTER|CAPITAL|SMALL)(?: (?:SMALL|CAPITAL|TURNED|REVERSED|INVERTED|SIDEWAYS|ROTATED|DOTLESS"
    r"|SCRIPT|OPEN|INSULAR|CLOSED|STRETCHED|BLACKLETTER|BROKEN|HALF|TOP|BOTTOM|VOLAPUK|TAILLESS))* ([A-Z])(?: WITH .*)?"
)
_ALPHABETS: Final = (  # of generators of fancy text, and upside down
    "卂乃匚ᗪ乇千Ꮆ卄丨ﾌҜㄥ爪几ㄖ卩Ɋ尺丂ㄒㄩᐯ山乂ㄚ乙",
    "卂乃匚刀乇下厶卄工丁长乚从𠘨口尸㔿尺丂丅凵リ山乂丫乙",
    "ﾑ乃ᄃりモｷムんﾉﾌズﾚﾶ刀のｱゐ尺丂ｲひ√wﾒﾘ乙",
    "₳฿₵ĐɆ₣₲ⱧłJ₭Ⱡ₥₦Ø₱QⱤ₴₮ɄV₩ӾɎⱫ",
    "ДБCDЄFGHIJКLMИФPQЯSTЦVЩЖЧZ",
    "дъсᴅёғԍнїјкʟмпорԛгѕтцѵшхуз",
    "ᗩᗷᑕᗪᗴᖴǤᕼᎥᒎᛕᒪᗰᑎᗝᑭɊᖇᔕ丅ᑌᐯᗯ᙭Ƴ乙",
    "ᗩᗷᑢᕲᘿᖴᘜᕼᓰᒚᖽᒪᘻᘉᓍᕵᕴᖇSᖶᑘᐺᘺ᙭ᖻᗱ",
    "ąცƈɖɛʄɠɧıʝƙƖɱŋơ℘զཞʂɬų۷ῳҳყʑ",
    "αв¢∂єƒgнιנкℓмησρqяѕтυνωχуz",
    "ค๒ς๔єŦﻮђเןкl๓ภ๏קợгรtยשฬאץz",
    "ǟɮƈɖɛʄɢɦɨʝӄʟʍռօքզʀֆȶʊʋաӼʏʐ",
    "åß¢Ðêƒghïjklmñðþqrštµvwx¥ž",
    "ɐqɔpǝɟƃɥᴉɾʞlɯuodbɹsʇnʌʍxʎz",
    "∀ꓭƆꓷƎℲ⅁HIſꓘ⅂WNOԀΌꓤSꓕꓵΛMX⅄Z",
)
_FURTHER: Final = {
    "®": "r",
    "©": "c",
    "℗": "p",
    "¡": "i",
    "§": "s",
    "¶": "p",
    "†": "t",
    "‡": "t",
    "ᑫ": "q",
    "Ɋ": "q",
    "ᗷ": "b",
    "ᒍ": "j",
}
_MORE: Final = {  # each letter as those of Greek, Coptic, Cherokee and others: by their looks or their sound
    "a": "αλⲁꭺ∂", "b": "βϐⲃꮟᏼꮾв", "c": "ϲςсⲥꮯꮳ", "d": "δⲇꭰꮷԁ", "e": "εеⲉꭼꮛєξэ", "f": "φƒϝⲫғ", "g": "γɡⲅꮐᏻꮆ",
    "h": "ηһнⲏꮒꮋ",
    "i": "ιіⲓꭵꮖ", "j": "јϳꭻι", "k": "κкⲕꮶ", "l": "λιⲗꮮӏ", "m": "μмⲙꮇ", "n": "ηνпиⲛꮑπ", "o": "οоσⲟꭳꮻθω", "p": "ρрπⲣꮲ",
    "q": "ԛϙⲫθ", "r": "ρгяⲣꭱꮢ", "s": "ςσѕⲥꮪꮥϛ", "t": "τтⲧꭲꮖ", "u": "υцμⲩʋꮜ", "v": "νѵυⲛꮩ",
    "w": "ωшщⲱꮃꮤѡψ", "x": "χхξⲭ",
    "y": "γυуⲩꭹꮍψ", "z": "ζⲍꮓ",
}  # fmt: skip
PLAIN_SIGNS: Final = frozenset(f"{LATIN}0123456789|!@$()<>[]{{}}/\\^#&+`€£")
_CUNEIFORM: Final = 0x12000
_BETWEEN: Final = frozenset({"Po", "Pd", "Ps", "Pe", "Pi", "Pf", "Sk"})
UPSIDE_DOWN: Final = str.maketrans("pdnubq", "dpunqb")  # letters that are others upside down


class _Signs(dict[int, str | None]):
    """For `str.translate`: each letter and each sign that may be one as one character, and nothing of all else.

    A character that may be several letters becomes the sign of these letters (`several`); white space and what cannot
    be a letter is dropped, as are marks and what is not seen.
    """

    def __missing__(self, code: int) -> str | None:
        kept = self[code] = _sign_of(fold(chr(code)))
        return kept


def _sign_of(character: str) -> str | None:
    if character in PLAIN_SIGNS:
        return character
    plain = plain_form(character)
    lower = fold(plain)
    if not plain or unicodedata.category(character) in _BETWEEN or character.isspace():
        return None  # what stands between letters, whatever letter it looks like
    targets = set(letter_forms()[1].get(character, ""))
    if len(lower) == 1 and lower.isascii() and lower.isalnum():
        targets.add(lower)
    if len(targets) > 1:
        return several()["".join(sorted(targets))]
    return targets.pop() if targets else lower if len(lower) == 1 and lower.isalnum() else None


@cache
def several() -> dict[str, str]:
    """A sign for each choice of letters that a character leaves: of cuneiform, which nobody is read by."""
    choices = {"".join(sorted({*those, *_plain_letter(each)})) for each, those in letter_forms()[1].items()}
    return {letters: chr(_CUNEIFORM + index) for index, letters in enumerate(sorted(choices))}


def _plain_letter(character: str) -> str:
    lower = fold(plain_form(character))
    return lower if len(lower) == 1 and lower.isascii() and lower.isalnum() else ""


SIGNS: Final = _Signs()


@cache
def letter_forms() -> tuple[dict[str, str], dict[str, str]]:
    """The folded characters that may be read as each letter, and the letters of each such character."""
    letters: dict[str, set[str]] = {}
    for character, target in lookalikes_of():
        letters.setdefault(character, set()).add(target)
    for first, last in (*_BLOCKS, *_MORE_BLOCKS):
        for character in map(chr, range(first, last + 1)):
            named = _NAME.fullmatch(unicodedata.name(character, ""))
            plain = plain_form(character)
            letters.setdefault(character, set()).update((named[1] if named else "", plain if len(plain) == 1 else ""))
    for character, letter in _FURTHER.items():
        letters.setdefault(character, set()).add(letter)
    for letter, characters in _MORE.items():
        for character in characters:
            letters.setdefault(character, set()).add(letter)
    for alphabet in _ALPHABETS:
        for character, letter in zip(alphabet, LATIN, strict=True):
            letters.setdefault(character, set()).add(letter)
    forms: dict[str, set[str]] = {letter: set() for letter in LATIN}
    readings: dict[str, str] = {}
    for character, targets in letters.items():
        folded = fold(character)
        if folded.isascii():
            continue
        for target in {fold(each) for each in targets}:
            if len(target) == 1 and target in forms and folded not in forms[target]:
                forms[target].add(folded)
                readings[folded] = readings.get(folded, "") + target
    return {letter: "".join(sorted(those)) for letter, those in forms.items()}, readings
