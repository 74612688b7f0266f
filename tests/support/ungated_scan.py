"""The scan of a whole text without its gates: what each cheap look decides, decided here in the long way.

The reference for `inference.moderation`: it may be slow, and must see at least what any gate lets through.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final
from unittest.mock import patch

from inference.moderation import input_filter, readings, scan, squeezed
from inference.moderation.disguise.respelled import RespelledWords
from inference.moderation.input_filter import Place
from inference.moderation.normalize import Normalizer, fold_case, plain_form
from inference.moderation.patterns import AROUND_NUMBER, NUMBERED, Pattern
from inference.moderation.policy import PolicySide
from inference.moderation.readings import readings_of
from inference.moderation.scan import Scanner

_NUMBERS: Final = re.compile(r"\d(?:[ ().\-/_*,;:|~+#=]{0,3}\d){7,}")
_SIGNS: Final = (
    *(
        "<",
        "&",
        "\\",
        "%",
        "*",
        "~",
        "`",
        "\x1b",
        "\x08",
        "__",
        "](",
        "] (",
        "][",
        "] [",
        "U+",
        "u+",
        "==",
        "[/",
        "[^",
        "[[",
    ),
    *("=\n", "=\r", "${", "$@", "$*", "$(", "$I", *(f"[{digit}" for digit in range(10))),
    *(f"[{one}{two}" for small in "aeiou" for one, two in ((small, small.upper()), (small.upper(), small))),
)
_SUSPECT: Final = re.compile(
    r"[{}+=](?:(?<=\w\{)|(?<=\})(?=\w)|(?<=\+)[A-Z][A-Za-z0-9+/]{2}|(?<==)[0-9A-F]{2})"
    r"""|_(?!\w)|(?<!\w)_|["']\s{0,4}[+.&]\s{0,4}["']|["'] ?["']"""
)
_JOIN: Final = re.compile(r"""["']\s{0,4}[+.&]\s{0,4}["']|["'] ?["']""")


def _normalized(text: str) -> str:
    return re.sub(" {2,}", " ", "".join(map(plain_form, text)))


def _matches(pattern: Pattern, text: str, start: int, numbers: list[tuple[int, int]]) -> Iterator[re.Match[str]]:
    if pattern.kind not in NUMBERED:
        yield from pattern.regex.finditer(text, start)
        return
    for first, last in numbers:
        yield from pattern.regex.finditer(text, max(start, first - AROUND_NUMBER), min(len(text), last + AROUND_NUMBER))


def _is_suspect(text: str) -> bool:
    return any(sign in text for sign in _SIGNS) or _SUSPECT.search(text) is not None


@contextmanager
def open_gates() -> Iterator[None]:
    """Whatever a gate would leave out is looked at inside the block."""
    with ExitStack() as stack:
        for module, name, whole in (
            (scan, "_matches", _matches),
            (scan, "NUMBERS", _NUMBERS),
            (scan, "normalize_text", _normalized),
            (scan, "_long_words", lambda plain: [each.span() for each in re.finditer(r"[!-~]{12,8192}", plain)]),
            (readings, "_is_suspect", _is_suspect),
            (readings, "_units", readings._UNITS.finditer),
            (squeezed._Letters, "of", lambda self, text: text.translate(self)),
            (readings, "_is_joined", lambda text: _JOIN.search(text) is not None),
            (squeezed, "FEW", -1),
            (RespelledWords, "_may_be_in", lambda self, words: True),
        ):
            stack.enter_context(patch.object(module, name, whole))
        yield


def scan_ungated(side: PolicySide, text: str) -> list[Place]:
    """What `scan_message` returns for a scanner of this side."""
    with open_gates():
        scanner = Scanner(side)
        texts, placed = [*readings_of(text)], [*readings_of(text, placed=True)]
        places: list[Place] = []
        for reading, lead in zip(texts, placed, strict=True):
            plain, normal, known = _normalized(reading.text), Normalizer(), tuple(places)
            normal.feed(reading.text)
            hits = scanner.find(plain, fold_case(plain), whole=True)
            spans = [(hit, normal.place(hit.start), normal.end(hit.end)) for hit in hits]
            spans += [(hit, hit.start, hit.end) for hit in scanner.raw_hits(reading.text)]
            for hit, first, last in spans:
                place = (hit, *lead.span(first, last))
                if not any(input_filter._covers(each, place) for each in known):
                    places.append(place)
    return sorted(places, key=lambda place: place[1:])
