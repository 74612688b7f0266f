"""A fleet of millions of sessions in batches of a second: what they do in arrays, what is decided by the product.

Each second: what happens to the fleet, answers that end, sessions that leave memory, sessions that talk. A session that
talks and is in memory goes to its owner; one that is not is placed and claimed by the product's own rules, one by one.
Engines are queues (`tests.support.fleet.engines`).

Invariants, checked all along: a session answers one turn at a time, has one owner, and is where the directory says.
It does not know: messages, the journal, cuts and lost answers. Those are `tests.simulation`, at another scale.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import Final

import numpy as np

from actors.cluster.placement import BoundedRendezvous
from actors.directory.common import LEASE_TTL_S
from sessions.limits import Forecast
from sessions.model.types import ReplicaId
from tests.support.fleet.admitting import Admitting, TenantGuard
from tests.support.fleet.balancing import REBALANCE, Balancing
from tests.support.fleet.calendar import Calendar
from tests.support.fleet.engines import Engines
from tests.support.fleet.measured import Measured
from tests.support.fleet.placed import VIEW_S, Placed
from tests.support.fleet.retained import DISK, HOST, NONE, PASS_S, RankTable, RestoreTable, learned, within_bounds
from tests.support.fleet.scenario import LIMITS, LINKS, FleetEvent, Floats, Ints, Scenario, Workload

KILLED_S: Final = 0.05  # the other side of a closed connection is dialed once, and refuses
SILENT_S: Final = LINKS.quick_beat_s * (1 + LINKS.knock_after_beats + LINKS.knock_beats)  # at most
HOT_TENANT: Final = 0
_PASSES: Final = 30


class Fleet:
    """`run` once."""

    def __init__(
        self,
        scenario: Scenario,
        workload: Workload | None = None,
        placement: type[BoundedRendezvous] = BoundedRendezvous,
    ) -> None:
        self.scenario = scenario
        self.rng = np.random.default_rng(scenario.seed)
        self.workload = workload or Workload(scenario, self.rng)
        count, replicas = scenario.sessions, scenario.replicas
        self.placed = Placed(scenario, placement)
        self.engines = Engines(scenario.engine, replicas)
        self.measured = Measured()
        self._costs = RestoreTable(scenario.engine.costs(), scenario.engine)
        self._admitting = Admitting(scenario.ttft_ms)
        self._balancing = Balancing(scenario.engine.slots)
        self._guard = TenantGuard(scenario.hot_requests_per_minute)
        self._talks, self._ends, self._idle = (Calendar(scenario.seconds) for _ in range(3))
        self._interrupted: dict[int, list[tuple[Ints, float, float]]] = {}
        self._again: dict[int, list[int]] = {}  # replicas that begin to drain, leave, or come back
        self._leaving: dict[int, list[int]] = {}
        self._back: dict[int, list[int]] = {}
        self._lapses: dict[int, Ints] = {}
        self._suspects: list[ReplicaId] = []
        self._suspected_at = np.full(replicas, np.inf, dtype=np.float32)
        self._recent: deque[Ints] = deque(maxlen=int(REBALANCE.recent_s))
        self._crowded = Counter[int]()
        self._faster = 1.0
        self.up = np.ones(replicas, dtype=np.bool_)
        self.listed = np.ones(replicas, dtype=np.bool_)
        self.owner = np.full(count, -1, dtype=np.int32)
        self.holder = self.rng.integers(0, replicas, count, dtype=np.int32)
        self.tier = np.full(count, HOST, dtype=np.int8)
        self.tokens = self.workload.lengths(count)
        self.turns = np.zeros(count, dtype=np.int8)
        self.ended = np.zeros(count, dtype=np.bool_)  # by their people: the next turn is a new session's
        behind, ahead = self.workload.first_silences(count)
        self.used = -behind
        self.busy_until = -behind
        self.due = np.minimum(ahead, 2**30).astype(np.int32)
        self._ranks = RankTable(learned(self.workload.silences(4_000, 0.0)[0], self.workload.lengths(4_000)))
        self._start()

    # -- running ------------------------------------------------------------------------------------

    def run(self, *, checked: bool = False) -> Measured:
        for now in range(self.scenario.seconds):
            self.tick(now)
            if checked:
                self.check(now)
        return self.measured

    def _start(self) -> None:
        for replica in range(self.scenario.replicas):
            self.placed.joined(replica, 0.0)
        present = np.flatnonzero(self.used > -LIMITS.idle_s).astype(np.int32)
        self.owner[present] = self.holder[present]
        for session in present.tolist():
            self.placed.claim(session, int(self.owner[session]), 0.0)
        self.placed.operations.clear()
        self._talks.add(np.arange(self.scenario.sessions, dtype=np.int32), self.due)
        self._idle.add(present, (self.used[present] + LIMITS.idle_s).astype(np.int32) + 1)
        for phase in range(_PASSES):
            self._retain(0, phase)

    def tick(self, now: int) -> None:
        self._admitting.now_s = float(now)
        self._end_answers(now)
        for event in self.scenario.events:
            if event.at_s == now:
                self._happens(event, now)
        self._move_replicas(now)
        self._leave_memory(now)
        if now % VIEW_S == 0:
            self.placed.views(self.placed.directory.version, self.listed, self.engines.loads)
            self._rebalance(now)
        for sessions, lost_at, from_s in self._interrupted.pop(now, ()):
            self._recover(sessions, lost_at, from_s)
        self._talk(now)
        if now % (PASS_S // _PASSES) == 0:
            self._retain(now, now // (PASS_S // _PASSES) % _PASSES)
        self.measured.sample(now, self.engines.loads[self.up & self.listed], self.placed.operations)

    def check(self, now: int) -> None:
        """Raises AssertionError where an owner is not the directory's, or an answer has no slot. For small fleets."""
        self.placed.directory.check_integrity()
        present = np.flatnonzero(self.owner >= 0)
        assert self.placed.directory.entry_count == len(present), "an entry without its session, or the reverse"
        for session in present.tolist():
            owner = self.placed.directory.locate(self.placed.key(session), now=0.0)
            assert owner is not None and self.placed.owner_number(owner) == self.owner[session]
        running = np.flatnonzero((self.owner >= 0) & (self.busy_until >= now) & self.up[self.owner])
        running = np.bincount(self.owner[running], minlength=len(self.up))
        assert (running == self.engines.in_system).all(), "an answer without its slot, or the reverse"

    # -- talking ------------------------------------------------------------------------------------

    def _talk(self, now: int) -> None:
        sessions = self._talks.pop(now)
        sessions = np.unique(sessions[self.due[sessions] == now]).astype(np.int32)
        at = (now + np.sort(self.rng.random(len(sessions)))).astype(np.float32)
        sessions = self.rng.permutation(sessions)
        if self._faster > 1.0:
            sessions, at = self._guarded(sessions, at)
        begun = self.ended[sessions]
        fresh = sessions[begun]
        self._depart(fresh, now)
        self.ended[fresh] = False
        self.tokens[fresh], self.tier[fresh], self.holder[fresh] = 0, NONE, -1
        at = np.maximum(at, self.busy_until[sessions])
        sessions, at = self._owned(sessions, at)
        prompts, answers = self.workload.prompts(len(sessions)), self.workload.answers(len(sessions))
        self._serve(sessions, at, self.tokens[sessions], prompts, answers)

    def _guarded(self, sessions: Ints, at: Floats) -> tuple[Ints, Floats]:
        """The hot tenant's requests have a bucket; who is refused comes again when it was advised to."""
        kept = np.ones(len(sessions), dtype=np.bool_)
        for index in np.flatnonzero(sessions % self.scenario.tenants == HOT_TENANT).tolist():
            wait_s = self._guard.wait_s(float(at[index]))
            if wait_s:
                kept[index] = False
                self._again_at(sessions[index : index + 1], int(at[index] + wait_s) + 1)
        self.measured.count("limited", int((~kept).sum()))
        return sessions[kept], at[kept]

    def _again_at(self, sessions: Ints, second: int) -> None:
        self.due[sessions] = second
        self._talks.add(sessions, self.due[sessions])

    def _owned(self, sessions: Ints, at: Floats) -> tuple[Ints, Floats]:
        """Has those placed that have no owner, or a lost one; who finds no replica comes again."""
        owner = self.owner[sessions]
        lost = (owner < 0) | ~self.up[owner]
        kept = np.ones(len(sessions), dtype=np.bool_)
        for index in np.flatnonzero(lost).tolist():
            suspected = float(self._suspected_at[owner[index]]) if owner[index] >= 0 else 0.0
            at[index] = max(at[index], suspected)
            kept[index] = self._place(int(sessions[index]), float(at[index]))
        self.measured.count("placed", int(lost.sum()))
        self._again_at(sessions[~kept], int(at.max(initial=0.0)) + 1)
        return sessions[kept], at[kept]

    def _place(self, session: int, now: float) -> bool:
        """As a route does: the directory's owner unless it is suspected, else placement; then the replica claims."""
        lost = self.placed.located(session, now)
        holder = int(self.holder[session])
        if lost is None:
            replica = self.placed.choose(session, holder=holder, avoid=self._suspects)
        else:
            replica = self.placed.choose(session, avoid=[lost.replica, *self._suspects])
        if replica < 0:
            return False
        claim = self.placed.claim(session, replica, now, instead_of=lost)
        assert claim.won, "nobody else claims what is simulated one by one"
        self._owns(session, replica)
        return True

    def _owns(self, session: int, replica: int) -> None:
        self.owner[session] = replica
        if self.holder[session] != replica:
            self.tier[session] = NONE
        self.holder[session] = replica

    def _serve(
        self, sessions: Ints, at: Floats, held: Ints, new: Ints, answers: Ints, *, lost_at: float = -1.0
    ) -> None:
        """`held`: tokens of the conversation so far. `lost_at`: these answers were cut short then and go on."""
        assert not (self.busy_until[sessions] > at).any() or lost_at >= 0, "a session answers one turn at a time"
        context = self.scenario.engine.context
        whole = held + new
        cut = whole + answers > context  # the oldest half is left out, and its KV is of no use
        whole = np.where(cut, context // 2, whole).astype(np.int32)
        tier = np.where(cut, NONE, self.tier[sessions]).astype(np.int8)
        restores, restore_s = self._costs.restores(tier, held)
        resident = (tier == HOST) & (at - self.used[sessions] < 60.0)  # on the device still
        restore_s = np.where(restores & ~resident, restore_s, 0).astype(np.float32)
        cached = np.where((restores | resident) & (tier != NONE), held, 0).astype(np.int32)
        prefill_s = self._costs.prefill_s(cached, whole)
        replica = self.owner[sessions]
        for each in self.engines.rounds(replica):
            slot, start, first = self.engines.begin(replica[each], at[each], restore_s[each], prefill_s[each])
            tpot = self.engines.tpot_s(replica[each])
            kept = self._admitted(sessions[each], replica[each], at[each], start, first) if lost_at < 0 else slice(None)
            each, slot, first, tpot = each[kept], slot[kept], first[kept], tpot[kept]
            end = first + answers[each] * tpot
            talking = sessions[each]
            self.engines.take(replica[each], slot, first, end)
            self.busy_until[talking] = end
            self.tokens[talking] = np.minimum(whole[each] + answers[each], context)
            self.tier[talking] = HOST
            self.turns[talking] = np.minimum(self.turns[talking] + 1, 100)
            self._ends.add(talking, end.astype(np.int32) + 1)
            if lost_at >= 0:
                self.measured.recovered(first - lost_at - prefill_s[each], replica[each])
            else:
                self.measured.turns(first - at[each], tier[each], cached[each], whole[each])

    def _admitted(self, sessions: Ints, replica: Ints, at: Floats, start: Floats, first: Floats) -> np.ndarray:
        kept = np.ones(len(sessions), dtype=np.bool_)
        for index in np.flatnonzero(first - at > self._admitting.sure_s).tolist():
            number, waits = int(replica[index]), float(start[index] - at[index])
            busy = int(self.engines.in_system[number])
            forecast = Forecast(
                position=max(0, busy - self.scenario.engine.slots + 1) if waits > 0 else 0,
                wait_s=waits,
                ttft_s=float(first[index] - at[index]),
                tpot_s=0.0,
                idle=not busy,
            )
            again_s = self._admitting.refused_for_s(number, self.placed.key(int(sessions[index])), forecast)
            if again_s:
                kept[index] = False
                self._again_at(sessions[index : index + 1], int(at[index] + again_s) + 1)
        self.measured.count("refused", int((~kept).sum()))
        return kept

    def _end_answers(self, now: int) -> None:
        sessions = self._ends.pop(now)
        until = self.busy_until[sessions]
        sessions = sessions[(until >= now - 1) & (until < now)]
        owner = self.owner[sessions]
        sessions = np.unique(sessions[(owner >= 0) & self.up[owner]]).astype(np.int32)
        self.engines.ended(self.owner[sessions])
        self.used[sessions] = self.busy_until[sessions]
        self._recent.append(sessions)
        faster = np.where(sessions % self.scenario.tenants == HOT_TENANT, self._faster, 1.0)
        silence, ended = self.workload.silences(len(sessions), float(now), faster)
        self.ended[sessions] = ended & (self.rng.random(len(sessions)) < self.scenario.replaced)
        self.due[sessions] = np.minimum(self.used[sessions] + silence, 2**30).astype(np.int32) + 1
        self._talks.add(sessions, np.maximum(self.due[sessions], now))
        self.due[sessions] = np.maximum(self.due[sessions], now)
        self._idle.add(sessions, (self.used[sessions] + LIMITS.idle_s).astype(np.int32) + 1)

    def _leave_memory(self, now: int) -> None:
        sessions = np.unique(self._idle.pop(now))
        gone = (self.owner[sessions] >= 0) & (self.busy_until[sessions] + LIMITS.idle_s <= now)
        self._depart(sessions[gone], now)

    def _depart(self, sessions: Ints, now: int) -> None:
        """Idle sessions leave memory; those of a lost replica have left with it, and their entries with its lease."""
        owner = self.owner[sessions]
        for session in sessions[(owner >= 0) & self.up[owner]].tolist():
            self.placed.released(session, now)
            self.owner[session] = -1

    # -- KV -----------------------------------------------------------------------------------------

    def _retain(self, now: int, phase: int) -> None:
        """Brings the tiers of some replicas within their bounds: host memory to disk, disk to nothing."""
        engine = self.scenario.engine
        mine = np.flatnonzero((self.holder % _PASSES == phase) & (self.holder >= 0) & (self.tier > NONE))
        tokens, silence = self.tokens[mine], np.maximum(0, now - self.used[mine])
        rank = self._ranks.index(self.turns[mine], tokens, silence)
        num_bytes = tokens.astype(np.int64) * engine.token_bytes
        worth = (rank * self._costs.saved_s(tokens) / np.maximum(1, num_bytes)).astype(np.float32)
        worth[self.busy_until[mine] > now] = np.inf
        for tier, below, bound in ((HOST, DISK, engine.host_bytes), (DISK, NONE, engine.disk_bytes)):
            here = np.flatnonzero(self.tier[mine] == tier)
            stays = within_bounds(self.holder[mine[here]], num_bytes[here], worth[here], bound)
            self.tier[mine[here[~stays]]] = below
            self.measured.count("demoted" if below else "dropped", int((~stays).sum()))

    def _rebalance(self, now: int) -> None:
        loads = self.engines.loads
        crowded = np.flatnonzero((loads > REBALANCE.load_min) & self.up & self.listed)
        if not len(crowded):
            self._crowded.clear()
            return
        self._crowded = Counter({number: self._crowded[number] + 1 for number in crowded.tolist()})
        members, view = self.placed.members, self.placed.view
        self._balancing.look(self.placed.limits())
        least = min(
            view.members, key=lambda member: (member.load, member.replica) if not member.draining else (9e9, "")
        )
        flags = np.zeros(len(loads), dtype=np.bool_)
        surplus: dict[int, int] = {}
        for number, looks in self._crowded.items():
            member = members[number]
            count, target = self._balancing.surplus(self.placed.loaded(member, float(loads[number])), least)
            if looks >= REBALANCE.looks and count and target is not None:
                surplus[number], flags[number] = count, True
        recent = np.concatenate(list(self._recent)[::-1]) if surplus else np.zeros(0, dtype=np.int32)
        owner = self.owner[recent]
        idle = recent[(owner >= 0) & flags[owner] & (self.busy_until[recent] <= now)]
        to = self.placed.numbers[least.replica]
        for session in idle.tolist():
            number = int(self.owner[session])
            if surplus.get(number, 0) > 0 and self.up[to]:
                surplus[number] -= 1
                self._hand_off(session, to, now)
        for number in surplus:
            self._crowded[number] = 0

    def _hand_off(self, session: int, replica: int, now: float) -> None:
        """With its KV, and with its answer where one is running."""
        claim = self.placed.claim(session, replica, now, instead_of=self.placed.located(session, now))
        assert claim.won
        if self.busy_until[session] >= now:
            self.engines.in_system[self.owner[session]] -= 1
            self.engines.arrived_running(replica, float(self.busy_until[session]))
        tier = self.tier[session]
        self._owns(session, replica)
        self.tier[session] = HOST if tier != NONE else NONE
        self.measured.count("handed_off", 1)
        if tier != NONE:
            self.measured.count("kv_bytes_moved", int(self.tokens[session]) * self.scenario.engine.token_bytes)

    # -- what happens -------------------------------------------------------------------------------

    def _happens(self, event: FleetEvent, now: int) -> None:
        replicas = self.scenario.replicas
        some = range(max(1, round(event.share * replicas))) if event.share <= 1 else range(0)
        match event.kind:
            case "rack_killed" | "rack_silent":
                self._lose(np.array(some, dtype=np.int32), now, KILLED_S if event.kind == "rack_killed" else SILENT_S)
            case "region_drained":
                self._drain_over(some, now)
            case "rolling_upgrade":
                wave, lasts = max(1, round(self.scenario.upgrade_wave * replicas)), VIEW_S + self.scenario.restart_s + 1
                for number in range(replicas):
                    begins = now + number // wave * lasts
                    self._again.setdefault(begins, []).append(number)
                    self._back.setdefault(begins + VIEW_S + self.scenario.restart_s, []).append(number)
            case "hot_tenant":
                self._faster = event.share
                hot = np.arange(HOT_TENANT, self.scenario.sessions, self.scenario.tenants, dtype=np.int32)
                hot = hot[(self.busy_until[hot] <= now) & (self.due[hot] > now)]
                self.due[hot] = now + ((self.due[hot] - now) / event.share).astype(np.int32)
                self._talks.add(hot, self.due[hot])

    def _drain_over(self, replicas: Iterable[int], now: int) -> None:
        all_ = list(replicas)
        for number in all_:
            self._again.setdefault(now + number * self.scenario.drain_over_s // len(all_), []).append(number)

    def _lose(self, replicas: Ints, now: int, detected_s: float) -> None:
        self.up[replicas] = False
        self._suspected_at[replicas] = now + detected_s
        lost = np.zeros(len(self.up), dtype=np.bool_)
        lost[replicas] = True
        self._suspects = [self.placed.members[number].replica for number in replicas.tolist()]
        cut_short = np.flatnonzero((self.owner >= 0) & lost[self.owner] & (self.busy_until >= now)).astype(np.int32)
        self.tier[(self.holder >= 0) & lost[self.holder]] = NONE
        self.engines.emptied(replicas)
        suspected = now + detected_s
        self._interrupted.setdefault(int(suspected), []).append((cut_short, float(now), suspected))
        self._lapses[now + int(LEASE_TTL_S)] = replicas
        self.measured.count("interrupted", len(cut_short))

    def _recover(self, sessions: Ints, lost_at: float, from_s: float) -> None:
        """Their readers' gateways have each placed anew as soon as they suspected."""
        rest = np.maximum(1, (self.busy_until[sessions] - lost_at) / self.scenario.engine.tpot_full_s).astype(np.int32)
        rest = np.minimum(rest, self.tokens[sessions])
        at = np.full(len(sessions), from_s, dtype=np.float32)
        for session in sessions.tolist():
            assert self._place(session, from_s), "a replica is left"
        written = self.tokens[sessions] - rest
        self._serve(sessions, at, written, np.zeros(len(sessions), dtype=np.int32), rest, lost_at=lost_at)

    def _move_replicas(self, now: int) -> None:
        lapsed = self._lapses.pop(now, None)
        if lapsed is not None:
            self._left(lapsed.tolist(), now, everything=True)
            self._suspects = []
        begins = self._again.pop(now, [])
        for number in begins:
            self.placed.draining(number, now)
        if begins:
            self._leaving.setdefault(now + VIEW_S, []).extend(begins)
        leaving = self._leaving.pop(now, [])
        if leaving:
            self._empty(leaving, now)
            self._left(leaving, now, everything=not self._back)
        for number in self._back.pop(now, ()):
            self.placed.joined(number, now, anew=True)
            self.up[number] = self.listed[number] = True

    def _empty(self, replicas: list[int], now: int) -> None:
        """A drain: what is in memory goes elsewhere, idle sessions without KV are parked."""
        flags = np.zeros(len(self.up), dtype=np.bool_)
        flags[replicas] = True
        here = np.flatnonzero((self.owner >= 0) & flags[self.owner])
        for session in here.tolist():
            busy = self.busy_until[session] >= now
            target = -1
            if busy or self.tier[session] != NONE:
                target = self.placed.choose(session, avoid=[self.placed.members[int(self.owner[session])].replica])
            if target >= 0:
                self._hand_off(session, target, now)
            else:
                assert not busy, "an open answer has somewhere to go"
                self._depart(np.array([session], dtype=np.int32), now)

    def _left(self, replicas: list[int], now: int, *, everything: bool) -> None:
        """They are not there any more. What their host memory had is lost, and `everything` that their disks had."""
        flags = np.zeros(len(self.up), dtype=np.bool_)
        flags[replicas] = True
        for number in replicas:
            self.placed.lapsed(number, now)
        self.up[replicas] = self.listed[replicas] = False
        self.owner[(self.owner >= 0) & flags[self.owner]] = -1
        theirs = (self.holder >= 0) & flags[self.holder]
        self.tier[theirs if everything else theirs & (self.tier == HOST)] = NONE
        self.engines.emptied(np.array(replicas, dtype=np.int32))
        self.placed.views(self.placed.directory.version, self.listed, self.engines.loads)
