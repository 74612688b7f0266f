"""How the terminal chat draws: two streams, and one session's log as it grows.

Decides what stands on the screen after each event: the answer being written, what other devices send, how answers end.
It does NOT know commands or input (``terminal``).
"""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import Callable
from typing import TextIO

from ._items import Item
from ._track import Event, Snapshot
from .response import Response
from .session import Session


class Screen:
    """Two streams and where the cursor is. Control characters never reach a terminal from a model."""

    def __init__(self, out: TextIO, notes: TextIO, *, prompts: bool, width: Callable[[], int] | None = None) -> None:
        """``width``: how wide the terminal is now, to break answers between words; without it they stay as they are."""
        self._out = out
        self._notes = notes
        self._prompts = prompts
        self._fresh = True
        self._wrap = None if width is None else _Wrap(width)

    def say(self, text: str) -> None:
        """Go on with an answer."""
        shown = _shown(text)
        self._write(shown if self._wrap is None else self._wrap.feed(shown))

    def end(self) -> None:
        """End the line that an answer left."""
        if self._wrap is not None:
            self._write(self._wrap.flush())
        if not self._fresh:
            print(file=self._out, flush=True)
            self._fresh = True
        if self._wrap is not None:
            self._wrap.column = 0

    def _write(self, shown: str) -> None:
        if shown:
            print(shown, end="", file=self._out, flush=True)
            self._fresh = shown.endswith("\n")

    def note(self, text: str) -> None:
        """Say something that belongs to no answer, on lines of its own."""
        if not self._fresh and self._prompts:
            print(file=self._notes)
        for line in _shown(text).splitlines():
            print("--", line, file=self._notes, flush=True)

    def prompt(self) -> None:
        if self._prompts:
            print("> ", end="", file=self._notes, flush=True)


def _shown(text: str) -> str:
    return "".join(c for c in text if c in "\n\t" or (c.isprintable() or ord(c) > 0x9F))


class _Wrap:
    """Breaks text between words as it comes. A word is held back until its end is known; one that is wider than the
    terminal is left to the terminal."""

    def __init__(self, width: Callable[[], int]) -> None:
        self.column = 0
        self._width = width
        self._blanks = ""
        self._word = ""

    def feed(self, text: str) -> str:
        """What of it can be written."""
        written = []
        for char in text:
            if char not in " \t\n":
                self._word += char
                continue
            written.append(self._placed())
            if char == "\n":
                written.append("\n")
                self.column, self._blanks = 0, ""
            else:
                self._blanks += char
        return "".join(written)

    def flush(self) -> str:
        """The last word."""
        written, self._blanks = self._placed(), ""
        return written

    def _placed(self) -> str:
        """The word with the blanks before it, or on a line of its own where it no longer fits."""
        if not self._word:
            return ""
        blanks, word = self._blanks, self._word
        self._blanks = self._word = ""
        columns = sum(map(_columns, word))
        if self.column and self.column + len(blanks) + columns > self._width():
            self.column = columns
            return f"\n{word}"
        self.column += len(blanks.expandtabs(8)) + columns
        return blanks + word


def _columns(char: str) -> int:
    """How many columns of a terminal a character takes."""
    if unicodedata.combining(char) or unicodedata.category(char) == "Cf":
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


class Follower:
    """Draws one session as its log grows: the answer being written, messages of other devices, how answers end."""

    def __init__(self, session: Session, screen: Screen, idle: Callable[[], None], *, history: bool) -> None:
        self.session = session
        #: what this terminal has sent and the log has not yet shown begun
        self.sent: list[tuple[Response, str | None]] = []
        #: messages of this terminal: they stand on the screen already
        self.mine: set[str] = set()
        #: set when it is known what stood in the session before: whatever ends from then on is drawn
        self.begun = asyncio.Event()
        #: nothing more will be drawn: the session has ended, or could not be followed
        self.over = False
        self._screen = screen
        self._idle = idle
        self._history = history
        self._seen: set[str] = set()
        self._current: str | None = None
        self._drawn = ""

    async def run(self) -> None:
        """Follow until the session is deleted or let go of."""
        first = True
        async for entry in self.session.events():
            if isinstance(entry, Snapshot):
                if entry.mode == "reset":
                    self._screen.end()
                    self._screen.note("the server lost what stood here; this is what it has")
                    first, self._current, self._drawn = True, None, ""
                if first:
                    self._begin()
                first = False
            else:
                self._take(entry)
            self._draw()
        if self.session.view.deleted:
            self._screen.end()
            self._screen.note("this session was deleted")
        self._idle()

    @property
    def busy(self) -> bool:
        """An answer is expected, being written, or not yet on the screen."""
        if self.over:
            return False
        self.sent = [(response, text) for response, text in self.sent if not response.begun]
        responses = self.session.view.responses.values()
        return bool(self.sent) or any(r.id not in self._seen for r in responses)

    def _ours(self, item: Item) -> bool:
        return item.id in self.mine or any(item.text == text for _, text in self.sent)

    def show_history(self) -> None:
        for item in self.session.items:
            if item.status != "in_progress":
                self._show_item(item)

    def _begin(self) -> None:
        """Where the following begins: everything that has ended counts as seen."""
        view = self.session.view
        self._seen = {r.id for r in view.responses.values() if r.ended}
        if self._history:
            self.show_history()
        self.begun.set()

    def _take(self, event: Event) -> None:
        item = event.data.get("item")
        if event.type == "item.created" and isinstance(item, dict):
            message = Item(item)
            if message.role == "user" and not self._ours(message):
                self._finish()
                self._show_item(message)
        elif event.type == "context.fitted":
            self._screen.note("the oldest part of this conversation no longer fits the model's context")

    def _show_item(self, item: Item) -> None:
        self._screen.end()
        if item.role == "user":
            self._screen.say(f"> {item.text}\n")
        elif item.type == "function_call":
            self._screen.note(f"the model asks for {item.name}({item.arguments})")
        elif item.text:
            self._screen.say(item.text + "\n")

    def _draw(self) -> None:
        """Bring the screen to where the view is."""
        view = self.session.view
        while True:
            if self._current is None:
                waiting = (r for r in view.responses.values() if r.id not in self._seen and r.status != "queued")
                response = next(waiting, None)
                if response is None:
                    if not self.busy:
                        self._idle()
                    return
                self._current, self._drawn = response.id, ""
            text = view.text(self._current)
            if text.startswith(self._drawn):
                self._screen.say(text[len(self._drawn) :])
            else:
                self._screen.end()
                self._screen.note("the answer was corrected:")
                self._screen.say(text)
            self._drawn = text
            state = view.responses.get(self._current)
            if state is not None and not state.ended:
                return
            self._finish()

    def _finish(self) -> None:
        """The current answer is over, or gives way to something else on the screen."""
        if self._current is None:
            return
        state = self.session.view.responses.get(self._current)
        if state is not None and not state.ended:
            return
        self._screen.end()
        if state is not None:
            for item in self.session.view.output(self._current):
                if item.type == "function_call":
                    self._show_item(item)
            if state.status == "incomplete":
                self._screen.note(f"stopped: {state.incomplete_reason or 'incomplete'}")
            elif state.status == "failed":
                error = state.error or {}
                self._screen.note(f"failed: {error.get('code', '?')}: {error.get('message', '')}")
        self._seen.add(self._current)
        self._current, self._drawn = None, ""
