"""Acquires sessions for a replica (claim, grant, load) and knows when ownership must be confirmed again.

The directory's claim only spares a race; the journal's grant decides (I1). When the directory is away, a session may be
taken by the journal's grant alone if no other owner is possible: it is new, its last grant was ours, or the requester
has lost the owner that the last grant names. Such a session is claimed once the directory is back (`reclaim`).

What this replica believes to own can be wrong without its noticing: it was stopped for a while (SIGSTOP, a pause of the
machine), or it lost its lease. Then `certain` is False, and nothing is answered for a session until the journal has
confirmed its fence. Writes need no such care: their fence is checked in their own transaction.

After: Burrows' Chubby (2006) for fences; Gray and Cheriton (1989) for what a lease does and does not prove.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec
import structlog

from sessions.actor.model_router import ModelSwitchPlan
from sessions.clock import Clock
from sessions.machine.state import State, apply, empty, replay
from sessions.model.errors import Fenced, OutcomeUnknown, SessileError, Unavailable
from sessions.model.events import Record
from sessions.model.journal_types import Head, Loaded
from sessions.model.types import ActivationId, Epoch, ReplicaId, SessionKey
from sessions.ports import Claim, Directory, Journal, Owner
from sessions.routing.turn_facts import PoolState

log = structlog.get_logger(__name__)

ATTEMPTS: Final = 4
READ_PAGE: Final = 1_000
UNRELEASED_MAX: Final = 100_000  # beyond it the oldest lapse with the lease
TICK_S: Final = 0.25
STOOD_STILL_S: Final = 1.0  # shorter than others need to take us for dead


class Moved(Exception):
    """Raised if another replica holds the session: an ordinary answer, after which the router goes to that replica.
    `owner` is None if it is not known."""

    def __init__(self, owner: Owner | None) -> None:
        super().__init__(owner.replica if owner is not None else "?")
        self.owner = owner


class Identity(NamedTuple):
    """The name of one replica process; its incarnation is new at every start."""

    replica: ReplicaId
    incarnation: str


async def _no_owner(key: SessionKey, head: Head) -> None:
    return


async def _no_announcement(key: SessionKey) -> None:
    return


async def _nobody_to_question(key: SessionKey, owner: Owner, fence: int) -> None:
    return


@dataclass(frozen=True, slots=True)
class Peers:
    """The functions by which a replica's actors reach the rest of the cluster. By default there is no other replica.

    `must_confirm` returns whether our lease has run out by our own clock (`actors.cluster.membership`). `find_owner`
    returns the owner that still has a session which the directory may have forgotten. `question_owner` makes an owner
    that the directory names, and that was replaced under a newer fence, find that out (both:
    `actors.cluster.previous_owner`). `announce_deletion` has other replicas release their KV of a deleted session.
    `pool_states` returns the state of each model's pool. `switch_model` takes a session to another model
    (`actors.handoff.model_switch`).
    """

    must_confirm: Callable[[], bool] = lambda: False
    find_owner: Callable[[SessionKey, Head], Awaitable[Owner | None]] = _no_owner
    question_owner: Callable[[SessionKey, Owner, int], Awaitable[None]] = _nobody_to_question
    announce_deletion: Callable[[SessionKey], Awaitable[None]] = _no_announcement
    pool_states: Callable[[], Mapping[str, PoolState]] | None = None
    switch_model: Callable[[SessionKey, ModelSwitchPlan], Awaitable[Owner | None]] | None = None


class ActivatedSession(msgspec.Struct, frozen=True):
    """A session that this replica has just taken: its entry in the directory, its head with the granted fence, its
    state, and the loaded data from which the state was made."""

    owner: Owner
    head: Head
    state: State
    loaded: Loaded


class Ownership:
    """Takes sessions for one replica and gives them back, and knows whether its ownership of each is confirmed."""

    def __init__(
        self, identity: Identity, *, journal: Journal, directory: Directory, clock: Clock, peers: Peers | None = None
    ) -> None:
        self._identity = identity
        self._journal = journal
        self._directory = directory
        self._clock = clock
        self._peers = peers or Peers()
        self._held: dict[SessionKey, Owner] = {}
        self._unclaimed: dict[SessionKey, None] = {}
        self._unreleased: dict[tuple[SessionKey, Owner], None] = {}  # entries that could not be given back yet
        self._generation = 0
        self._confirmed: dict[SessionKey, int] = {}
        self._ticked_at: float | None = None

    def owner(self, key: SessionKey) -> Owner | None:
        return self._held.get(key)

    # -- taking ----------------------------------------------------------------------------------------------------

    async def acquire(self, key: SessionKey, head: Head | None, *, instead_of: Owner | None = None) -> ActivatedSession:
        """Claims a session, is granted the next fence and loads it. Raises Moved if another replica holds it,
        Unavailable if that cannot be decided now.

        The directory may have forgotten an owner that lives (it was emptied, or failed over), so the owner that the
        journal names is queried first.

        `head` is the session's head as the caller has read it; `instead_of` is the owner that is to be replaced
        (hand-off, early takeover). Any failure after the claim gives the claim back.
        """
        owner = Owner(*self._identity, ActivationId(self._clock.new_id()))
        generation = self._generation
        await self._check_previous_owner(key, head, instead_of)
        await self._claim(key, owner, head, instead_of)
        try:
            granted = await self._grant(key, owner, head, instead_of)
            if head is None and granted.fence == 1 and not granted.top:  # the grant made it: there is nothing to read
                loaded = Loaded(granted, None, (), (), True)
                state = replay(loaded)
            else:
                state, loaded = await self._load(key, granted)
        except BaseException:
            await self._give_back(key, owner)
            raise
        self._held[key] = owner
        self._confirmed[key] = generation
        return ActivatedSession(owner, granted, state, loaded)

    @asynccontextmanager
    async def granted(self, key: SessionKey, head: Head, *, instead_of: Owner | None = None) -> AsyncIterator[Head]:
        """Claims a session, gets its next fence and yields its head, without loading it. The end of the context gives
        the claim back. Raises like `acquire`."""
        owner = Owner(*self._identity, ActivationId(self._clock.new_id()))
        await self._check_previous_owner(key, head, instead_of)
        await self._claim(key, owner, head, instead_of)
        try:
            yield await self._grant(key, owner, head, instead_of)
        finally:
            await self._give_back(key, owner)

    async def _claim(self, key: SessionKey, owner: Owner, head: Head | None, instead_of: Owner | None) -> None:
        try:
            claim = await self._claimed(key, owner, instead_of)
        except BaseException as error:
            if isinstance(error, Unavailable) and self._goes_by_journal(head, instead_of):
                log.warning("claim_skipped", session=key.session, tenant=key.tenant, error=error.code)
                self._unclaimed[key] = None
                return
            if isinstance(error, OutcomeUnknown) or not isinstance(error, Unavailable):  # it may stand
                await self._give_back(key, owner)
            raise
        if not claim.won:
            raise Moved(claim.owner)

    async def _claimed(self, key: SessionKey, owner: Owner, instead_of: Owner | None) -> Claim:
        """Claims a session in place of `instead_of`, or of an older activation of this process. The returned claim may
        be lost to another replica."""
        claim = await self._claim_with_retries(key, owner, instead_of)
        if not claim.won and self.is_ours(claim.owner):
            claim = await self._claim_with_retries(key, owner, claim.owner)
        return claim

    async def _claim_with_retries(self, key: SessionKey, owner: Owner, instead_of: Owner | None) -> Claim:
        """Claims a session; a claim of unknown outcome is repeated, which is harmless. Raises OutcomeUnknown if the
        claim may stand, another Unavailable if it does not."""
        unknown: OutcomeUnknown | None = None
        for _ in range(ATTEMPTS):
            try:
                return await self._directory.claim(key, owner, instead_of=instead_of)
            except OutcomeUnknown as error:
                unknown = error
            except Unavailable as error:
                raise unknown or error from None
        assert unknown is not None
        raise unknown

    def is_ours(self, owner: Owner) -> bool:
        """Returns whether an owner is this process, in any of its activations of the session."""
        return (owner.replica, owner.incarnation) == self._identity

    def _goes_by_journal(self, head: Head | None, instead_of: Owner | None) -> bool:
        if head is None or head.top == 0:
            return True
        if last_replica(head) == self._identity.replica:
            return True
        return instead_of is not None and head.owner == owner_label(instead_of)

    async def _check_previous_owner(self, key: SessionKey, head: Head | None, instead_of: Owner | None) -> None:
        """Raises Moved if the owner that the journal names lives and has the session, unless it is to be replaced."""
        if head is None or head.top == 0:
            return
        if instead_of is not None and head.owner == owner_label(instead_of):
            return
        owner = await self._peers.find_owner(key, head)
        if owner is not None:
            raise Moved(owner)

    async def _grant(self, key: SessionKey, owner: Owner, head: Head | None, instead_of: Owner | None) -> Head:
        """Gets a session's next fence by compare-and-swap on its last one; after a race or an unknown outcome, reads
        the head again."""
        for _ in range(ATTEMPTS):
            try:
                return await self._journal.grant(
                    key,
                    expected_fence=None if head is None else head.fence,
                    owner=owner_label(owner),
                    new_epoch=Epoch(self._clock.new_id()),
                    now_ms=self._clock.now_ms(),
                )
            except (Fenced, OutcomeUnknown):
                before, head = head, await self._journal.head(key)
                if head is not None and head.owner == owner_label(owner):
                    return head  # it had been granted
                if before is None or head is None or head.owner != before.owner:
                    await self._check_previous_owner(key, head, instead_of)
        raise session_moving_error()

    async def _load(self, key: SessionKey, granted: Head) -> tuple[State, Loaded]:
        loaded = await self._journal.load(key, now_ms=self._clock.now_ms())
        if loaded is None or loaded.head.fence != granted.fence:
            raise session_moving_error()
        try:
            state = replay(loaded)
        except ValueError:
            log.warning("snapshot_rejected", session=key.session, tenant=key.tenant)
            state = empty(key, user=granted.user, listed=granted.listed)
            for record in await self._whole_log(key):
                apply(state, record)
        if state.top != granted.top:
            raise AssertionError(f"{key}: the log ends at {state.top}, its head at {granted.top}")
        return state, loaded

    async def _whole_log(self, key: SessionKey) -> list[Record]:
        records: list[Record] = []
        while True:
            after = records[-1].offset if records else 0
            page = await self._journal.read(key, after=after, limit=READ_PAGE, bytes_max=1 << 24)
            if page is None or not page.records:
                return records
            records.extend(page.records)

    # -- giving back -----------------------------------------------------------------------------------------------

    def drop(self, key: SessionKey) -> Owner:
        """Forgets a session that leaves memory. Returns the owner that it had here, whose directory entry the caller
        must still release."""
        self._unclaimed.pop(key, None)
        self._confirmed.pop(key, None)
        return self._held.pop(key)

    async def release(self, key: SessionKey, owner: Owner) -> None:
        """Releases the directory's entry, unless this process has the session again. Never raises SessileError."""
        if key not in self._held:
            await self._release(key, owner)

    async def _give_back(self, key: SessionKey, owner: Owner) -> None:
        """Releases a claim that was made, or may have been made, on a session that did not become ours. Completes even
        if cancelled."""
        self._unclaimed.pop(key, None)
        await asyncio.shield(self._release(key, owner))

    async def _release(self, key: SessionKey, owner: Owner) -> None:
        try:
            await self._directory.release(key, owner)
        except SessileError as error:  # the fence stands against it, but who believes it does not find the session
            self._unreleased[key, owner] = None
            while len(self._unreleased) > UNRELEASED_MAX:
                del self._unreleased[next(iter(self._unreleased))]
            log.warning("release_failed", session=key.session, error=error.code)

    async def retry_releases(self) -> None:
        """Releases entries that could not be released before. Raises Unavailable; those that remain are tried at the
        next call.

        An entry whose session this process has again is not touched: the new claim has replaced it.
        """
        for key, owner in list(self._unreleased):
            if key not in self._held:
                await self._directory.release(key, owner)
                self._unreleased.pop((key, owner), None)

    async def reclaim(self, among: Callable[[SessionKey], bool] | None = None) -> dict[SessionKey, Owner]:
        """Claims sessions again whose claims the directory may have lost: those that `among` picks, and those that
        could not be claimed before. Returns the sessions for which the directory names another owner, with that owner;
        these need the journal's confirmation, and are claimed again at the next call. Raises Unavailable."""
        keys = [key for key in self._held if key in self._unclaimed or (among is not None and among(key))]
        self._unclaimed.update(dict.fromkeys(keys))  # so that what fails here is tried again
        contested = dict[SessionKey, Owner]()
        for key in keys:
            owner = self._held.get(key)
            if owner is None:
                continue
            claim = await self._claimed(key, owner, None)
            if self._held.get(key) != owner:  # it has left meanwhile, and may be here anew: this claim is void
                await self._release(key, owner)
                if key in self._held:
                    self._unclaimed[key] = None
            elif claim.won:
                self._unclaimed.pop(key, None)
            else:
                log.info("claim_contested", session=key.session, tenant=key.tenant, owner=claim.owner.replica)
                self._confirmed.pop(key, None)
                contested[key] = claim.owner
        return contested

    async def reclaim_one(self, key: SessionKey) -> None:
        """Claims a session again after a failed hand-off; what fails now is done by the next `reclaim`. Raises nothing.

        The claim is never taken from the target, whose grant may be on its way.
        """
        if key in self._held:
            try:
                await self.reclaim(lambda other: other == key)
            except SessileError as error:
                log.warning("reclaim_failed", session=key.session, tenant=key.tenant, error=error.code)

    # -- confirmation
    # -----------------------------------------------------------------------------------------------------

    def tick(self) -> bool:
        """Notes that this process runs; to be called every TICK_S. Returns True if the process stood still since the
        last call."""
        stalled = self._stalled()
        self._ticked_at = asyncio.get_running_loop().time()
        return stalled

    def invalidate(self) -> None:
        """Withdraws what is known of all sessions: before it is served again, each must be confirmed by the journal to
        be ours."""
        self._generation += 1

    def _stalled(self) -> bool:
        if self._ticked_at is None:
            return False
        return asyncio.get_running_loop().time() - self._ticked_at > TICK_S + STOOD_STILL_S

    def is_confirmed(self, key: SessionKey) -> bool:
        """Returns whether answers may be given for a session without reading the journal first."""
        return self._confirmed.get(key) == self._generation and not self._peers.must_confirm() and not self._stalled()

    async def confirm(self, key: SessionKey, fence: int) -> bool:
        """Returns whether the journal has the session under our `fence`. Raises Unavailable, and then nothing may be
        answered for the session."""
        generation = self._generation
        head = await self._journal.head(key)
        if head is None or head.fence != fence:
            return False
        if key in self._held:
            self._confirmed[key] = generation
        return True


