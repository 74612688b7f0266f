"""Estimates what of each session lies in vLLM's blocks, and what a tenant holds there.

vLLM evicts as it sees fit and does not report it, so this is an upper bound: the sessions used last whose blocks fit
the device together. A session's stay has a tag, which is its cache salt. Forgetting a tag makes its blocks unreachable
at once; that they are dropped, or that a parked session's go first, the connector learns with the next run.

Sessions of a tenant that begin with the same whole blocks of instructions and tools share these: their stays name the
same opening, whose tag salts them (`block_salts`). Which one is decided by a stay's first run and holds for all of it,
so that a change of the instructions computes what stands behind it. The opening is forgotten with its last stay.

For the bound on a tenant's KV (`inference.kv.tenant_quota`) tokens that a snapshot covers are counted there and not
again. A session is counted, and may go, when it is at rest: what a run has left is then saved or will not be. Does not
know vLLM.
"""

from __future__ import annotations

import array
import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Final

from sessions.model.types import SessionKey, TenantId, pack_tokens

TAGS_MAX: Final = 100_000  # with more sessions the oldest lose their tag and get a new one when they come back


class _Opening:
    """A prefix (instructions and tools) that several sessions of a tenant share on the device."""

    __slots__ = ("digest", "num_resident", "sessions", "tag", "tokens")

    def __init__(self, digest: bytes, tokens: int) -> None:
        self.digest = digest
        self.tokens = tokens
        self.tag = secrets.token_hex(16)
        self.sessions: set[SessionKey] = set()
        self.num_resident = 0  # how many of these have tokens on the device


class _Beginning:
    """The shared prefix of one session, if any; and how many tokens of it the session's last run used, with their
    digest."""

    __slots__ = ("digest", "opening", "tokens")

    def __init__(self, opening: _Opening | None) -> None:
        self.opening = opening
        self.tokens = 0
        self.digest = b""


