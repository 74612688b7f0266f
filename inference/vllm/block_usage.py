"""Estimates what of each session lies in vLLM's blocks, and what a tenant holds there.

vLLM evicts as it sees fit and does not report it, so this is an upper bound: the sessions used last whose blocks fit
the device together. A session's stay has a tag, which is its cache salt. Forgetting a tag makes its blocks unreachable
at once; that they are dropped, or that a parked session's go first, the connector learns with the next run.

For the bound on a tenant's KV (`inference.kv.tenant_quota`) tokens that a snapshot covers are counted there and not
again. A session is counted, and may go, when it is at rest: what a run has left is then saved or will not be. Does not
know vLLM.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Final

from sessions.model.types import SessionKey, TenantId

TAGS_MAX: Final = 100_000  # of more sessions than that the oldest begin a new stay when they come back


class BlockUsage:
    """Implements `DeviceKv`."""

    def __init__(
        self,
        block_tokens: int,
        is_busy: Callable[[SessionKey], bool],
        *,
        device_tokens: int = 0,
        token_bytes: float = 0.0,
        covered: Callable[[SessionKey], int] = lambda key: 0,
    ) -> None:
        """`device_tokens`: that the device has room for. `covered`: tokens of a session that a snapshot holds."""
        self.device_tokens = device_tokens
        self._block_tokens = block_tokens
        self._is_busy = is_busy
        self._token_bytes = token_bytes
        self._covered = covered
        self._tokens: OrderedDict[SessionKey, int] = OrderedDict()  # the session used longest ago first
        self._tags: OrderedDict[SessionKey, str] = OrderedDict()  # likewise
        self._forget: list[str] = []
        self._retire: list[str] = []

    @property
    def sessions(self) -> Collection[SessionKey]:
        return self._tokens.keys()

    def tokens(self, key: SessionKey) -> int:
        return self._tokens.get(key, 0)

    @property
    def total_tokens(self) -> int:
        return sum(self._tokens.values())

    def tag(self, key: SessionKey) -> str:
        """Of the session's present stay, which begins here if it must."""
        tag = self._tags.setdefault(key, secrets.token_hex(16))
        self._tags.move_to_end(key)
        while len(self._tags) > TAGS_MAX:
            oldest = next(iter(self._tags))
            if self._is_busy(oldest):
                self._tags.move_to_end(oldest)
                break
            self._tokens.pop(oldest, None)  # vLLM has long evicted what lay under its tag
            del self._tags[oldest]
        return tag

    def stays(self, key: SessionKey, tag: str) -> bool:
        return self._tags.get(key) == tag

    def note(self, key: SessionKey, tokens: int) -> None:
        """A run has left so many tokens of a session on the device."""
        self._tokens[key] = tokens - tokens % self._block_tokens
        self._tokens.move_to_end(key)
        total = self.total_tokens
        while total > self.device_tokens and len(self._tokens) > 1:
            total -= self._tokens.popitem(last=False)[1]

    def forget(self, key: SessionKey) -> None:
        self._tokens.pop(key, None)
        tag = self._tags.pop(key, None)
        if tag is not None:
            self._forget.append(tag)

    def park(self, key: SessionKey) -> None:
        tag = self._tags.get(key)
        if tag is not None:
            self._retire.append(tag)

    def take_notices(self, tag: str) -> tuple[list[str], list[str]]:
        """What the connector must hear with a run under `tag`: tags to forget, and tags whose blocks go first."""
        forget, self._forget = self._forget, []
        retire, self._retire = [parked for parked in self._retire if parked != tag], []
        return forget, retire

    def return_notices(self, forget: list[str], retire: list[str]) -> None:
        """The run never got there: the next one takes it along."""
        self._forget += forget
        self._retire += retire

    # -- a tenant's share ------------------------------------------------------------------------------

    def bytes_of(self, tenant: TenantId) -> tuple[int, int]:
        """All that counts could go."""
        held = sum(self._unsaved(key) for key in self._tokens if key.tenant == tenant)
        return held, held

    def shed(self, tenant: TenantId) -> bool:
        """Forgets the session at rest that was used longest ago; False: none holds anything of its own."""
        for key in self._tokens:
            if key.tenant == tenant and self._unsaved(key):
                self.forget(key)
                return True
        return False

    def _unsaved(self, key: SessionKey) -> int:
        return 0 if self._is_busy(key) else int(max(0, self._tokens[key] - self._covered(key)) * self._token_bytes)
