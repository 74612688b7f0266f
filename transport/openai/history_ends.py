"""Remembers the histories behind responses, so that a turn which goes on from a response's id knows the words before.

Two objects a response, and small ones: they are made in the middle of requests, among objects that go with them, and
what stays of each request keeps memory around it from being given back.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

import msgspec

ENDS_MAX: Final = 20_000


class HistoryEnd(NamedTuple):
    """Identifies a history that ends with a response: its hash chains, and the ids of the response's calls."""

    root: bytes  # the chain before the first message
    chain: bytes  # the chain behind the response
    calls: tuple[str, ...] = ()


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(HistoryEnd).decode


class HistoryEnds:
    """The histories that end with the newest `ENDS_MAX` responses, by the response's id."""

    def __init__(self) -> None:
        self._packed: dict[str, bytes] = {}
        self._oldest: deque[str] = deque()

    def __contains__(self, response_id: str) -> bool:
        return response_id in self._packed

    def put(self, response_id: str, end: HistoryEnd) -> None:
        if response_id not in self._packed:
            self._oldest.append(response_id)
        self._packed[response_id] = _encode(end)
        if len(self._oldest) > ENDS_MAX:
            del self._packed[self._oldest.popleft()]

    def get(self, response_id: str) -> HistoryEnd | None:
        packed = self._packed.get(response_id)
        return None if packed is None else _decode(packed)
