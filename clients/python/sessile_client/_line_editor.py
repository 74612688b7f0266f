"""A terminal in which a person edits lines, with history and bracketed paste, below what is printed meanwhile.

Several pasted lines are one message; Alt-Enter begins a new line of one. Whole lines of an answer are printed above the
line that is typed, and the last one, which still grows, is shown there as part of the prompt. What is typed is kept in
memory alone.
"""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import signal
from collections.abc import AsyncIterator
from types import TracebackType
from typing import TextIO

from prompt_toolkit import PromptSession
from prompt_toolkit.data_structures import Size
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output.vt100 import Vt100_Output


class LineEditor:
    """A terminal that one person types in. Used with ``async with``, which gives the terminal back as it was."""

    def __init__(self, terminal: TextIO) -> None:
        self._terminal = terminal
        self.out, self.notes = _Above(self), _Above(self)
        # no question where the cursor is: a terminal that does not answer it would be waited for
        output = Vt100_Output(terminal, _size, term=os.environ.get("TERM"), enable_cpr=False)
        self._typing: PromptSession[str] = PromptSession(
            self._prompt, key_bindings=_keys(), output=output, enable_suspend=True
        )
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._reading: asyncio.Task[None] | None = None

    async def __aenter__(self) -> LineEditor:
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._reading is not None:
            self._typing.app.erase_when_done = True
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def lines(self) -> AsyncIterator[str]:
        """Yields what the person types, a message at a time, until the end of file (Ctrl-D)."""
        while (line := await self._lines.get()) is not None:
            yield line

    def show(self, whole: str) -> None:
        """Prints whole lines above the line that is typed. The terminal stays as it is: no key is lost meanwhile."""
        if self.is_open:
            if whole:
                self._typing.app.renderer.erase()
            self._typing.app.invalidate()
        self._terminal.write(whole)
        self._terminal.flush()

    @property
    def is_open(self) -> bool:
        """A line is being typed."""
        return self._typing.app.is_running

    def _prompt(self) -> str:
        return f"{self.out.growing}\n> " if self.out.growing and not self._typing.app.is_done else "> "

    async def _read(self) -> None:
        try:
            while True:
                self._lines.put_nowait(await self._typing.prompt_async(handle_sigint=False))
        except EOFError:
            pass
        finally:
            self._lines.put_nowait(None)


class _Above(io.StringIO):
    """A stream whose text is printed above the line that is typed. Its last line is printed when it has ended."""

    def __init__(self, editor: LineEditor) -> None:
        self.growing = ""
        self._editor = editor

    def write(self, text: str) -> int:
        grown = self.growing + text
        end = grown.rfind("\n") + 1 if self._editor.is_open else len(grown)
        self.growing = grown[end:]
        self._editor.show(grown[:end])
        return len(text)


def _size() -> Size:
    columns, rows = shutil.get_terminal_size()
    return Size(rows=rows, columns=columns)


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("c-c")
    def interrupt(_: KeyPressEvent) -> None:
        signal.raise_signal(signal.SIGINT)  # what Ctrl-C does is known where the signal is

    @keys.add("escape", "enter")
    def begin_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys
