"""The language that the simulated engine speaks: its vocabulary, and which token follows which tokens.

Ids 0-255 are bytes, then come the special tokens, then words, each without and with a leading space. The next
token is a function of the hash of all tokens before it, so a continuation of prompt + emitted is the stream that the
unfailed run would have given. The hash is CRC-32, because it can be continued and costs 0.1 µs a token; it
protects nothing.

Characters outside ASCII exist as bytes only, so that they take two to four tokens: whoever cuts text at token
boundaries meets that case in every test.
"""

from __future__ import annotations

import array
import zlib
from collections.abc import Iterable
from typing import Final

BYTES: Final = 256
BEGIN: Final = 256
END: Final = 257  # closes every message and every answer: the end of sequence
ROLE: Final = {"system": 258, "developer": 259, "user": 260, "assistant": 261, "tool": 262}
TOOLS: Final = 263
CALL: Final = 264
FIRST_WORD: Final = 272

_WORDS = """
a able about above across after again air all along also always an and another answer any anyone are around as
ask at away back be bear because become been before began begin behind being below better between bird both
bring brought build but by call came can carry change city clear close cold come could country course cross
day deep did different do does done door down draw dry each early earth east eat end enough even ever every
example eye face fall family far farm fast father feel few field find fire first fish five fly follow food
foot for form forest found four friend from full gave get girl give go gold good great green ground group grow
had half hand happen hard has have he head hear heard help her here high him his hold home horse hour house how
hundred i idea if in inch into is island it just keep kind king knew know land large last late laugh lay lead
learn leave left less let letter life light like line list listen little live long look low made make man many
map mark may me mean men might mile mind miss moon more morning most mother mountain move much music must my
name near need never new next night no north not note nothing notice now number of off often old on once one
only open or order other our out over own page paper part pass pattern people perhaps picture piece place plain
plan plant play point port power press problem produce pull put question quick rain ran reach read ready real
red remember rest right river road rock room round run said same saw say school sea second see seem sentence
serve set seven several shape she ship short should show side sign simple since sing sit six size sleep slow
small snow so some song soon sound south space speak stand star start state stay step still stood stop story
street strong study such summer sun sure surface table take talk teach tell ten than that the their them then
there these they thing think this those though thought thousand three through time to together told too took
top toward town travel tree true try turn two under unit until up upon us use usual very voice vowel wait walk
want war warm was watch water wave way we week well went were west what wheel when where which while white who
whole why wild will wind winter with wonder wood word work world would write year yes yet you young your
"""
WORDS: Final = tuple(_WORDS.split())

CHARACTERS: Final = tuple(text.encode() for text in ("é", "日", "語", "🙂"))  # each known by its first byte
_REST_OF = {character[0]: character[1:] for character in CHARACTERS}

TOKEN_BYTES: Final[tuple[bytes, ...]] = (
    *(bytes([value]) for value in range(BYTES)),
    *(b"" for _ in range(BYTES, FIRST_WORD)),  # special tokens have no text
    *(text for word in WORDS for text in (word.encode(), b" " + word.encode())),
)
WORD_IDS: Final = {text.decode(): token for token, text in enumerate(TOKEN_BYTES) if token >= FIRST_WORD}

_NEWLINE, _SPACE, _STOP, _COMMA = 10, 32, ord("."), ord(",")


def decode(tokens: Iterable[int]) -> str:
    """Returns the text of tokens; bytes that are not UTF-8 become U+FFFD."""
    return b"".join(TOKEN_BYTES[token] for token in tokens).decode("utf-8", "replace")


def hash_tokens(tokens: array.array[int], before: int = 0) -> int:
    """Returns the hash of a sequence; `before` is the hash of tokens that precede it."""
    return zlib.crc32(tokens, before)


def hash_token(token: int, before: int) -> int:
    """Returns `hash_tokens` of one token."""
    return zlib.crc32(token.to_bytes(4, "little"), before)


def next_token(state: int, salt: int, last: int, unfinished: bytes) -> int:
    """Returns the token that follows a sequence that hashes to `state` and ends in `last`.

    `salt` is 0 for a greedy model, or its own number, so that only the tokens decide. `unfinished` holds the bytes so
    far of a character that is not whole yet: it is always finished first.
    """
    if unfinished:
        rest = _REST_OF.get(unfinished[0], b"")
        if len(unfinished) <= len(rest):
            return rest[len(unfinished) - 1]
    draw = ((state ^ salt) * 0x9E3779B97F4A7C15 + 0x7F4A7C15) & 0xFFFF_FFFF_FFFF_FFFF
    draw ^= draw >> 29
    kind = draw & 63
    draw >>= 8
    if last < FIRST_WORD:
        starts_line = last >= BYTES or last == _NEWLINE
        if starts_line or last == _SPACE:
            return FIRST_WORD + 2 * (draw % len(WORDS))
    elif kind < 4:
        return _STOP
    elif kind < 7:
        return _COMMA
    if kind < 9:
        return _SPACE if kind == 7 else _NEWLINE
    if kind < 12:
        return CHARACTERS[draw % len(CHARACTERS)][0]
    return FIRST_WORD + 2 * (draw % len(WORDS)) + 1


def answer_length(base: int, mean: int) -> int:
    """Returns the length at which an answer ends by itself: between half the mean and one and a half of it.

    `base` is the hash of the prompt without what this answer already emitted, so that a continuation ends where
    the unfailed run would have.
    """
    draw = (base * 0xD1B54A32D192ED03) & 0xFFFF_FFFF_FFFF_FFFF
    return max(1, mean // 2 + (draw >> 32) % (mean + 1))
