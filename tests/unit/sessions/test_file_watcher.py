"""A watched file: read again when it changes, off the loop, one reading at a time; a bad one changes nothing."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from sessions.file_watcher import FileWatcher


class Book:
    def __init__(self, path: Path) -> None:
        self.says = ""
        self.threads: set[int] = set()
        self.gate: threading.Event | None = None
        self.begun = threading.Event()
        self.third = asyncio.Event()
        self.file = FileWatcher(path, self._read, self._take, what="book", refused=(ValueError,), look_s=0.001)

    def _read(self, path: Path) -> str:
        self.threads.add(threading.get_ident())
        self.begun.set()
        if self.gate is not None:
            assert self.gate.wait(20)
        text = path.read_text()
        if "bad" in text:
            raise ValueError(f"{text!r} is bad")
        return text

    async def _take(self, text: str) -> None:
        if "unusable" in text:
            raise ValueError("it cannot be used")
        self.says = text
        if text == "three!":
            self.third.set()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "book"
    path.write_text("one")
    return path


@pytest.mark.parametrize("text", ["bad", "unusable", None])
async def test_a_bad_one_is_refused_once_and_changes_nothing(path: Path, text: str | None) -> None:
    book = Book(path)
    book.says = book.file.first()
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    assert not await book.file.look() and book.says == "one"
    book.threads.clear()
    assert not await book.file.look() and not book.threads  # it was said
    path.write_text("three")
    assert await book.file.look() and book.says == "three"


async def test_the_loop_goes_on_while_a_file_is_read_and_a_change_meanwhile_is_not_missed(path: Path) -> None:
    book = Book(path)
    book.says = book.file.first()
    book.gate, book.begun = threading.Event(), threading.Event()
    path.write_text("two")
    running = asyncio.create_task(book.file.run())
    try:
        await asyncio.to_thread(book.begun.wait, 20)
        assert book.says == "one"  # this ran although the reader stands still
        book.begun.clear()
        path.write_text("three!")
        book.gate.set()
        async with asyncio.timeout(60):
            await book.third.wait()
        assert book.says == "three!"
    finally:
        running.cancel()
        await asyncio.wait([running])


async def test_a_change_of_a_file_beside_it_is_a_change_of_it(path: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    taken: list[str] = []
    key.write_text("k1")

    async def take(text: str) -> None:
        taken.append(text)

    watcher = FileWatcher(
        path, lambda _: path.read_text() + key.read_text(), take, what="pair", refused=(ValueError,), beside=[key]
    )
    assert watcher.first() == "onek1" and not await watcher.look()
    key.write_text("another")
    assert await watcher.look() and taken == ["oneanother"]
    key.unlink()
    assert not await watcher.look() and taken == ["oneanother"]
