"""Other readings of a whole text: as it looks once markup, escapes and what nobody sees are undone.

`readings_of` yields the text as it is, and only where something in it may hide words also: with Unicode tag characters
and variation selectors as what they spell; with HTML, Markdown, backslashes, character references, percent and `\\u`
encodings undone, up to `DEPTH` deep. Each reading leads back to the places in the text as it came. Pure; does not know
what is looked for, nor the characters' forms (`normalize`).
"""

from __future__ import annotations

import binascii
import html
import re
import unicodedata
from base64 import b64decode
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from inference.moderation.disguise.assembled import joined, put_together
from inference.moderation.disguise.spelled import spellings

DEPTH: Final = 3
_TAGS: Final = re.compile("[\U000e0020-\U000e007e]")
_SELECTORS: Final = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]{4,}")  # as bytes of a hidden text
# Whatever has none of these is as plain as it looks.
_SIGNS: Final = ("<", "&", "\\", "%", "*", "~", "`", "\x1b", "\x08")
_CLASSES: Final = tuple(
    f"[{one}{two}" for small in "aeiou" for one, two in ((small, small.upper()), (small.upper(), small))
)
_LONGER_SIGNS: Final = {  # by a code point that is in each of them
    "_": ("__",), "]": ("](", "] (", "][", "] ["), "+": ("U+", "u+"), "=": ("==", "=\n", "=\r"),
    "[": ("[/", "[^", "[[", *(f"[{digit}" for digit in range(10)), *_CLASSES),
    "$": ("${", "$@", "$*", "$(", "$I"),
}  # fmt: skip
_BESIDE: Final = re.compile(  # the same, of several letters
    r"[{}+=](?:(?<=\w\{)|(?<=\})(?=\w)|(?<=\+)[A-Z][A-Za-z0-9+/]{2}|(?<==)[0-9A-F]{2})"
)
_EDGE: Final = re.compile(r"_(?!\w)|(?<!\w)_")
_AROUND: Final = 300  # code points on either side of what may hide something: more than a phrase has
_HEX4: Final = "[0-9a-fA-F]{4}"
_UNITS: Final = re.compile(
    rf"""
    (?=[<&%\\\x1b!\[\]*~`_uU=+{{}}$"']|.\x08)(?:
    .\x08 | (?P<either>\[(?P<same>[A-Za-z])(?!(?P=same))(?i:(?P=same))\])
  | (?P<hidden>\[\^?\d{{1,3}}\] | \[\[(?:[^\[\]|]{{1,80}}\|)? | \]\](?!>) | <!--.{{0,2000}}?-->
      | <[!?/]?[A-Za-z](?:[^<>"']|"[^"]{{0,300}}"|'[^']{{0,300}}'){{0,500}}+>
      | <[!?/]?[A-Za-z][^<>]{{0,500}}> | <!\[CDATA\[ | \]\]> | \x1b\[[0-9;]{{0,32}}m
      | \[/?(?:[biusq]|size|color|colour|font|url|quote|code|center|spoiler)(?:=[^\[\]\n]{{0,100}})?\](?![(\[]))
  | (?P<reference>&(?:\#0{{0,16}}\d{{1,7}} | \#[xX]0{{0,16}}[0-9a-fA-F]{{1,6}} | [A-Za-z][A-Za-z0-9]{{1,31}});?)
  | (?P<percent>(?:%[0-9a-fA-F]{{2}})+)
  | (?P<percent_units>(?:%u{_HEX4})+)
  | (?P<quoted>(?:=[0-9A-F]{{2}})+ | =[ \t]{{0,9}}\r?\n)
  | \+(?P<utf7>[A-Za-z][A-Za-z0-9+/]{{2,2000}})-?
  | \\N\{{(?P<called>[A-Z][A-Z0-9 -]{{1,80}})\}}
  | \\(?P<css>0[0-9a-fA-F]{{5}} | 0{{1,3}}[0-9a-fA-F]{{2}}(?![0-9a-fA-F])
      | [2-7][0-9a-fA-F](?=[ ]))[ ]?
  | (?P<setting>\\(?:text|math|operatorname|emph|mbox|hbox|underline)[a-z]{{0,10}}\s?(?=\{{)
      | \\[,;:!](?=\s?\S) | [{{}}])
  | (?P<bytes>(?:\\{{1,8}}x[0-9a-fA-F]{{2}})+ | (?:\\{{1,8}}[0-3][0-7]{{2}})+)
  | (?P<units>(?:\\{{1,8}}u{_HEX4})+)
  | \\{{1,8}}[ux]\{{(?P<braced>[0-9a-fA-F]{{1,6}})\}} | \\{{1,8}}U(?P<long>[0-9a-fA-F]{{8}})
  | [uU]\+(?P<named>[0-9a-fA-F]{{4,6}})[ ]?
  | (?P<backslash>\\+(?=\S) | \\(?=[ ]) | \\[ \t]{{0,4}}\r?\n)
  | (?P<link>!?\[(?=[^\[\]]{{0,300}}\](?:\(|\[)) | \]\s?\[[^\[\]\n]{{0,100}}\]
      | \]\s?\([^()\n]{{0,500}}(?:\([^()\n]{{0,100}}\)[^()\n]{{0,300}})?\))
  | (?P<join>["']\s{{0,4}}[+.&]\s{{0,4}}["'] | ["'][ ]?["'])
  | (?P<empty>\$(?:[@*](?=\S)|\(\s?\)|\{{(?:IFS|[@*!\#?-])\}}|IFS\b))
  | (?P<mark>\$(?=[\\{{]) | (?<=[}},])\$ | [*~`]+ | ==+ | __+ | _(?!\w) | (?<!\w)_)
    )""",
    re.VERBOSE | re.DOTALL,
)
_FIRST: Final = re.compile(r"[\x08<&%\\\x1b!\[\]*~`_=+{}$\"']")  # of a unit; the letter of `U+` stands before
_BLOCKS: Final = re.compile(r"</?(?:br|p|div|li|ul|ol|td|th|tr|table|h[1-6]|hr|pre|blockquote)\b", re.IGNORECASE)
_UNSHOWN: Final = re.compile(  # an element with its content
    r"<([A-Za-z][A-Za-z0-9]{0,15})\b[^<>]{0,300}?(?:display\s*:\s*none|visibility\s*:\s*hidden|\shidden\b|font-size\s*:\s*0"
    r"|opacity\s*:\s*0|aria-hidden)[^<>]{0,300}>[^<>]{0,300}</\1\s*>"
    r"|<(style|script|template|title|noscript|datalist|rp|rt|del|s|strike)\b[^<>]{0,300}>[^<>]{0,300}</\2\s*>"
    r"|~~[^~\n]{1,80}~~|<!--.{0,300}?-->|/\*.{0,300}?\*/|\{\s?display:none[^{}]{0,80}\}",
    re.IGNORECASE | re.DOTALL,
)
_JOINED: Final = re.compile(r"""(["'])(?:\s{0,4}[+.&]\s{0,4}|\s{1,4}|)(["'])|(?<=\w)\s{0,4}\+\s{0,4}(?=["'])|[$"']""")
_JOINS: Final = tuple((quote, re.compile(rf"""{quote}(?:\s{{0,4}}[+.&]\s{{0,4}}| ?)["']""")) for quote in "\"'")
_UNSHOWN_SIGNS: Final = (
    "<!--", "/*", "~~", "display", "visibility", "hidden", "font-size", "opacity", "<style", "<script", "<template",
    "<title", "<noscript", "<datalist", "<rp", "<rt", "<del", "<s>", "<strike",
)  # fmt: skip
_LINE_ESCAPE: Final = re.compile(r"(?<!\\)\\(?:[nrtfv]|s[*+?]?|[ \t]{0,4}\r?\n)")
_CALLS: Final = ("chr(", "Chr", "CHR", "char", "Char", "CHAR")
_CALL: Final = re.compile(r"(?i:ch(?:a)?rw?)[\](]{1,2}\s?((?:0[xX][0-9a-fA-F]{2,4}|[1-9]\d{1,4})(?![\w,]))\)?")
_JOINTS: Final = ("", " ")
ASSEMBLED_MAX: Final = 4_096  # code points of what strings are put together
TWICE_MAX: Final = 2_048  # code points of a text in which what was undone is also looked at as spelled out
APART: Final = " ;.;.;.;.      "  # nothing that is looked for lies over it
_ESCAPE_AND_SPACE: Final = re.compile(r"(?<=\\0[0-9a-fA-F]{5}) ")
_Undo = Callable[["re.Match[str]"], str | None]


