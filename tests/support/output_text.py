"""Text as an engine gives it, in tokens made up on the way, and a filter that replaces one phrase of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

from sessions.model.generation import Chunk
from sessions.model.verdicts import PASS, Verdict


class Vocabulary:
    """Tokens made up on the way: an id stands for bytes, as in any byte-level vocabulary."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def token(self, piece: bytes) -> int:
        self.pieces.append(piece)
        return len(self.pieces) - 1

    def text(self, text: str) -> list[int]:
        """What a tokenizer does to a tail: here, a token a character."""
        return [self.token(character.encode()) for character in text]

    def decode(self, tokens: Sequence[int]) -> str:
        return b"".join(self.pieces[token] for token in tokens).decode()

    def chunks(self, text: str, draw: Callable[[Any], Any]) -> list[Chunk]:
        """`text` in random tokens, some of them only part of a character, in random chunks."""
        pieces: list[bytes] = []
        at = 0
        while at < len(text):
            size = draw(st.integers(1, 3))
            piece = text[at : at + size].encode()
            at += size
            if size == 1 and len(piece) > 1 and draw(st.booleans()):
                pieces.extend(piece[i : i + 1] for i in range(len(piece)))
            else:
                pieces.append(piece)
        chunks: list[Chunk] = []
        waiting = b""  # bytes of a chunk that ends inside a character come with the next one
        while pieces:
            together = [pieces.pop(0) for _ in range(min(len(pieces), draw(st.integers(1, 3))))]
            tokens = tuple(self.token(piece) for piece in together)
            waiting += b"".join(together)
            try:
                said, waiting = waiting.decode(), b""
            except UnicodeDecodeError:
                said = ""
            chunks.append(Chunk(tokens, said, tuple({"id": token} for token in tokens)))
        return chunks


class Redactor:
    """Replaces the first occurrence of a phrase; what may become one is held back."""

    def __init__(self, phrase: str, replacement: str) -> None:
        self._phrase, self._replacement = phrase, replacement
        self._fed = ""

    def feed(self, text: str) -> tuple[int, Verdict]:
        self._fed += text
        at = self._fed.find(self._phrase)
        if at >= 0:
            return at, self._redact(at)
        held = next(n for n in range(len(self._phrase) - 1, -1, -1) if self._fed.endswith(self._phrase[:n]))
        return len(self._fed) - held, PASS

    def finish(self) -> tuple[int, Verdict]:
        return len(self._fed), PASS

    def _redact(self, at: int) -> Verdict:
        return Verdict(
            action="redact", category="test", start=at, end=at + len(self._phrase), replacement=self._replacement
        )
