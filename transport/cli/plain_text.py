"""Writes what strangers wrote so that a terminal may show it: nothing steers it, breaks a line or turns its order."""

from __future__ import annotations


def plain(text: str) -> str:
    """`text` in one line, with what is not printable spelt out: `\\x1b[31m`, `\\n`, `\\u202e`."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text)


def plain_lines(text: str) -> str:
    """The same, with its lines as they are."""
    return "\n".join(map(plain, text.split("\n")))
