"""The words of a text as an index has them: keyed hashes, spelt in letters.

Each store has a secret of its own, which is sealed in its row: whoever reads the database sees that a word occurs
again, but not which word. Words are the letters between signs, in lower case, without accents, and without the endings
of English plurals and verb forms. Words that occur in nearly every text are left out. Pure.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterator
from functools import cache, partial
from typing import Final

SECRET_BYTES: Final = 16
QUERY_WORDS_MAX: Final = 12
_MARKS: Final = re.compile("[\u0300-\u036f]")
_WORD: Final = re.compile(r"[^\W_]+")
_LETTERS: Final = str.maketrans("0123456789abcdef", "abcdefghijklmnop")
_COMMON_TEXT: Final = """
a an and are as at be been but by can did do does for from had has have he her his how i if in into is it its me my no
not of on or our she so than that the their them then there these they this to us was we were what when where which who
why will with would you your
"""
_COMMON: Final = frozenset(_COMMON_TEXT.split())


def words(text: str) -> Iterator[str]:
    """Yields the stems of a text's words, each as often as it occurs, without common words."""
    plain = _MARKS.sub("", text)  # Unicode sorts marks in the time of their number squared
    plain = "".join(sign for sign in unicodedata.normalize("NFKD", plain) if not unicodedata.combining(sign))
    for match in _WORD.finditer(plain.casefold()):
        word = match[0]
        if word not in _COMMON:
            yield _stem(word)


def hashed(word: str, secret: bytes) -> str:
    """Returns sixteen letters that stand for a word in one store: a hash keyed with the store's secret."""
    return hashlib.blake2b(word.encode(), key=secret, digest_size=8).hexdigest().translate(_LETTERS)


def indexed_text(text: str, secret: bytes) -> str:
    hashed_once = cache(partial(hashed, secret=secret))
    return " ".join(map(hashed_once, words(text)))


def query_words(text: str, secret: bytes) -> list[str]:
    """Returns the hashes of a query's longest words, once each. The longest are taken because they are mostly the
    rarest."""
    longest = sorted(dict.fromkeys(words(text)), key=len, reverse=True)[:QUERY_WORDS_MAX]
    return [hashed(word, secret) for word in longest]


def _stem(word: str) -> str:
    for ending, left, put in (("ies", 2, "y"), ("sses", 2, "ss"), ("ing", 3, ""), ("ed", 3, ""), ("es", 3, "e")):
        if word.endswith(ending) and len(word) - len(ending) >= left:
            return (word[: -len(ending)] + put).rstrip("e") or word
    if word.endswith("s") and not word.endswith("ss") and len(word) > 3:
        word = word[:-1]
    return word.rstrip("e") or word
