"""Texts that a reader puts together of pieces: strings that code or prose joins, names that stand for them, lists.

`joined` follows what any language's syntax has in common: pieces in quotes, names that are given one, and an order in
which both are named. What stands between them does not matter, only how much of it there is. Where a piece stood is
known. Bounded: the first `PIECES_MAX` pieces of a text. Pure; runs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from operator import itemgetter
from typing import Final, NamedTuple

from inference.moderation.disguise.spelled import places_of

PIECES_MAX: Final = 256
NAMES_MAX: Final = 64
ADDED_MAX: Final = 16  # pieces of one name
_GLUE_MAX: Final = 60  # code points between two pieces
_QUOTES: Final = "\"'`“„«‘「『‹"
_MARKS: Final = _QUOTES + "”»’」』›"
_LITERAL: Final = re.compile(
    r"""["'`“„«‘「『‹](?:
      (?<=")(?P<double>(?:[^"\\\n]|\\.){0,300})"
    | (?<=')(?:(?<!\w')|(?<=\b[fFrRbBuUeELN]'))(?P<single>(?:[^'\\\n]|\\.){0,300})'(?!\w)
    | (?<=`)(?P<tick>[^`\n]{1,300})`
    | (?<=[“„])(?P<curly>[^“”„\n]{1,300})[“”]
    | (?<=«)(?P<angle>[^«»\n]{1,300})»
    | (?<=‘)(?P<bent>[^‘’\n]{1,300})’
    | (?<=[「『])(?P<corner>[^「」『』\n]{1,300})[」』]
    | (?<=‹)(?P<chevron>[^‹›\n]{1,300})›)""",
    re.VERBOSE,
)
_GIVING: Final = (
    "=",
    ":",
    ">",
    "-",
    ",",
    " is",
    " be",
    " as",
    " means",
    " equals",
    " equal",
    " holds",
    " says",
    " for",
)
_NAMED: Final = re.compile(  # at the end of what stands before a string: a name that is given it
    r"(?<!\w)(?P<name>[A-Za-z_]\w{0,31}(?:\[\w{1,8}\])?)\W{0,3}(?:\s{0,4}:\s{0,4}[A-Za-z]{1,12})?\s{0,8}"
    r"(?::=|=|:|<-|->|=>|\s(?:is|be|as|means|equals?|holds|says|stands\sfor)|,)\s{0,8}[fFrRbBuULN$@]{0,2}\Z"
)
_DEFINED: Final = re.compile(
    r"(?:(?:define|set|entity|let|assign|local|my)\s{1,4}(?P<name>[A-Za-z_]\w{0,31})\s{1,8}"
    r"|(?:def|func|function|fn)\s(?P<function>[A-Za-z_]\w{0,31})\([^()]{0,24}\)[^\n\"']{0,12}return\s{0,4}\(?)\Z",
    re.IGNORECASE,
)
_TEX: Final = re.compile(r"\\(?:def|newcommand\*?\s?\{?)\s?\\(?P<name>[A-Za-z]{1,32})\}?\s?\{(?P<value>[^{}]{1,80})\}")
_TURNED: Final = ("revers", "[::-1]")
_PREFIXES: Final = " \t\nfFrRbBuULN$@"
_BEFORE_MAX: Final = 64  # code points before a string in which its name stands
_BARE_SIGN: Final = re.compile(r"=(?=[^=])| is (?<=[\s,;.(][A-Z] is )|: (?<![^\s,;.(][A-Z]: )(?<=[A-Z]: )")
_BARE_SIGNS: Final = ("=", " is ", ": ")
_BARE_NAME: Final = re.compile(r"(?<![\w.'\"?&/])[A-Za-z_]\w{0,31}\s{0,2}:?\Z")
_BARE_VALUE: Final = re.compile(  # without quotes, to the end of a clause or, before another name, to the next space
    r"\s{0,4}(?P<words>[^\s\"'`;,.=<>(){}\[\]+&|$][^\"'`;,.=<>(){}\[\]+&|$\n]{0,80})(?=[;,.\n)]|\Z)"
    r"|(?P<word>(?:\\.|[^\s\\\"'`;,=<>(){}&|+$]|\+(?=\w)){1,80})(?![^\s;,)}&])"
)
_MENTION: Final = re.compile(r"[A-Za-z_]\w{0,31}(?:\[\w{1,8}\])?")
_LIST: Final = re.compile(r"(?P<name>[A-Za-z_]\w{0,31})\s{0,4}(?::?=|:|<-)[\w\s<>.]{0,24}[\[({]\s{0,4}\Z")
_SLOT: Final = re.compile(r"\{(\d)(?::[^{}]{0,8})?\}|%(\d)\$s")
_EMPTY_SLOT: Final = re.compile(r"\{\}|%[sv](?!\w)")
_KEY: Final = re.compile(r"\s{0,4}(?::(?!:)|=>)")
_CLOSED: Final = re.compile(r"[\])}]")
_PROSE: Final = re.compile(r"[^\W\d_]{3,}")
_REACH: Final = 2_048  # code points beyond what names are given in which they are looked for


