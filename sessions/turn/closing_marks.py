"""Tells the mark that ends a thought from the same characters as text, which a model writes where it quotes the mark.

In most vocabularies the mark is one token, and only that token ends a thought:

    " the mark " "</" "think" ">" " ends it." "</think>" "Four"      five tokens of text, and the mark

Where it is several tokens nobody can tell, and the first mark ends the thought. Pure; one object per engine run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sessions.model.generation import Chunk, ThoughtMarks
from sessions.ports import Tokenizer


class ClosingMarks:
    """The places in a run's text at which a token is the mark. `feed` each chunk before its text is parsed."""

    def __init__(
        self, mark: str, token: int, pieces: Callable[[Sequence[int]], list[bytes]], *, thinking: bool = False
    ) -> None:
        """`thinking`: what earlier runs wrote ends in a thought."""
        self._thinking = thinking
        self._mark = mark
        self._token = token
        self._pieces = pieces
        self._num_chars = 0  # of the run's text so far
        self._places: set[int] = set()
        self._num_unplaced = 0  # tokens whose text is still to come

    def feed(self, chunk: Chunk) -> None:
        if self._token in chunk.tokens:
            count = chunk.tokens.count(self._token)
            places = self._places_in(chunk.text)
            if len(places) > count:  # of several in one chunk, those where the tokens are
                places = self._places_of_tokens(chunk) & places or places
            self._places |= {self._num_chars + place for place in places}
            self._num_unplaced += max(0, count - len(places))
        self._num_chars += len(chunk.text)

    def is_at(self, place: int) -> bool:
        """Returns whether the mark at this place is the token. A mark before the run's text was read by an earlier run:
        if a thought goes on behind it, it was text."""
        if place < 0:
            return not self._thinking
        if place in self._places:
            return True
        if self._num_unplaced:
            self._num_unplaced -= 1
            return True
        return False

    def _places_in(self, text: str) -> set[int]:
        places: set[int] = set()
        place = text.find(self._mark)
        while place >= 0:
            places.add(place)
            place = text.find(self._mark, place + len(self._mark))
        return places

    def _places_of_tokens(self, chunk: Chunk) -> set[int]:
        places: set[int] = set()
        text = b""
        for token, piece in zip(chunk.tokens, self._pieces(chunk.tokens), strict=True):
            if token == self._token:
                places.add(len(text.decode(errors="replace")))
            text += piece
        return places


async def closing_token(tokenizer: Tokenizer, marks: ThoughtMarks | None) -> int | None:
    """Returns the id of the token that ends a thought; None if the mark is no token of its own."""
    if marks is None or marks.channels:
        return None
    tokens = await tokenizer.scaffold(marks.close)
    if len(tokens) != 1 or tokenizer.pieces(tokens) != [marks.close.encode()]:
        return None
    return tokens[0]
