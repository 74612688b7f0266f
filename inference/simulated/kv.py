"""Holds what the simulated device remembers: whole token sequences per session, bounded in tokens and in number.

A sequence that another one of the same session begins with is not kept twice, otherwise nothing is shared: a
branch costs its whole length. What a run may reuse of another session of its scope is taken as copied. Eviction takes
the least recently used sequence; parked sessions go first. Sequences in use by a running generation are not here, so
they are never evicted.
"""

from __future__ import annotations

import array
from collections import OrderedDict
from collections.abc import Collection, Iterable
from typing import Final

from inference.kv.index import PrefixIndex
from inference.tokens import common_prefix
from sessions.model.types import SessionKey, TenantId

SEQUENCES_MAX: Final = 2_048  # as a device has slots and blocks: short sequences do not fill it one by one


class DeviceMemory:
    """The KV of sessions on the simulated device; at most `tokens_max` tokens and `SEQUENCES_MAX` sequences after each
    call."""

    def __init__(self, tokens_max: int) -> None:
        self.tokens_max = tokens_max
        self.tokens = 0
        self.evictions = 0
        self._sequences: OrderedDict[tuple[SessionKey, int], array.array[int]] = OrderedDict()
        self._of_session: dict[SessionKey, list[int]] = {}
        self._scope_of: dict[tuple[SessionKey, int], tuple[TenantId, bytes]] = {}
        self._scopes: dict[tuple[TenantId, bytes], PrefixIndex[tuple[SessionKey, int]]] = {}
        self._next = 0

    @property
    def sessions(self) -> Collection[SessionKey]:
        return self._of_session.keys()

    def longest(self, key: SessionKey) -> array.array[int] | None:
        """Returns the longest sequence of a session; not a copy."""
        return max(self.of(key), key=len, default=None)

    def of(self, key: SessionKey) -> list[array.array[int]]:
        """Returns the sequences of a session; not copies."""
        return [self._sequences[key, number] for number in self._of_session.get(key, ())]

    def take(self, key: SessionKey, prompt: array.array[int], scope: bytes = b"") -> int:
        """Returns how many leading tokens of `prompt` are held by a sequence of the session or of its scope.

        A sequence of the session that is itself a prefix of `prompt` is taken out, because the run continues it and
        will `put` it back longer. One that only begins alike (another branch) stays and counts as used."""
        best, found = 0, -1
        for number in self._of_session.get(key, ()):
            shared = common_prefix(self._sequences[key, number], prompt)
            if shared > best:
                best, found = shared, number
        if found >= 0:
            if len(self._sequences[key, found]) == best:
                self._drop(key, found)
            else:
                self._sequences.move_to_end((key, found))
        near = self._scopes.get((key.tenant, scope)) if scope else None
        return best if near is None else max(best, near.nearest(prompt)[1])

    def put(self, key: SessionKey, sequence: array.array[int], scope: bytes = b"") -> None:
        """Stores `sequence` without copying it, unless it is longer than the memory; evicts others to make room."""
        if not sequence or len(sequence) > self.tokens_max:
            return
        for number in tuple(self._of_session.get(key, ())):
            held = self._sequences[key, number]
            shared = common_prefix(held, sequence)
            if shared == len(sequence):
                self._sequences.move_to_end((key, number))
                return
            if shared == len(held):
                self._drop(key, number)
        while self.tokens + len(sequence) > self.tokens_max or len(self._sequences) >= SEQUENCES_MAX:
            self._drop(*next(iter(self._sequences)))
            self.evictions += 1
        self._next += 1
        self._sequences[key, self._next] = sequence
        self._of_session.setdefault(key, []).append(self._next)
        self.tokens += len(sequence)
        if scope:
            name = self._scope_of[key, self._next] = key.tenant, scope
            self._scopes.setdefault(name, PrefixIndex()).add(sequence, (key, self._next))

    def shrink_to(self, tokens_max: int) -> None:
        """Evicts until at most `tokens_max` tokens are held."""
        while self.tokens > tokens_max:
            self._drop(*next(iter(self._sequences)))
            self.evictions += 1

    def park(self, key: SessionKey) -> None:
        for number in self._of_session.get(key, ()):
            self._sequences.move_to_end((key, number), last=False)

    def erase(self, key: SessionKey) -> None:
        for number in tuple(self._of_session.get(key, ())):
            self._drop(key, number)

    def _drop(self, key: SessionKey, number: int) -> None:
        sequence = self._sequences.pop((key, number))
        self.tokens -= len(sequence)
        scope = self._scope_of.pop((key, number), None)
        if scope is not None:
            self._scopes[scope].remove(sequence, (key, number))
            if not len(self._scopes[scope]):
                del self._scopes[scope]
        numbers = self._of_session[key]
        numbers.remove(number)
        if not numbers:
            del self._of_session[key]


def longest_shared(prompt: array.array[int], sequences: Iterable[array.array[int]]) -> array.array[int] | None:
    """Returns the sequence that shares most leading tokens with `prompt`; None where none shares any."""
    best = max(sequences, key=lambda sequence: common_prefix(sequence, prompt), default=None)
    return best if best is not None and common_prefix(best, prompt) else None