class Piece(NamedTuple):
    """A part of what is put together, and where it begins in the text."""

    text: str
    start: int
    end: int


Joined = list[Piece]


_Placed = tuple[int, int, list[Piece]]  # where something stands, and the pieces that it is


class _String(NamedTuple):
    text: str
    inner: int  # where its content begins
    start: int  # with its quotes
    end: int
    key: bool  # what stands behind it is given this name

    @property
    def piece(self) -> Piece:
        return Piece(self.text, self.inner, self.inner + len(self.text))


def joined(text: str) -> Iterator[Joined]:
    """What a text's strings may be put together, each as its pieces in order."""
    strings = [*_strings(text)] if sum(map(text.count, _MARKS)) > 1 else []
    values = [each.piece for each in strings if not each.key]
    yield from _runs([(piece.start, piece.end, [piece]) for piece in values], text)
    if len(values) > 1 and any(map(text.__contains__, _TURNED)):
        yield from (run[::-1] for run in _runs([(piece.start, piece.end, [piece]) for piece in values], text))
    given, spans = _given(text, strings)
    bare = [*_bare(text)]
    for name, piece, span in bare:
        _give(given, name, piece)
        spans.append(span)
    yield from _runs([(piece.start, piece.end, [piece]) for _, piece, _ in bare], text)
    if given and len(values) + len(bare) > 1:
        yield from _runs([*_used(text, strings, given, spans)], text)


def _strings(text: str) -> Iterator[_String]:
    behind = 0
    for at in islice(places_of(text, _QUOTES), 2 * PIECES_MAX):
        if at < behind or (found := _LITERAL.match(text, at)) is None:
            continue
        kind, behind = found.lastgroup, found.end()
        assert kind is not None
        yield _String(found[kind], found.start(kind), at, behind, _KEY.match(text, behind) is not None)


def _runs(pieces: Sequence[_Placed], text: str) -> Iterator[Joined]:
    """Runs of what stands close together, and those with no word between."""
    for strict in (False, True):
        run: Joined = []
        last = -1
        cut = False
        for start, end, those in pieces:
            apart = bool(run) and (
                start - last > _GLUE_MAX or (strict and _PROSE.search(text, last, start) is not None)
            )
            if apart:
                cut = True
                yield from _filled(run) if strict or start - last > _GLUE_MAX else ()
                run = []
            run += those
            last = end
        if not strict or cut:
            yield from _filled(run)


def _bare(text: str) -> Iterator[tuple[str, Piece, tuple[int, int]]]:
    """Names that are given a text without quotes: name, text, and where that is."""
    signs = (found for at in places_of(text, _BARE_SIGNS) if (found := _BARE_SIGN.match(text, at)) is not None)
    for sign in islice(signs, NAMES_MAX):
        named = _BARE_NAME.search(text, max(0, sign.start() - 40), sign.start())
        value = _BARE_VALUE.match(text, sign.end()) if named is not None else None
        if named is not None and value is not None:
            kind = value.lastgroup or "word"
            name, inner = named[0].rstrip(": \t\n"), value[kind].rstrip()
            yield name, Piece(inner, value.start(kind), value.start(kind) + len(inner)), (named.start(), value.end())
    for each in islice(_TEX.finditer(text), NAMES_MAX) if "\\def" in text or "\\newc" in text else ():
        yield each["name"], Piece(each["value"], *each.span("value")), each.span()