class Reading(NamedTuple):
    """A text, and where each of its code points begins and ends in the text as it came, where that is known."""

    text: str
    starts: list[int] | None = None
    ends: list[int] | None = None

    def part(self, first: int, last: int) -> Reading:
        if self.starts is None or self.ends is None:
            return Reading(self.text[first:last])
        return Reading(self.text[first:last], self.starts[first:last], self.ends[first:last])

    def span(self, first: int, last: int) -> tuple[int, int]:
        """Where what stands at [first, last) of it lies: pieces may stand in another order."""
        assert self.starts is not None and self.ends is not None
        if first >= last:
            place = self.starts[first] if first < len(self.starts) else self.ends[-1] if self.ends else 0
            return place, place
        return min(self.starts[first:last]), max(self.ends[first:last])


def readings_of(text: str, *, placed: bool = False) -> Iterator[Reading]:
    """The text as it is, and its other readings; their places are known where they are `placed`, which costs more."""
    plain = Reading(text, list(range(len(text))), list(range(1, len(text) + 1))) if placed else Reading(text)
    yield plain
    if not text.isascii():
        hidden: list[Reading] = []
        if _TAGS.search(text):
            hidden.append(_substituted(plain, _TAGS, lambda found: chr(ord(found[0]) - 0xE0000)))
        if _SELECTORS.search(text):
            hidden.append(_substituted(plain, _SELECTORS, _spelled))
        for reading in hidden:
            yield reading
            if (undone := _undone_to_the_end(reading)).text != reading.text:
                yield undone
    yield from _assembled(plain)
    yield from _spelled_out(plain)
    if _is_suspect(text):
        for first, last in _windows(text):
            for reading in _undone(plain.part(first, last)):
                yield reading
                if len(text) <= TWICE_MAX or any(map(text[first:last].__contains__, "&%\\")):
                    yield from _assembled(reading)
                    yield from _spelled_out(reading)


