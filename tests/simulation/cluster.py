"""A whole cluster from one seed: how it is set up, how its day goes, and what must be true in the evening.

the cluster starts ─► people act while the nemesis works ─► all is mended ─► every turn ends, every command is
answered, every reader stands at the end of its log ─► everybody leaves, and nothing is left behind
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from actors.hosting.ownership import owner_label
from actors.hosting.recovery_gate import RecoveryGate
from sessions.actor.actor import Phase
from sessions.machine.state import apply, begin
from sessions.model.types import SessionId, SessionKey
from sessions.turn.ledger import Ledger
from tests.simulation.client import Client
from tests.simulation.members import Members
from tests.simulation.nemesis import Nemesis
from tests.simulation.nodes import ALICE, BOB
from tests.simulation.oracle import prompt_of
from tests.simulation.people import Person
from tests.simulation.surroundings import LEASE_S
from tests.simulation.world import World
from tests.support.stores.tables import head_of, records_of

LOST = SessionKey(BOB.tenant, SessionId("lost"))  # cannot be read, where the store can have such a one
REST_S = 60.0  # virtual time until everything is at rest after all was mended
PROMPT_S = 1.5  # for an event on its way from the journal to a screen, while nothing is broken
TAKEN_OVER_S = 1.5
ORPHAN_SLACK_S = 0.2  # what a gateway knows later, or earlier, than the device
ALONE_S = 24.0  # twice the time after which a gateway compares a session at rest with the journal


class Cluster(Members):
    def __init__(self, world: World, store: str = "memory") -> None:
        super().__init__(world, store)
        self.books.unread = self._unread
        self.books.spared = self._spared
        self.books.silent = self._silent
        self.clients: list[Client] = []

    def client(self, name: str, **more: Any) -> Client:
        made = Client(self, name, **more)
        self.clients.append(made)
        return made

    # -- the day ----------------------------------------------------------------------------------------------------

    async def day(self) -> None:
        config, rng = self.config, self.rng
        loses = self.store.lose(LOST, BOB.user or "", config.model_at("r1"))
        for number in range(config.replicas):
            await self.add_replica(f"r{number + 1}")
        for number in range(config.gateways):
            await self.add_gateway(f"g{number + 1}")
        nemesis = Nemesis(self, self.clients)
        self.world.trace("seed", self.world.seed, nemesis.kinds)
        people: list[asyncio.Task[None]] = []
        for number in range(config.sessions):
            session = f"s{number + 1}"
            devices = rng.choice([1, 2, 2, 3]) if config.sessions < 3 else rng.choice([1, 2])
            first = Person(
                self, self.client(f"{session}a"), session, actions=rng.randint(2, 6), hurry=rng.choice([0.1, 0.5])
            )
            tools = rng.random() < 0.35
            people.append(self.begin(self._lives(first, tools)))
            for letter in "bc"[: devices - 1]:
                more = Person(self, self.client(session + letter), session, actions=rng.randint(1, 4), hurry=0.4)
                people.append(self.begin(self._joins(more)))
        if rng.random() < 0.1:
            self.begin(self._mallory())
        self.begin(self._watch_the_clock())
        await nemesis.work(rng.choice([2.0, 4.0, 6.0]))
        await nemesis.mend()
        await self._evening(nemesis, loses=loses)

    async def _lives(self, person: Person, tools: bool) -> None:
        await person.create(tools=tools)
        await person.live()

    async def _joins(self, person: Person) -> None:
        await self.until(lambda: person.rules.top > 0, "the session is made")
        await person.live()

    async def _watch_the_clock(self) -> None:
        """While nothing is broken, what is durable is on every attached screen a moment later."""
        before: list[tuple[Client, Any, int, int, int]] = []
        while not self.world.healed:
            for _ in range(6):
                await asyncio.sleep(PROMPT_S / 6)
                self._somebody_takes_over()
            if self.world.faultless:
                for client, view, resumes, top, position in before:
                    steady = client.resumes == resumes and view.attached and view.key.session in client.views
                    if self.config.paced and (view.position or 0) > position:
                        continue  # as fast as its window opens
                    if steady and (view.position or 0) < top and client.views[view.key.session] is view:
                        self.world.violation(f"{client.name} waits for {view.key.session} {top} for {PROMPT_S} s")
            before = [
                (client, view, client.resumes, len(self.books.account(view.key).records), view.position or 0)
                for client in self.clients
                for view in client.views.values()
                if view.attached and view.caught_up
            ]

    def _somebody_takes_over(self) -> None:
        """Where a death is all that went wrong, an answer that is read goes on before any lease has ended."""
        world, now = self.world, self.world.loop.now
        recent = [when for when in world.kills if when > now - LEASE_S - TAKEN_OVER_S]
        ready = [node for node in self.replicas.values() if node.up and not node.draining]
        if (
            not recent
            or len(recent) > 1  # one takeover per lease
            or not world.faults <= {"kill_replica", "kill_after_persist"}
            or self.config.engine.slots == 1
            or not any(node.born_at < now - TAKEN_OVER_S for node in ready)
        ):
            return
        for client in self.clients:
            for view in client.views.values():
                account = self.books.account(view.key)
                since = max(recent[0], view.since, account.grew_at)
                if view.attached and account.rules.open and now - since > TAKEN_OVER_S:
                    world.violation(
                        f"{view.key.session} is read and goes on nowhere, {now - since:.1f} s after a death"
                    )

    def _unread(self, key: SessionKey) -> bool:
        """Whether the session's answers may be ended as orphans: by the policy, and while nothing is broken only when
        no device has read it for long enough."""
        runtime, now = self.config.replica.runtime, self.world.loop.now
        views = [view for client in self.clients for view in client.views.values() if view.key == key]
        read = any(view.attached and now - view.since > ORPHAN_SLACK_S for view in views)
        left_s = now - self.books.account(key).read_at
        alone = not read and left_s > runtime.orphan_after_s - ORPHAN_SLACK_S
        return runtime.orphan_policy == "cancel" and (alone or not self.world.faultless)

    def _spared(self, taker: str, writer: str, key: SessionKey, owner: str) -> bool:
        """Whether a replica that nobody has reason to replace has the session in memory, under this very grant. (Who
        has just joined knows nobody that an emptied directory does not name.)"""
        node = self.replicas.get(writer)
        joined = self.replicas[taker].joined_at > self.world.loop.now - LEASE_S
        if (joined and "directory_flushed" in self.world.faults) or node is None or not node.up or node.draining:
            return False
        runtime = node.replica.runtime
        held = runtime.ownership.owner(key)
        return held is not None and runtime.actor(key) is not None and owner_label(held) == owner

    def _silent(self, source: str, key: SessionKey) -> bool:
        """Whether a replica that has sealed a session has not gone on with it since."""
        node = self.replicas[source]
        actor = node.replica.runtime.actor(key) if node.up else None
        return actor is None or actor.phase is Phase.SEALED

    async def _mallory(self) -> None:
        """Somebody else's key: for it these sessions do not exist."""
        mallory = self.client("mallory", key="mallory")
        await self.until(lambda: len(self.books.account(SessionKey(ALICE.tenant, SessionId("s1"))).records) > 0, "s1")
        mallory.subscribe("s1", offset=0)
        await mallory.do("message.create", "s1", content="let me in")
        await mallory.do("session.delete", "s1")
        listed = await mallory.do("session.list", None)
        self.world.check(not (listed.ok or {}).get("data"), "mallory sees sessions of alice")

    # -- the evening ------------------------------------------------------------------------------------------------

    async def until(self, condition: Callable[[], bool], what: str, *, limit_s: float = REST_S) -> None:
        deadline = self.world.loop.now + limit_s
        while not condition():
            if self.world.loop.now >= deadline and (self.world.healed or limit_s != REST_S):
                self.world.violation(f"never: {what}")
                return
            await asyncio.sleep(0.05)

    async def _evening(self, nemesis: Nemesis, *, loses: bool) -> None:
        begun, self._begun = self._begun, []
        living = [task for task in begun if not self._dead(task)]
        if living:
            await asyncio.wait(living, timeout=REST_S)
        for task in living:
            if not task.done() and not self._dead(task):
                self.world.violation(f"not done: {task.get_coro()}; waiting for {self._unanswered()}")
            elif task.done() and (error := task.exception()) is not None:
                self.world.violation(f"failed: {error!r}")
        await nemesis._restore()
        await self._everything_rests()
        if loses:
            await self._what_is_lost_can_be_deleted()
        await self._everybody_leaves()

    def _dead(self, task: Any) -> bool:
        return any(process.dead and task in process.tasks for process in self.processes)

    def _unanswered(self) -> list[Any]:
        return [ask.body for client in self.clients for ask in client.asks.values() if not ask.answered.done()]

    async def _everything_rests(self) -> None:
        world, books = self.world, self.books
        await self.until(lambda: not self._unanswered(), f"every command is answered: {self._unanswered()}")
        if self.config.replica.runtime.orphan_policy == "pause":  # then an answer that nobody reads waits for a reader
            self._audit()
        await self.until(lambda: not any(a.rules.busy for a in books.accounts.values()), "every turn ends")
        await self.until(self._summaries_end, "every summary that was asked for comes, or fails")
        await self.until(self._all_read, "every reader reaches the end by itself", limit_s=ALONE_S)
        if not self._all_read():
            views = [(client.name, view) for client in self.clients for view in client.views.values()]
            behind = [(name, v.key.session, v.position, v.caught_up, v.gone) for name, v in views]
            world.trace("behind", behind, [(key.session, len(a.records)) for key, a in books.accounts.items()])
        world.rests = True
        self._audit()
        await self.until(self._all_read, "who reads from the start reaches the end", limit_s=ALONE_S)
        await self._ask_for_everything()
        world.check(not any(client.owes() for client in self.clients), "an answer is owed")
        self._the_store_is_as_booked()
        await self._ledgers_are_as_made_anew()

    async def _what_is_lost_can_be_deleted(self) -> None:
        """A session that cannot be read stands in lists, breaks no search, and goes when its user wants it gone."""
        bob, check = self.client("bob", key="bob"), self.world.check
        for stands in (True, False):
            listed, found = await bob.do("session.list", None), await bob.do("session.search", None, q="words")
            check(
                listed.ok is not None and bool(listed.ok["data"]) == stands, f"bob's list: {listed.ok or listed.error}"
            )
            check(found.ok is not None, f"bob's search fails: {found.error}")
            if stands:
                deleted = await bob.do("session.delete", LOST.session)
                check(deleted.ok is not None, f"{LOST} cannot be deleted: {deleted.error}")

    def _summaries_end(self) -> bool:
        """Whoever was asked and lives owes nothing."""
        lives = {(actor.key, actor.fence) for node in self.replicas.values() for actor in node.replica.runtime.actors}
        return not any(
            account.summaries_due and not account.rules.deleted
            for key, account in self.books.accounts.items()
            if self.world.faultless or (key, account.fence) in lives
        )

    def _audit(self) -> None:
        """Somebody reads everything, from the start."""
        auditor = self.client(f"auditor{self.number()}")
        for key, account in self.books.accounts.items():
            if account.records:
                auditor.subscribe(key.session, offset=0)

    async def _ask_for_everything(self) -> None:
        """States and lists, with their titles: `answers` compares them, `World.shown` looks for what was taken back."""
        auditor, gone = self.clients[-1], list(self.world.taken_back)[-3:]
        asking = [auditor.ask("session.list", None)]
        asking += [auditor.ask("session.get", key.session) for key in self.books.accounts]
        searches = [auditor.ask("session.search", None, q=mark.decode()) for mark in gone]
        await self.until(lambda: all(ask.answered.done() for ask in (*asking, *searches)), "what is asked is answered")
        for ask in searches:
            self.world.check(not (ask.ok or {}).get("data"), f"{ask.body['q']} is found, which was taken back")

    async def _ledgers_are_as_made_anew(self) -> None:
        """Checks that a session in memory is what the log says, and prompts as one that is made anew."""
        for node in self.replicas.values():
            for actor in node.replica.runtime.actors:
                account, live = self.books.account(actor.key), actor._machine.state
                rules, head = account.rules, head_of(self.store, actor.key)
                if head is None or actor.fence != head.fence or live.top != head.top or rules.info is None:
                    continue  # of somebody who has not learnt of its end; or a title is being written
                state = begin(head, None)
                for record in account.records:
                    apply(state, record)
                self.world.check(live == state, f"{node.name}: the state of {actor.key} is not the fold of its log")
                fresh = Ledger(state, node.engine.tokenizer, node.engine.info)
                inner = {item.parent_id for item in state.items.values()}
                for leaf in dict.fromkeys((state.newest, *(item for item in state.items if item not in inner))):
                    has, right = await actor._ledger.whole(leaf), prompt_of(rules, leaf, rules.cut_of(leaf))
                    self.world.check(
                        has == await fresh.whole(leaf), f"{actor.key}: the live ledger at {leaf} is another"
                    )
                    self.world.check(has.tolist() == right, f"{actor.key}: the ledger at {leaf} is {has}, not {right}")

    def _all_read(self) -> bool:
        for client in self.clients:
            if not client.ready:
                return False
            for view in client.views.values():
                account = self.books.account(view.key)
                if view.gone is None and not account.rules.deleted:
                    if view.position != len(account.records) or not view.caught_up:
                        return False
                elif view.gone is None and view.position != len(account.records):
                    return False
            if client.owes():
                return False
        return True

    def _the_store_is_as_booked(self) -> None:
        for key, account in self.books.accounts.items():
            stands = records_of(self.store, key)
            self.world.check(
                len(stands) == len(account.records)
                and all(a is b or a == b for a, b in zip(stands, account.records, strict=True)),
                f"{key}: what stood in the log has changed",
            )
        self.directory.check_integrity()

    async def _everybody_leaves(self) -> None:
        """Nothing may be left: no readers, no answers under way, no buffers, no leases, no tasks."""
        world = self.world
        for client in self.clients:
            await client.close()
        await asyncio.sleep(0.3)
        for gateway in self.gateways.values():
            world.check(len(gateway.gateway.feeds) == 0, f"{gateway.name} keeps feeds")
            world.check(gateway.gateway.feeds.bytes == 0, f"{gateway.name} keeps {gateway.gateway.feeds.bytes} bytes")
            world.check(len(gateway.router.subscriptions) == 0, f"{gateway.name} keeps watches")
            world.check(gateway.router.subscriptions.attachments == 0, f"{gateway.name} keeps attachments")
            world.check(not gateway.door.connections, f"{gateway.name} keeps connections")
            world.check(gateway.gateway._under_way_in_all == 0, f"{gateway.name} counts commands under way")
        for node in self.replicas.values():
            runtime = node.replica.runtime
            await self.until(lambda node=node: node.engine.idle, f"{node.name}'s engine is idle", limit_s=5.0)  # type: ignore[misc]
            for actor in runtime.actors:
                at_rest = f"{node.name}: {actor.key} is at rest"  # a title or a summary may still be written
                await self.until(lambda actor=actor: not actor.busy, at_rest, limit_s=5.0)  # type: ignore[misc]
                world.check(runtime.readers(actor.key) == 0, f"{node.name}: {actor.key} has readers")
                grants = self.books.account(actor.key).grants
                world.check(actor.fence <= len(grants), "a fence from nowhere")
                stale = actor.fence < len(grants) and grants[actor.fence][0] < node.woke_at
                certain = stale and runtime.ownership.is_confirmed(actor.key)
                world.check(not certain, f"{node.name} woke and is certain of {actor.key}, which was taken meanwhile")
            world.check(runtime.subscribers.empty, f"{node.name} keeps sinks")
            gate: RecoveryGate = runtime._gate
            await self.until(lambda gate=gate: not gate._holding, f"{node.name} recovers on", limit_s=5.0)  # type: ignore[misc]
            world.check(
                gate._free == self.config.replica.runtime.recoveries_max, f"{node.name} has {gate._free} recovery slots"
            )
            world.check(not node.replica.handoff_target.arriving, f"{node.name} expects hand-offs")
            world.check(not node.replica.handoff._leaving, f"{node.name} hands off")
        for each in (*self.gateways.values(), *self.replicas.values()):
            await each.end()
        world.check(self.directory.entry_count == 0, f"{self.directory.entry_count} entries are left in the directory")
        self.directory.check_integrity()
        for each in (*self.gateways.values(), *self.replicas.values()):
            world.check(self.network.open_at(each.name) == 0, f"{each.name} has open connections")


Add = Callable[[str], Awaitable[None]]
