"""Letters by what stands for them: words of spelling alphabets, numbers, Braille of several languages, turned letters.

Each yields a stretch of a text, a pattern, and what its matches stand for, as `spelled` does, which begins here where a
text has a sign of them. Pure.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice, pairwise
from typing import Final

Undo = Callable[["re.Match[str]"], str | None]
Spelling = tuple[int, int, re.Pattern[str], Undo]

LATIN: Final = "abcdefghijklmnopqrstuvwxyz"
CYRILLIC: Final = "абвгдеёжзийклмнопрстуфхцчшщъыьэюя"
GREEK: Final = "αβγδεζηθικλμνξοπρστυφχψω"
_WHOLE: Final = re.compile(r".+", re.DOTALL)
_WORDS_FOR_LETTERS: Final = """
alfa alpha bravo charlie delta echo foxtrot golf hotel india juliet juliett kilo lima mike november oscar papa quebec
romeo sierra tango uniform victor whiskey whisky xray yankee zulu
anton berta cäsar caesar dora emil friedrich gustav heinrich ida julius kaufmann ludwig martha nordpol otto paula quelle
richard samuel siegfried theodor ulrich viktor wilhelm xanthippe ypsilon zacharias zeppelin ärger ökonom übermut
aachen berlin chemnitz düsseldorf essen frankfurt goslar hamburg ingelheim jena köln leipzig münchen nürnberg offenbach
potsdam quickborn rostock salzwedel tübingen unna völklingen wuppertal xanten zwickau umlaut
anatole berthe célestin désiré eugène françois gaston henri irma joseph kléber louis marcel nicolas pierre quintal raoul
suzanne thérèse ursule william xavier yvonne zoé
antonio barcelona carmen dolores enrique francia gerona historia inés josé lorenzo madrid navarra ñoño oviedo parís
querido ramón sábado toledo ulises valencia washington xiquena yegua zaragoza
ancona bologna como domodossola empoli firenze genova imola jolly livorno milano napoli otranto padova quarto roma
savona torino udine venezia xeres york zara
adana bolu ceyhan çanakkale denizli edirne fatsa giresun hatay isparta izmir jandarma kars lüleburgaz muş niğde ordu
ödemiş polatlı rize sinop şırnak tokat uşak ünye van yozgat zonguldak
adam barbara celina dorota edward filip grażyna henryk irena jadwiga karol leon łukasz maria natalia olga paweł roman
stanisław tadeusz urszula wacław wanda xantypa zygmunt
baker dog easy fox george item jig king love nan oboe peter queen roger sugar tare uncle
boy david frank henry john lincoln mary nora ocean paul robert sam tom union young zebra
анна антон борис василий григорий галина дмитрий елена ёлка женя жук зинаида зоя иван йот константин леонид михаил
николай ольга павел роман семён семен сергей степан
татьяна тамара ульяна фёдор федор харитон цапля человек шура щука
эхо
юрий яков
άλφα αλφα βήτα γάμμα δέλτα έψιλον ζήτα ήτα θήτα ιώτα γιώτα κάππα κάπα λάμδα λάμβδα μι μυ νι νυ ξι όμικρον πι ρο ρω
σίγμα ταυ ύψιλον φι χι ψι ωμέγα
"""
_LETTER_OF: Final = {word: word[0] for word in _WORDS_FOR_LETTERS.split()} | {
    "γιώτα": "ι", "мягкий": "ь", "твёрдый": "ъ", "твердый": "ъ", "еры": "ы", "игрек": "ы", "краткий": "й",
    "краткое": "й",
    "ray": "", "знак": "",
    "space": " ", "leerzeichen": " ", "пробел": " ", "κενό": " ", "boşluk": " ", "espace": " ",
    "espacio": " ",    "spacja": " ", "espaço": " ", "spazio": " ", "gap": " ", "break": " ",
}  # fmt: skip
_NAMES: Final = frozenset(word.encode() for word, letter in _LETTER_OF.items() if letter.strip())
_NAMES_MIN: Final = 3  # different ones in a text, and such words in a run
_WORD: Final = re.compile(r"[^\W\d_]+")
_WIDE: Final = re.compile(r"[|/\\()\n\[\]]|\s{2}|(?<!\w)-(?=\s)")
_APART_MAX: Final = 8  # code points between two of them
_RUNS_MAX: Final = 16
_SHORT_MAX: Final = 4_096  # code points; longer texts need more of a sign
_NAMES_IN_LONG_MIN: Final = 6
_NAMED_MAX: Final = 8_192  # code points in which runs are looked for, from the first such word on

_TOKEN: Final = r"(?:\d{1,2}|[^\W\d_])"
_GAP: Final = r"[-\s,.;:/|_+]{1,4}"
_NUMBERED: Final = re.compile(rf"[0-9](?<![\w.].)\d?(?:{_GAP}{_TOKEN}(?![^\W_])){{5,}}|"
                              rf"[^\W\d_\x00-\x7f](?<!\w.)(?:{_GAP}{_TOKEN}(?![^\W_])){{6,}}")  # fmt: skip
_FIRST_IS: Final = re.compile(r"(?<!\w)([^\W\d_])\s?(?:=|:|->|→|is|ist)\s?(\d{1,2})(?!\d)")
_BEHIND_IS: Final = re.compile(r"[=:>→st](?:(?<=[=:>→])|(?<=\sis)|(?<=\sist))\s?\d{1,2}(?!\d)")  # a cheap look for it
_PART: Final = re.compile(rf"{_TOKEN}|[^\w]+|_+")
_NUMBERED_MAX: Final = 8

_BRAILLE: Final = re.compile("[\u2800-\u28ff]")
_BRAILLE_OF: Final = (
    dict(zip("⠀⠁⠃⠉⠙⠑⠋⠛⠓⠊⠚⠅⠇⠍⠝⠕⠏⠟⠗⠎⠞⠥⠧⠺⠭⠽⠵⠜⠪⠳⠿⠮⠷⠯⠻⠣⠾⠬⠌", f" {LATIN}aouéeàçñêùio", strict=True)),
    dict(zip("⠀⠁⠃⠺⠛⠙⠑⠡⠚⠵⠊⠯⠅⠇⠍⠝⠕⠏⠗⠎⠞⠥⠋⠓⠉⠟⠱⠭⠷⠮⠾⠪⠳⠫", f" {CYRILLIC}", strict=True)),
    dict(zip("⠀⠁⠃⠛⠙⠑⠵⠜⠹⠊⠅⠇⠍⠝⠭⠕⠏⠗⠎⠞⠽⠋⠓⠯⠚⠥", f" {GREEK}υ", strict=True)),
)

_TURNED_SURE: Final = re.compile("[ɐǝɔƃɟɥᴉɾʞɯɹʇʌʍʎƍɓ∩]")
_TURNED_MIN: Final = 3
_TURNED_AROUND: Final = 60
_TURNED: Final = tuple(
    (dict(pairs), re.compile("|".join(sorted((re.escape(a) for a, _ in pairs), key=len, reverse=True))))
    for pairs in (
        [*zip("ɐǝɔɟƃɓɥᴉıɾʞןɯɹʇʌʍʎpbdqnu!¡∩", "aecfgghiijklmrtvwydqpbuniiu", strict=True)],
        [("ıq", "ы"), *zip("ɐɔʌɓǝʞvʟuʎdqɹƍʁɯεɥʇ", "асвдеклтпурьгбямзчт", strict=True)],
        [*zip("ɐʇʞʍƍ∩dзǝʎyʌuɹɯɥ", "ατκωδυρεελλνπρμη", strict=True)],
    )
)


def spelled_names(text: str, words: set[bytes]) -> Iterator[Spelling]:
    """Runs of words of a spelling alphabet, single letters among them."""
    known = words & _NAMES
    if len(known) < (_NAMES_MIN if len(text) <= _SHORT_MAX else _NAMES_IN_LONG_MIN):
        return
    lower = text.lower()
    if len(lower) != len(text):
        lower = "".join(each.lower()[0] for each in text)
    places = [at for word in known if (at := lower.find(word.decode())) >= 0]
    for start, end, made in islice(_name_runs(lower, max(0, min(places, default=0) - 40)), _RUNS_MAX):
        yield start, end, _WHOLE, _constant(made)


def _name_runs(lower: str, begin: int) -> Iterator[tuple[int, int, str]]:
    run: list[tuple[str, int, int]] = []  # letters and where their words stand
    count = 0
    for found in _WORD.finditer(lower, begin, begin + _NAMED_MAX):
        letter = found[0] if len(found[0]) == 1 else _LETTER_OF.get(found[0])
        if run and (letter is None or found.start() - run[-1][2] > _APART_MAX):
            if count > _NAMES_MIN:
                yield run[0][1], run[-1][2], _joined(lower, run)
            run, count = [], 0
        if letter is not None:
            run.append((letter, *found.span()))
            count += len(found[0]) > 1
    if count > _NAMES_MIN:
        yield run[0][1], run[-1][2], _joined(lower, run)


def _joined(text: str, run: list[tuple[str, int, int]]) -> str:
    pieces = [run[0][0]]
    for (_, _, before), (letter, start, _) in pairwise(run):
        pieces.append(f" {letter}" if _WIDE.search(text, before, start) is not None else letter)
    return "".join(pieces)


def numbered_letters(text: str) -> Iterator[Spelling]:
    """Runs of letters by their numbers in an alphabet, from the number on that the text gives to one of them."""
    if len(text) > _SHORT_MAX and (_BEHIND_IS.search(text) is None or _FIRST_IS.search(text) is None):
        return
    bases = _bases(text)
    for run in islice(_NUMBERED.finditer(text), _NUMBERED_MAX):
        parts = _PART.findall(run[0])
        values = [int(part) for part in parts if part.isdecimal()]
        ((narrow, _),) = Counter(part for part in parts if not part.isalnum()).most_common(1)
        for alphabet, base, step in dict.fromkeys(bases):
            indexes = [(value - base) * step for value in values]
            if min(indexes, default=0) < 0 or max(indexes, default=0) >= len(alphabet):
                continue
            made = "".join(
                alphabet[(int(part) - base) * step] if part.isdecimal()
                else part if part.isalpha()
                else "" if part == narrow
                else " "
                for part in parts
            )  # fmt: skip
            yield *run.span(), _WHOLE, _constant(made)


def _bases(text: str) -> list[tuple[str, int, int]]:
    """Alphabets, the number of their first letter, and whether numbers rise or fall."""
    bases: list[tuple[str, int, int]] = []
    for letter, value in islice(_FIRST_IS.findall(text), _NUMBERED_MAX):
        small = letter.lower()
        for alphabet in (LATIN, CYRILLIC, CYRILLIC.replace("ё", ""), GREEK):
            if (at := alphabet.find(small)) >= 0:
                bases += [(alphabet, int(value) - at, 1), (alphabet, int(value) + at, -1)]
    scripts = [LATIN]
    if not text.isascii():
        scripts += [CYRILLIC, CYRILLIC.replace("ё", ""), GREEK]
    return bases + [(alphabet, base, 1) for alphabet in scripts for base in (0, 1)]


def braille(text: str) -> Iterator[Spelling]:
    """Braille in other alphabets, and its accented letters."""
    spans = [found.start() for found in islice(_BRAILLE.finditer(text), 2_048)]
    for table in _BRAILLE_OF:
        yield max(0, spans[0] - 60), min(len(text), spans[-1] + 60), _BRAILLE, _read_by(table)


def turned(text: str) -> Iterator[Spelling]:
    """Text upside down, which is then read backwards."""
    spans = [found.start() for found in islice(_TURNED_SURE.finditer(text), 2_048)]
    if len(spans) < _TURNED_MIN:
        return
    first, last = max(0, spans[0] - _TURNED_AROUND), min(len(text), spans[-1] + _TURNED_AROUND)
    for table, pattern in _TURNED:
        yield first, last, pattern, _read_by(table)


def _read_by(table: dict[str, str]) -> Undo:
    return lambda found: table.get(found[0])


def _constant(text: str) -> Undo:
    return lambda _: text
