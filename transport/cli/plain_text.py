"""Writes what strangers wrote so that a terminal may show it: nothing steers it, breaks a line or turns its order."""

from __future__ import annotations


def plain(text: str) -> str:
    """Returns a text on one line, with unprintable characters escaped: `\\x1b[31m`, `\\n`, `\\u202e`."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text)


def plain_lines(text: str) -> str:
    """Returns a text as `plain` does, but keeps its lines."""
    return "\n".join(map(plain, text.split("\n")))