def owner_label(owner: Owner) -> str:
    """Returns the text of `Head.owner` after a grant to `owner`."""
    return f"{owner.replica}/{owner.activation}"


def last_replica(head: Head) -> str:
    """Returns the replica that the journal granted the session to last, "" if to none."""
    return head.owner.rpartition("/")[0]


def activation_reason(head: Head | None, replica: ReplicaId, instead_of: Owner | None, *, handed_off: bool) -> str:
    """Returns in words why a session is activated at `replica`. `head` is what the journal had before the grant,
    `instead_of` the owner that is replaced, if any."""
    if head is None or head.top == 0:
        return "new"
    if instead_of is not None:
        return f"{'handed off by' if handed_off else 'taken over from'} {instead_of.replica}"
    last = last_replica(head)
    return "woken where it was last" if last == replica else f"woken, was last at {last or 'nobody'}"


def activation_cause(head: Head | None, *, same: bool, replaced: bool, handed_off: bool) -> str:
    """Returns the cause of an activation in one of a few fixed words, for metrics. `same`: the last grant was this
    replica's. `replaced`: the session is taken from a lost owner. A failover is `takeover` if the lost owner's lease
    had not ended, else `orphaned`."""
    if handed_off:
        return "handoff"
    if head is None or head.top == 0:
        return "new"
    if replaced:
        return "takeover"
    if head.open:
        return "restart" if same else "orphaned"
    return "woken"


def session_moving_error() -> Unavailable:
    return Unavailable("session_moving", "The session is changing hands.", retry_after_ms=200)