def _given(text: str, strings: Sequence[_String]) -> tuple[dict[str, list[Piece]], list[tuple[int, int]]]:
    """What each name stands for, and where it is given that."""
    given: dict[str, list[Piece]] = {}
    spans: list[tuple[int, int]] = []
    name, count = "", 0
    for before, string in pairwise((None, *strings)):
        assert string is not None
        if string.key:
            continue
        begin = before.end if before is not None else 0
        ahead = text[max(begin, string.start - _BEFORE_MAX) : string.start]
        named = (_NAMED if ahead.rstrip(_PREFIXES).endswith(_GIVING) else _DEFINED).search(ahead)
        if before is not None and before.key:
            given[before.text] = [string.piece]
            spans.append((before.start, string.end))
        elif named is not None:
            _give(given, named[named.lastgroup or "name"], string.piece)
            spans.append((string.start - len(ahead) + named.start(), string.end))
        if (listed := _LIST.search(ahead)) is not None:
            name, count = listed["name"], 0
            given.pop(name, None)
            spans.append((string.start - len(ahead) + listed.start(), string.end))
        elif count and _CLOSED.search(ahead):
            name, count = "", 0
        if name:
            given[f"{name}[{count}]"] = [string.piece]
            spans.append((string.start, string.end))
            count += 1
    return given, spans


def _give(given: dict[str, list[Piece]], name: str, piece: Piece) -> None:
    """One more piece for a name, which may be added to."""
    if len(pieces := given.setdefault(name, [])) < ADDED_MAX:
        pieces.append(piece)


def _used(
    text: str, strings: Sequence[_String], given: dict[str, list[Piece]], spans: Sequence[tuple[int, int]]
) -> list[_Placed]:
    """In their order: names where they are used, and strings that no name is given."""
    composed = [each for each in strings if _holds_name(each.text, given)]
    defined = [(first, last) for first, last in spans if not any(first <= each.start < last for each in composed)][
        :PIECES_MAX
    ]
    used = [
        (each.start, each.end, [each.piece])
        for each in strings
        if each.text not in given and each not in composed and not _lies_in(each.start, defined)
    ]
    first = max(0, min(begin for begin, _ in spans) - _REACH)
    last = max(end for _, end in spans) + _REACH
    known = 0
    for found in _MENTION.finditer(text, first, min(len(text), last)):
        pieces = given.get(found[0]) or given.get(found[0].partition("[")[0])
        if pieces is None or _lies_in(found.start(), defined):
            continue
        used.append((found.start(), found.end(), pieces))
        known += len(pieces)
        if known >= PIECES_MAX:
            break
    return sorted(used, key=itemgetter(0)) if known else []


def _lies_in(place: int, spans: Sequence[tuple[int, int]]) -> bool:
    return any(first <= place < last for first, last in spans)


def _holds_name(text: str, given: dict[str, list[Piece]]) -> bool:
    return ("{" in text or "$" in text) and any(found[0] in given for found in _MENTION.finditer(text))


def _filled(run: Joined) -> Iterator[Joined]:
    """A run of pieces; where the first says in which order the next ones come, in that order."""
    if len(run) < 2:
        return
    yield run
    for at, piece in enumerate(run):
        if slots := _SLOT.findall(piece.text):
            chosen = [int(one or two) - bool(two) for one, two in slots]
            if all(0 <= each < len(run) - at - 1 for each in chosen):
                yield [*run[:at], *(run[at + 1 + each] for each in chosen)]
            return


def put_together(pieces: Joined, joint: str) -> tuple[str, list[tuple[int, int]]]:
    """The text of pieces with a joint between them, and [start, end) of each of its code points."""
    texts: list[str] = []
    places: list[tuple[int, int]] = []
    for number, (text, start, end) in enumerate(pieces):
        kept = _EMPTY_SLOT.sub("", _SLOT.sub("", text)) if "{" in text or "%" in text else text
        if number and joint:
            texts.append(joint)
            places.append(places[-1] if places else (start, end))
        texts.append(kept)
        if kept == text:
            places += zip(range(start, end), range(start + 1, end + 1), strict=True)
        else:
            places += [(start, end)] * len(kept)
    return "".join(texts), places