def _assembled(reading: Reading) -> Iterator[Reading]:
    """What strings and names are put together, all in one text, apart from each other."""
    if any(map(reading.text.__contains__, _CALLS)):
        reading = _substituted(reading, _CALL, lambda found: f"'{chr(int(found[1], 0))}'")
    texts: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    seen: set[str] = set()
    room = ASSEMBLED_MAX
    for pieces in joined(reading.text):
        for joint in _JOINTS:
            text, places = put_together(pieces, joint)
            if not text.strip() or text in seen or len(text) > room:
                continue
            seen.add(text)
            room -= len(text) + len(APART)
            texts.append(text + APART)
            if reading.starts is not None and reading.ends is not None:
                places += places[-1:] * len(APART)
                starts += [reading.starts[first] for first, _ in places]
                ends += [reading.ends[last - 1] for _, last in places]
    if texts:
        made = Reading("".join(texts), *((starts, ends) if reading.starts is not None else ()))
        yield made
        if (undone := _undone_to_the_end(made)).text != made.text:
            yield undone


def _spelled_out(reading: Reading) -> Iterator[Reading]:
    for first, last, pattern, undo in spellings(reading.text):
        part = reading.part(first, last)
        made = _substituted(part, pattern, undo)
        if made.text != part.text:
            yield made


def _is_suspect(text: str) -> bool:
    if any(map(text.__contains__, _SIGNS)) or ("_" in text and _EDGE.search(text) is not None):
        return True
    for sign, longer in _LONGER_SIGNS.items():
        if sign in text and any(map(text.__contains__, longer)):
            return True
    return (any(map(text.__contains__, "{}+=")) and _BESIDE.search(text) is not None) or _is_joined(text)


def _is_joined(text: str) -> bool:
    """Whether text in quotes is put together."""
    return any(quote in text and join.search(text) is not None for quote, join in _JOINS)


def _windows(text: str) -> Iterator[tuple[int, int]]:
    """What stands around whatever can be undone, from space to space."""
    first = last = -1
    for found in _units(text):
        begin, end = max(0, found.start() - _AROUND), found.end() + _AROUND
        begin = max(0, text.rfind(" ", max(0, begin - _AROUND), begin))
        if begin > last:
            if first >= 0:
                yield first, last
            first = begin
        last = max(last, end if (space := text.find(" ", end, end + _AROUND)) < 0 else space)
    if first >= 0:
        yield first, last


def _units(text: str) -> Iterator[re.Match[str]]:
    """`_UNITS.finditer`, tried only where one may begin."""
    behind = 0
    for sign in _FIRST.finditer(text):
        at = sign.start()
        if at > behind and (text[at] == "\x08" or (text[at] == "+" and text[at - 1] in "uU")):
            at -= 1
        if at >= behind and (found := _UNITS.match(text, at)) is not None:
            yield found
            behind = found.end()