class BlockUsage:
    """Estimates which sessions have how many tokens on vLLM's device. Implements `DeviceKv`. It has a method for
    each event in the life of a run's blocks, besides the port's."""

    def __init__(
        self,
        block_tokens: int,
        is_busy: Callable[[SessionKey], bool],
        *,
        device_tokens: int = 0,
        token_bytes: float = 0.0,
        covered: Callable[[SessionKey], int] = lambda key: 0,
    ) -> None:
        """`device_tokens`: how many tokens the device has room for. `token_bytes`: the size of a token's KV. `covered`
        returns how many leading tokens of a session a snapshot covers."""
        self.device_tokens = device_tokens
        self._block_tokens = block_tokens
        self._is_busy = is_busy
        self._token_bytes = token_bytes
        self._covered = covered
        self._tokens: OrderedDict[SessionKey, int] = OrderedDict()  # the session used longest ago first
        self._tags: OrderedDict[SessionKey, str] = OrderedDict()  # in the same order
        self._total_tokens = 0
        self._openings: dict[TenantId, dict[bytes, _Opening]] = {}  # by digest
        self._beginnings: dict[SessionKey, _Beginning] = {}
        self._forget: list[str] = []
        self._retire: list[str] = []

    @property
    def sessions(self) -> Collection[SessionKey]:
        return self._tokens.keys()

    def tokens(self, key: SessionKey) -> int:
        return self._tokens.get(key, 0)

    @property
    def total_tokens(self) -> int:
        """How many tokens all sessions have on the device; shared ones count once."""
        return self._total_tokens

    def tag(self, key: SessionKey) -> str:
        """Returns the session's tag: the random text that salts its blocks in vLLM's prefix cache. Makes a new one if
        the session has none."""
        tag = self._tags.setdefault(key, secrets.token_hex(16))
        self._tags.move_to_end(key)
        while len(self._tags) > TAGS_MAX:
            oldest = next(iter(self._tags))
            if self._is_busy(oldest):
                self._tags.move_to_end(oldest)
                break
            self._drop(oldest)  # vLLM has long evicted what lay under its tag
            del self._tags[oldest]
            self._leave_opening(oldest)
        return tag

    def share(self, key: SessionKey, prompt: array.array[int], shared_tokens: int) -> tuple[str, int]:
        """Returns the tag of the prefix (instructions and tools) that the session shares with others, and how many
        leading blocks of the prompt that tag salts; ("", 0) if the session shares none. `shared_tokens`: how many
        leading tokens of the prompt are instructions and tools; 0 if the caller does not know."""
        count = min(shared_tokens, len(prompt) - 1) // self._block_tokens * self._block_tokens
        held = self._beginnings.get(key)
        if held is None:
            count = count if shared_tokens else self._known_opening(key.tenant, prompt)
            held = self._beginnings[key] = _Beginning(self._join_opening(key, prompt[:count]) if count else None)
        elif not shared_tokens and held.tokens < len(prompt) and _digest(prompt[: held.tokens]) == held.digest:
            count = held.tokens
        if held.opening is None or not count:
            return "", 0
        held.tokens, held.digest = count, _digest(prompt[:count])
        return held.opening.tag, count // self._block_tokens

    def resident(self, key: SessionKey) -> int:
        """Returns how many leading tokens of a session are expected to be on the device, in its own blocks or in those
        of its shared prefix."""
        opening = self._opening_of(key)
        return max(self.tokens(key), opening.tokens if opening is not None and opening.num_resident else 0)

    def _opening_of(self, key: SessionKey) -> _Opening | None:
        held = self._beginnings.get(key)
        return held.opening if held is not None else None

    def _known_opening(self, tenant: TenantId, prompt: array.array[int]) -> int:
        """Returns the length of the tenant's longest shared prefix that the prompt begins with."""
        openings = self._openings.get(tenant, {})
        lengths = {opening.tokens for opening in openings.values() if opening.tokens < len(prompt)}
        hashed, begin, longest = _hasher(), 0, 0
        for length in sorted(lengths):  # each goes on where the one before it ended: the prompt is hashed once
            hashed.update(pack_tokens(prompt[begin:length]))
            begin = length
            if hashed.digest() in openings:
                longest = length
        return longest

    def _join_opening(self, key: SessionKey, tokens: array.array[int]) -> _Opening:
        digest = _digest(tokens)
        opening = self._openings.setdefault(key.tenant, {}).setdefault(digest, _Opening(digest, len(tokens)))
        opening.sessions.add(key)
        return opening

    def _leave_opening(self, key: SessionKey) -> None:
        held = self._beginnings.pop(key, None)
        if held is not None and held.opening is not None:
            held.opening.sessions.discard(key)
            if not held.opening.sessions:
                openings = self._openings[key.tenant]
                del openings[held.opening.digest]
                if not openings:
                    del self._openings[key.tenant]
                self._forget.append(held.opening.tag)

    def stays(self, key: SessionKey, tag: str) -> bool:
        return self._tags.get(key) == tag

    def note(self, key: SessionKey, tokens: int) -> None:
        """Notes that a run has left so many tokens of a session on the device."""
        self._drop(key)
        self._hold(key, tokens - tokens % self._block_tokens)
        while self._total_tokens > self.device_tokens and len(self._tokens) > 1:
            self._drop(next(iter(self._tokens)))

    def _hold(self, key: SessionKey, tokens: int) -> None:
        """Counts `tokens` tokens for a session that has none on the device so far. The session's shared prefix must
        have been noted before."""
        self._tokens[key] = tokens
        self._total_tokens += tokens
        opening = self._opening_of(key)
        if opening is not None:
            self._total_tokens -= opening.tokens if opening.num_resident else 0
            opening.num_resident += 1

    def _drop(self, key: SessionKey) -> None:
        """Stops counting a session's tokens, if it has any. Must be called before the session leaves its shared
        prefix."""
        if key not in self._tokens:
            return
        self._total_tokens -= self._tokens.pop(key)
        opening = self._opening_of(key)
        if opening is not None:
            opening.num_resident -= 1
            self._total_tokens += opening.tokens if opening.num_resident else 0

    def forget(self, key: SessionKey) -> None:
        self._drop(key)
        tag = self._tags.pop(key, None)
        if tag is not None:
            self._forget.append(tag)
        self._leave_opening(key)

    def clear(self, device_tokens: int) -> None:
        """Starts over with an empty device. All tags are invalid from now on, and no notices for the connector are
        kept."""
        self.device_tokens = device_tokens
        for held in (self._tokens, self._tags, self._openings, self._beginnings):
            held.clear()
        self._total_tokens, self._forget, self._retire = 0, [], []

    def forget_openings(self, tenant: TenantId) -> None:
        """Forgets a tenant's shared prefixes and all sessions that use them."""
        for opening in list(self._openings.get(tenant, {}).values()):
            for key in list(opening.sessions):
                self.forget(key)

    def park(self, key: SessionKey) -> None:
        tag = self._tags.get(key)
        if tag is not None:
            self._retire.append(tag)

    def first_to_go(self, key: SessionKey) -> SessionKey | None:
        """Returns the session whose blocks would be evicted first if `key` needed room; None if there is room enough
        for the largest session, or no other session is on the device."""
        if self.total_tokens + max(self._tokens.values(), default=0) <= self.device_tokens:
            return None
        return next((other for other in self._tokens if other != key), None)

    def demote(self, key: SessionKey) -> None:
        """Has the session's blocks evicted before all others', until it runs again."""
        self.park(key)
        if key in self._tokens:
            self._tokens.move_to_end(key, last=False)

    def take_notices(self, tag: str) -> tuple[list[str], list[str]]:
        """Returns the tags whose blocks the connector must forget, and those whose blocks it must evict first. A run
        under `tag` delivers them; `tag` itself is never in the second list."""
        forget, self._forget = self._forget, []
        retire, self._retire = [parked for parked in self._retire if parked != tag], []
        return forget, retire

    def return_notices(self, forget: list[str], retire: list[str]) -> None:
        """Takes back the notices of a run that did not deliver them; the next run delivers them."""
        self._forget += forget
        self._retire += retire

    # -- a tenant's share ------------------------------------------------------------------------------

    def bytes_of(self, tenant: TenantId) -> tuple[int, int]:
        """Returns (bytes, bytes): the tenant's KV on the device that no snapshot covers, twice, because `shed` could
        free all of it."""
        held = sum(self._unsaved(key) for key in self._tokens if key.tenant == tenant)
        return held, held

    def shed(self, tenant: TenantId) -> bool:
        """Forgets the tenant's idle session that was used longest ago among those with KV that no snapshot covers.
        Returns False if there is none."""
        for key in self._tokens:
            if key.tenant == tenant and self._unsaved(key):
                self.forget(key)
                return True
        return False

    def _unsaved(self, key: SessionKey) -> int:
        return 0 if self._is_busy(key) else int(max(0, self._tokens[key] - self._covered(key)) * self._token_bytes)


def _hasher(data: bytes = b"") -> hashlib.blake2b:
    return hashlib.blake2b(data, digest_size=16)


def _digest(tokens: array.array[int]) -> bytes:
    return _hasher(pack_tokens(tokens)).digest()
