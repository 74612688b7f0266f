"""Lets a reader of calls go through text that is still coming, once and from left to right.

A reader is a generator function over a `CallText`. It yields where it needs more text and goes on at the same place
when that has come, so that a call takes time linear in its length however many pieces it comes in:

    name = yield from text.run(NAME)         reads "f"; yields until a character that is none of a name has come
    yield from text.tag("<tool_sep>")        raises ValueError if something else is there: the text is no call
    value = yield from text.until("</arg_value>")

Pure; does not know formats.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping
from functools import cache
from typing import Final

from sessions.model.types import Tool

Wait = Generator[None, None, None]
Calls = list[tuple[str, str]]  # the names of calls with their JSON arguments
BLANKS: Final = re.compile(r"\s*+")
_QUOTED: Final = re.compile(r'(?:[^"\\]++|\\.)*+', re.DOTALL)  # the inside of a JSON string
_UNQUOTED: Final = re.compile(r'[^"{}\[\]]*+')


@cache
def any_of(marks: tuple[str, ...]) -> re.Pattern[str]:
    """Returns a pattern that finds the first of some marks; without marks it matches nothing."""
    return re.compile("|".join(map(re.escape, sorted(marks))) or "(?!)")


def scan(pattern: re.Pattern[str], text: str, start: int) -> re.Match[str] | None:
    """Searches text for a pattern. All searches for marks, here and in the parser, are made by it, so that a test can
    count the characters that are looked at."""
    return pattern.search(text, start)


class CallText:
    """The text behind a mark. `at` is the index up to which a reader has read."""

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.ends = False  # whether no more text comes

    def more(self) -> Wait:
        """Waits for more text. Raises ValueError if none comes."""
        if self.ends:
            self.at = len(self.text)
            raise ValueError("the text ends inside a call")
        yield

    def peek(self) -> Generator[None, None, str]:
        """Returns the next character, which is not read yet."""
        while self.at == len(self.text):
            yield from self.more()
        return self.text[self.at]

    def blanks(self) -> Wait:
        """Skips white space."""
        self._skip(BLANKS)
        while self.at == len(self.text) and not self.ends:
            yield
            self._skip(BLANKS)

    def run(self, pattern: re.Pattern[str]) -> Generator[None, None, str]:
        """Reads as many characters as match `pattern`, which is a possessive repeat of a set, and returns them."""
        begin = self.at
        self._skip(pattern)
        while self.at == len(self.text):
            yield from self.more()
            self._skip(pattern)
        return self.text[begin : self.at]

    def _skip(self, pattern: re.Pattern[str]) -> None:
        match = scan(pattern, self.text, self.at)
        self.at = self.at if match is None else match.end()

    def name(self, pattern: re.Pattern[str]) -> Generator[None, None, str]:
        """Reads a run that must have a character at least. Raises ValueError if it has none."""
        name = yield from self.run(pattern)
        if not name:
            raise ValueError("no name")
        return name

    def optional(self, tag: str) -> Generator[None, None, bool]:
        """Reads a tag if the text goes on with it. Returns whether it does."""
        while not self.text.startswith(tag, self.at):
            if self.ends or not tag.startswith(self.text[self.at : self.at + len(tag)]):
                return False
            yield
        self.at += len(tag)
        return True

    def tag(self, *tags: str) -> Generator[None, None, str]:
        """Reads one of some tags and returns it. Raises ValueError if the text goes on with none of them."""
        while True:
            for tag in tags:
                if self.text.startswith(tag, self.at):
                    self.at += len(tag)
                    return tag
            if not any(tag.startswith(self.text[self.at : self.at + len(tag)]) for tag in tags):
                raise ValueError("no call")
            yield from self.more()

    def until(self, tag: str) -> Generator[None, None, str]:
        """Reads up to a tag and over it. Returns what is before it."""
        begin = start = self.at
        while (match := scan(any_of((tag,)), self.text, start)) is None:
            start = max(begin, len(self.text) - len(tag) + 1)
            yield from self.more()
        self.at = match.end()
        return self.text[begin : match.start()]

    def json(self) -> Generator[None, None, str]:
        """Reads the JSON object or list that begins here, up to the bracket that closes it. Returns its text, which may
        be no JSON inside."""
        begin, depth, is_quoted = self.at, 0, False
        while depth or self.at == begin:
            self._skip(_QUOTED if is_quoted else _UNQUOTED)
            if self.text[self.at : self.at + 2] in ("", "\\"):  # the end, maybe inside an escape
                yield from self.more()
                continue
            match self.text[self.at]:
                case '"':
                    is_quoted = not is_quoted
                case "{" | "[":
                    depth += 1
                case _:
                    depth -= 1
            self.at += 1
        return self.text[begin : self.at]


Reader = Callable[[CallText, Mapping[str, Tool]], Generator[None, None, Calls]]


class CallReading:
    """One reader at work on the text behind one mark."""

    def __init__(self, read: Reader, tools: Mapping[str, Tool]) -> None:
        self._source = CallText()
        self._steps = read(self._source, tools)

    @property
    def at(self) -> int:
        """The index up to which the text was read."""
        return self._source.at

    def feed(self, text: str, *, ends: bool) -> Calls | None:
        """Goes on with all the text that has come up to now. Returns the calls that it begins with; None if more is
        needed. Raises ValueError if the text begins with no call, or `ends` inside one."""
        self._source.text, self._source.ends = text, ends
        try:
            next(self._steps)
        except StopIteration as stop:
            calls: Calls = stop.value
            return calls
        return None