def _undone(reading: Reading) -> Iterator[Reading]:
    if _LINE_ESCAPE.search(reading.text):  # a backslash before a letter may be either
        yield _undone_to_the_end(_substituted(reading, _LINE_ESCAPE, lambda _: " "))
    # The space belongs to the escape, or to the words.
    if "\\0" in reading.text and _ESCAPE_AND_SPACE.search(reading.text):
        yield _undone_to_the_end(_substituted(reading, _ESCAPE_AND_SPACE, lambda _: "  "))
    if any(map(reading.text.lower().__contains__, _UNSHOWN_SIGNS)) and _UNSHOWN.search(reading.text):
        yield _undone_to_the_end(_substituted(reading, _UNSHOWN, lambda _: ""))
    if _is_joined(reading.text):
        yield _undone_to_the_end(_substituted(reading, _JOINED, lambda found: "" if found[0] != "$" else None))
    undone = _undone_to_the_end(reading)
    if undone.text != reading.text:
        yield undone


def _undone_to_the_end(reading: Reading) -> Reading:
    for _ in range(DEPTH):
        if not _is_suspect(reading.text):
            break
        undone = _substituted(reading, _UNITS, _undo)
        if undone.text == reading.text:
            break
        reading = undone
    return reading


def _substituted(reading: Reading, pattern: re.Pattern[str], undo: _Undo) -> Reading:
    """A reading of a reading: each match replaced by what `undo` makes of it (None: left as it is)."""
    text, old_starts, old_ends = reading
    pieces: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    at = 0
    for found in _units(text) if pattern is _UNITS else pattern.finditer(text):
        new, (first, last) = undo(found), found.span()
        if new is None or first == last:
            continue
        pieces += (text[at:first], new)
        if old_starts is not None and old_ends is not None:
            starts += old_starts[at:first]
            ends += old_ends[at:first]
            starts += [old_starts[first]] * len(new)
            ends += [old_ends[last - 1]] * len(new)
        at = last
    made = "".join((*pieces, text[at:]))
    if old_starts is None or old_ends is None:
        return Reading(made)
    return Reading(made, starts + old_starts[at:], ends + old_ends[at:])


def _undo(found: re.Match[str]) -> str | None:
    unit = found[0]
    match found.lastgroup:
        case "hidden":
            return " " if _BLOCKS.match(unit) else ""
        case "reference":
            plain = html.unescape(unit)
            if plain == unit and not unit.endswith(";"):
                plain = html.unescape(unit + ";")
            return None if plain.startswith("&") and len(plain) > 1 else plain
        case "percent":
            return bytes.fromhex(unit.replace("%", "")).decode(errors="replace")
        case "quoted":
            return "" if unit[-1] == "\n" else bytes.fromhex(unit.replace("=", "")).decode(errors="replace")
        case "utf7":
            return _mail_text(found["utf7"])
        case "called":
            return _character(found["called"])
        case "bytes":
            values = re.findall(r"x(..)", unit)
            data = (
                bytes.fromhex("".join(values)) if values else bytes(int(each, 8) for each in unit.split("\\") if each)
            )
            return data.decode(errors="replace")
        case "units" | "percent_units":
            codes = re.sub(r"[%\\]+u", "", unit)
            return bytes.fromhex(codes).decode("utf-16-be", errors="replace")
        case "braced" | "long" | "named" | "css" as kind:
            code = int(found[kind], 16)
            return chr(code) if code < 0x110000 and not 0xD800 <= code < 0xE000 else None
        case "empty":
            return " " if "IFS" in unit else ""
        case "either":
            return unit[1]
        case "join":
            return None
        case _:
            return ""


def _mail_text(packed: str) -> str | None:
    """A run of UTF-7; None where it is none."""
    try:
        text = b64decode(packed + "=" * (-len(packed) % 4)).decode("utf-16-be")
    except (binascii.Error, UnicodeDecodeError):
        return None
    return text if text.isprintable() else None


def _character(name: str) -> str | None:
    try:
        return unicodedata.lookup(name)
    except KeyError:
        return None


def _spelled(found: re.Match[str]) -> str:
    """The text whose bytes a run of variation selectors is."""
    codes = map(ord, found[0])
    data = bytes(code - 0xFE00 if code < 0xFE10 else code - 0xE0100 + 16 for code in codes)
    return data.decode(errors="replace")
