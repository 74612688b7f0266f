"""Token id helpers that every engine needs: common prefixes, images' names, and text that comes in bytes.

Token sequences are `array('I')` here: four bytes a token, compared at the speed of memcmp. Knows nothing of
vocabularies or engines.
"""

from __future__ import annotations

import array
import codecs
from collections.abc import Iterable
from typing import Final

import numpy as np

from sessions.model.types import Tokens
from sessions.turn.images import PATCH

LONG: Final = 1024  # tokens: beyond, looking at them in place is faster than copying them
_DTYPE: Final = np.dtype("I")


def as_tokens(tokens: Tokens) -> array.array[int]:
    """Copies tokens of any sequence type into an array that the caller owns."""
    return array.array("I", tokens)


def common_prefix(left: array.array[int], right: array.array[int]) -> int:
    """Returns how many leading tokens two sequences share. Compares O(shared tokens) bytes, whatever the outcome."""
    shorter = min(len(left), len(right))
    if shorter > LONG and left[:LONG] == right[:LONG]:  # without a copy of what may be megabytes
        differ = np.frombuffer(left, _DTYPE, shorter) != np.frombuffer(right, _DTYPE, shorter)
        at = int(differ.argmax())
        return at if differ[at] else shorter
    shorter = min(shorter, LONG)
    a, b = left[:shorter].tobytes(), right[:shorter].tobytes()  # bytes compare by memcmp, arrays item by item
    size = left.itemsize
    if a[: shorter * size] == b[: shorter * size]:
        return shorter
    # Invariant: the first `same` tokens agree, the first `different` do not.
    same, different = 0, shorter
    while different - same > 1:
        middle = (same + different) // 2
        if a[same * size : middle * size] == b[same * size : middle * size]:
            same = middle
        else:
            different = middle
    return same


def names_images(tokens: array.array[int]) -> bool:
    """Returns whether there are ids of images' names (`sessions.turn.images`) among a prompt's or slot's."""
    return len(tokens) > 0 and int(np.frombuffer(tokens, _DTYPE).max()) >= PATCH


def without_images(tokens: array.array[int]) -> array.array[int]:
    """Returns a prompt's ids without those of images' names."""
    if not names_images(tokens):
        return tokens
    ids = np.frombuffer(tokens, _DTYPE)
    return array.array("I", ids[ids < PATCH].tobytes())


def byte_alphabet() -> dict[str, int]:
    """Returns GPT-2's letters for bytes: printable bytes stand for themselves, the others are letters from U+0100
    on."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    alphabet = {chr(value): value for value in printable}
    others = (value for value in range(256) if value not in printable)
    return alphabet | {chr(256 + index): value for index, value in enumerate(others)}


class Utf8Stream:
    """Turns the bytes of one token after another into text that never ends inside a character.

    Bytes that no character can have become U+FFFD, as soon as that is certain.
    """

    __slots__ = ("_decoder",)

    def __init__(self, before: Iterable[bytes] = ()) -> None:
        """`before`: the bytes of the tokens before this stream. Their text was emitted already, except for a last
        character that is not complete."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for piece in before:
            self._decoder.decode(piece)

    def feed(self, piece: bytes) -> str:
        return self._decoder.decode(piece)

    @property
    def pending(self) -> bytes:
        """The bytes of a character that is not complete yet."""
        return self._decoder.getstate()[0]
