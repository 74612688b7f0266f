"""Sealed cookies: what opens, everything that does not, and headers."""

from __future__ import annotations

import msgspec
import pytest

from persistence.at_rest.server_keys import MemoryServerKeys
from transport.auth.sealed_cookies import COOKIE_BYTES_MAX, CookieSealer, read_cookie


class Thing(msgspec.Struct, frozen=True, array_like=True):
    word: str


def test_what_was_sealed_is_opened_under_its_name_only() -> None:
    keys = MemoryServerKeys()
    sealer = CookieSealer(keys, "here")
    written = sealer.seal("a", Thing("ünï"))
    assert written is not None and "ü" not in written
    assert sealer.open("a", written, Thing) == Thing("ünï")
    assert CookieSealer(keys, "here").open("a", written, Thing) == Thing("ünï")
    assert sealer.seal("a", Thing("ünï")) != written
    assert sealer.open("b", written, Thing) is None
    assert CookieSealer(keys, "there").open("a", written, Thing) is None
    assert CookieSealer(MemoryServerKeys(), "here").open("a", written, Thing) is None


def test_every_changed_letter_closes_it() -> None:
    sealer = CookieSealer(MemoryServerKeys(), "here")
    written = sealer.seal("a", Thing("word")) or ""
    for place in range(len(written) - 1):  # the last letter has bits that stand for nothing
        other = "A" if written[place] != "A" else "B"
        assert sealer.open("a", written[:place] + other + written[place + 1 :], Thing) is None
    for text in ("", "A", "====", "ä", "A" * (COOKIE_BYTES_MAX + 4), written + "!"):
        assert sealer.open("a", text, Thing) is None


@pytest.mark.parametrize(
    ("headers", "value"),
    [
        ([], None),
        (["b=1"], None),
        (["a"], None),
        (["xa=1; b=2"], None),
        (["a=1"], "1"),
        (["b=2;  a=1=2 ; c"], "1=2"),
        (["b=2", "a=1"], "1"),
        (["a=1; a=1"], ""),
        (["a=1", "a=2"], ""),
    ],
)
def test_a_cookie_that_comes_twice_is_none(headers: list[str], value: str | None) -> None:
    assert read_cookie(headers, "a") == value
