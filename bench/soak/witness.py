"""Holds conversations that ended long ago against the journal, again and again: nothing of them may change.

What clients were sent is judged chapter by chapter (`testbed.chaos.verdict`); this remembers a digest of the log
that was right then, and reads it again later. Keeps at most `KEPT` conversations.
"""

from __future__ import annotations

import hashlib
import random
from typing import Final, NamedTuple

import msgspec

from sessions.ports import Journal
from testbed.chaos.cluster import key_of
from testbed.chaos.verdict import Log, log_of

KEPT: Final = 200


class _Remembered(NamedTuple):
    epoch: str
    length: int
    digest: bytes


class Witness:
    def __init__(self, journal: Journal, rng: random.Random) -> None:
        self._journal = journal
        self._rng = rng
        self._remembered: dict[str, _Remembered] = {}
        self.looks = 0

    async def remember(self, session: str) -> None:
        log = await log_of(self._journal, key_of(session))
        if len(self._remembered) >= KEPT:
            del self._remembered[self._rng.choice(list(self._remembered))]
        self._remembered[session] = _Remembered(log.epoch, len(log.events), _digest(log, len(log.events)))

    async def look(self, count: int) -> list[str]:
        """Reads so many of them again; what has changed."""
        findings = []
        chosen = self._rng.sample(list(self._remembered), min(count, len(self._remembered)))
        for session in chosen:
            before, log = self._remembered[session], await log_of(self._journal, key_of(session))
            self.looks += 1
            if log.epoch != before.epoch:
                findings.append(f"{session}: its epoch was {before.epoch} and is {log.epoch}")
            elif len(log.events) < before.length:
                findings.append(f"{session}: its log had {before.length} events and has {len(log.events)}")
            elif _digest(log, before.length) != before.digest:
                findings.append(f"{session}: what stood in its first {before.length} events has changed")
        return findings


def _digest(log: Log, length: int) -> bytes:
    return hashlib.blake2b(msgspec.json.encode(log.events[:length]), digest_size=16).digest()
