"""A device: one connection at a time, the sessions that it reads, the commands that it waits for.

Written from PROTOCOL.md and stricter than a client has to be: an event that does not follow the one before, differs
from the journal or is shown before it stands there, an answer without its effect, or an effect without an answer, ends
the run.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import msgspec

from sessions.model.commands import ItemDelete, ResponseErase, TurnCreate
from sessions.model.errors import SessileError
from sessions.model.events import ArgumentsDelta, OutputTextDelta
from sessions.model.types import SessionId, SessionKey
from tests.simulation import answers
from tests.simulation.answers import Ask
from tests.simulation.books import Account
from tests.simulation.members import Members
from tests.simulation.nodes import ALICE, BOB, MALLORY, GatewayNode
from tests.simulation.rules import Rules, shown_to_client
from tests.simulation.sockets import Wire
from transport.protocol.frames import error_frame

OVER_HTTP = ("item.delete", "response.erase", "turn.create")  # commands that have a route and no frame
TEXTS = frozenset({"text", "delta", "arguments", "output"})
BLOT = "\u2588"


class View:
    """What a device shows of one session."""

    def __init__(self, key: SessionKey) -> None:
        self.key = key
        self.epoch: str | None = None
        self.position: int | None = None  # None: nothing yet
        self.attached = False  # resumed on the present connection
        self.since = 0.0  # when
        self.asked = False  # for a reading that has not begun
        self.asking = ""  # the `subscribe` whose `ok` is still to come: what comes before it is of an older reading
        self.asked_top = 0  # the log's end when the last was sent
        self.plain = False  # the last was asked for without an offset
        self.caught_up = False
        self.gone: str | None = None
        self.again = False  # to be asked for again soon


class Client:
    def __init__(self, cluster: Members, name: str, *, key: str = "alice") -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.name = name
        self.principal = {"alice": ALICE, "bob": BOB, "mallory": MALLORY}[key]
        self.views: dict[str, View] = {}
        self.asks: dict[str, Ask] = {}
        self.closed = False
        self.ready = False
        self.resumes = 0
        self.gateway: GatewayNode | None = None
        self.wire: Wire | None = None
        self._key = key
        self.rng: Random = self.world.chance(name)
        self.binary = self.rng.random() < 0.5
        self._pending: dict[str, int] = {}  # answers that the present connection owes
        self._ended = asyncio.Event()
        self._said_hello = False
        self._acked: dict[str, int] = {}
        self._ack_timer: Any = None
        self._life = self.world.loop.create_task(self._live())

    # -- the connection ---------------------------------------------------------------------------------------------

    async def _live(self) -> None:
        pause_s = 0.02
        while not self.closed:
            self._ended.clear()
            gateways = [node for node in self.cluster.gateways.values() if not node.gone and not node.leave.is_set()]
            if gateways:
                self.gateway = self.rng.choice(gateways)
                self.wire = self.gateway.connect(
                    binary=self.binary, on_message=self._message, on_end=lambda code: self._ended.set()
                )
            if self.wire is not None:
                self.world.trace(self.name, "connects to", self.gateway and self.gateway.name)
                self._hello()
                patience = self.world.loop.call_later(2.0, self._impatient, self.wire)
                await self._ended.wait()
                patience.cancel()
                pause_s = 0.02 if self.ready else min(pause_s * 2, 0.5)
                self._off()
            if not self.closed:
                await asyncio.sleep(pause_s * (0.5 + self.rng.random()))

    def _impatient(self, wire: Wire) -> None:
        if wire is self.wire and not self.ready:
            self.drop()

    def _hello(self) -> None:
        resume = [self._point(view) for view in self.views.values() if view.gone is None]
        hello: dict[str, Any] = {"type": "hello", "auth": self._key}
        if resume:
            hello["resume"] = resume
        assert self.wire is not None
        self.wire.send(hello)

    def _point(self, view: View) -> dict[str, Any]:
        """How a session is asked for; notes what must be true of the answer."""
        view.asked, view.asking = True, ""
        view.asked_top = len(self.cluster.books.account(view.key).records)
        view.plain = view.position is None
        self._detach(view)
        view.caught_up = view.again = False
        self._acked.pop(view.key.session, None)  # a new reading has a new window
        point: dict[str, Any] = {"session": view.key.session}
        if view.position is not None:
            point |= {"offset": view.position}
            if view.epoch is not None:
                point |= {"epoch": view.epoch}
        return point

    def _off(self) -> None:
        self.ready, self.wire = False, None
        self._pending.clear()
        self._acked.clear()
        for view in self.views.values():
            self._detach(view)
            view.caught_up = view.asked = False
            view.asking = ""

    def _detach(self, view: View) -> None:
        if view.attached:
            self.cluster.books.account(view.key).read_at = self.world.loop.now
        view.attached = False

    def drop(self) -> None:
        """The network goes away under the connection."""
        if self.wire is not None and not self.wire.over:
            self.world.trace(self.name, "is cut")
            self.wire.cut()
            self._ended.set()

    async def close(self) -> None:
        self.closed = True
        self.drop()
        self._ended.set()
        await asyncio.wait((self._life,))

    # -- commands ---------------------------------------------------------------------------------------------------

    def ask(self, kind: str, session: str | None, **fields: Any) -> Ask:
        """Sends a command; again and again, by its id, until it is answered for good."""
        body: dict[str, Any] = {"type": kind, "id": fields.pop("id", None) or self.cluster.command_id()}
        key = None
        if session is not None:
            body["session"] = session
            key = SessionKey(self.principal.tenant, SessionId(session))
        body |= fields
        ask = Ask(key, body, self.cluster.books.account(key) if key else None, self.world.loop.now)
        self.asks[ask.id] = ask
        self.send(ask)
        return ask

    def send(self, ask: Ask) -> None:
        if ask.body["type"] in OVER_HTTP:
            self.cluster.begin(self._over_http(ask))
        elif self.ready and self.wire is not None:
            ask.resumed = self.resumes
            self._pending[ask.id] = self._pending.get(ask.id, 0) + 1
            self.world.trace(self.name, "sends", ask.body)
            self.wire.send(ask.body)

    async def _over_http(self, ask: Ask) -> None:
        """Goes in behind the route: there is no HTTP here."""
        gateways = [node for node in self.cluster.gateways.values() if node.up]
        if not gateways:
            self.world.loop.call_later(0.2, self.send_again, ask)
            return
        node, command = self.rng.choice(gateways), msgspec.convert(ask.body, ItemDelete | ResponseErase | TurnCreate)
        self.world.trace(self.name, "requests", ask.body)
        work = node.process.spawn(node.gateway.execute(self.principal, command))
        node.moves.append(work)
        await asyncio.wait((work, node.died, node.life), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():  # the gateway has gone, and its connections with it
            work.cancel()
            self.world.loop.call_later(0.2, self.send_again, ask)
            return
        failure = work.exception()
        if failure is not None and not isinstance(failure, SessileError):
            raise failure
        answer = msgspec.to_builtins(work.result() if failure is None else error_frame(failure, ask.id))
        self.world.trace(self.name, "is answered", answer)
        answers.judge(self, ask, answer, None)

    def send_again(self, ask: Ask) -> None:
        """After a pause, unless it has been answered meanwhile."""
        if not ask.answered.done():
            self.send(ask)

    async def do(self, kind: str, session: str | None, **fields: Any) -> Ask:
        ask = self.ask(kind, session, **fields)
        if self.rng.random() < 0.06:
            self.send(ask)  # twice, as an impatient client does
        await asyncio.wait((ask.answered,))
        return ask

    def subscribe(self, session: str, *, offset: int | None = None) -> None:
        """Begins to read a session: from an offset, or with a snapshot."""
        view = self.views.get(session)
        if view is None:
            view = self.views[session] = View(SessionKey(self.principal.tenant, SessionId(session)))
            view.position = offset
            view.epoch = self.cluster.books.account(view.key).epoch if offset else None
        self._subscribe(view)

    def _subscribe(self, view: View) -> None:
        if self.ready and self.wire is not None:
            self._pending[id_ := self.cluster.command_id()] = 1
            point = self._point(view)
            view.asking = id_
            self.wire.send({"type": "subscribe", "id": id_, **point})

    def unsubscribe(self, session: str) -> None:
        if (view := self.views.pop(session, None)) is not None:
            self._detach(view)
        if self.ready and self.wire is not None:
            self._pending[id_ := self.cluster.command_id()] = 1
            self.wire.send({"type": "unsubscribe", "id": id_, "session": session})

    # -- what comes -------------------------------------------------------------------------------------------------

    def _message(self, message: dict[str, Any]) -> None:
        match message["type"]:
            case "event":
                self._event(message)
            case "ok" | "error":
                self._answer(message)
            case "ready":
                self._ready()
            case "resumed":
                self._resumed(message)
            case "caught_up":
                view = self.views.get(message["session"])
                if view is not None and not view.asked:
                    self.world.check(not view.caught_up, f"{self.name}: caught_up twice")
                    self.world.check(message["offset"] == view.position, f"{self.name}: caught_up somewhere else")
                    view.caught_up = True
            case "ping":
                if self.wire is not None:
                    self.wire.send({"type": "pong"})
            case "goaway" | "pong":
                pass
            case other:
                self.world.violation(f"{self.name} received {other!r}")

    def _ready(self) -> None:
        self.ready = True
        for ask in list(self.asks.values()):
            if not ask.answered.done() and ask.body["type"] not in OVER_HTTP:
                self.send(ask)
        for view in list(self.views.values()):
            if view.gone is None and not view.asked:
                self._subscribe(view)

    def _answer(self, message: dict[str, Any]) -> None:
        world, id_ = self.world, message.get("id")
        self.world.trace(self.name, "is answered", message)
        if id_ is None:  # of the connection, which is closed behind it: a gateway that is leaving lets nobody new in
            let_in = self.ready or message.get("error", {}).get("code") != "draining"
            world.check(not let_in, f"{self.name} is told {message}")
            return
        owed = self._pending.get(id_, 0)
        world.check(owed > 0, f"{self.name}: one answer too many to {id_}: {message}")
        if owed == 1:
            del self._pending[id_]
        else:
            self._pending[id_] = owed - 1
        for view in self.views.values():
            if view.asking == id_:
                view.asking = ""
        ask = self.asks.get(id_)
        if ask is not None:
            own = self.views.get(ask.body.get("session", ""))
            steady = own is not None and own.attached and ask.resumed == self.resumes and ask.key is not None
            answers.judge(self, ask, message, own.position if steady and own is not None else None)

    def owes(self) -> list[str]:
        return list(self._pending)

    def _resumed(self, message: dict[str, Any]) -> None:
        world = self.world
        world.trace(self.name, "resumed", {k: v for k, v in message.items() if k != "state"})
        self.resumes += 1
        view = self.views.get(message["session"])
        if view is None:
            return
        mode = message["mode"]
        world.count("resumed_" + mode)
        if view.asking:
            return  # of an older one: what counts is the newest
        view.asked = False
        account = self.cluster.books.account(view.key)
        if mode == "gone":
            self._gone(view, message["error"], account)
            return
        view.attached, view.caught_up, view.since = True, False, world.loop.now
        world.check(message["epoch"] == account.epoch, f"{self.name}: the epoch is {account.epoch}")
        if mode == "replay":
            world.check(
                message["from"] == (view.position or 0) + 1,
                f"{self.name}: replay from {message['from']}, not {view.position}",
            )
            world.check(view.position is not None and not view.plain, f"{self.name}: a replay that nobody wanted")
            world.check(message["top"] <= len(account.records), f"{self.name}: {message['top']} is not durable")
        else:
            far = self.cluster.config.gateway.replay_records_max
            behind = view.position is not None and view.position + far < len(account.records)
            taken_back = any(at > (view.position or 0) for at, _, _ in account.rules.taken_back)
            allowed = mode == "snapshot" and (view.plain or behind or taken_back)
            world.check(allowed, f"{self.name}: {mode} at {view.position}: {message.get('reason')}")
            self._snapshot(view, message, account)
        view.epoch = message["epoch"]

    def _gone(self, view: View, error: dict[str, Any], account: Account) -> None:
        self._detach(view)
        away = not self.world.faultless and error["code"] in answers.AWAY  # for whomever, and whatever there is
        if self.principal is not ALICE and not away:
            self.world.check(error["code"] == "session_not_found", f"{self.name} learns that {view.key} exists")
            view.gone = error["code"]
        elif error["code"] == "session_deleted":
            self.world.check(account.rules.deleted, f"{self.name}: {view.key} is not deleted")
            view.gone = error["code"]
        elif error["code"] == "session_not_found" and not view.asked_top:
            self._soon(view)
        else:
            calm = self.world.faultless and error["code"] != "rate_limited"
            self.world.check(bool(error["retryable"]) and not calm, f"{self.name}: {view.key} gone: {error}")
            self._soon(view)

    def _soon(self, view: View) -> None:
        if not view.again:
            view.again = True
            self.world.loop.call_later(0.1 + self.rng.random() * 0.2, self._once_more, view)

    def _once_more(self, view: View) -> None:
        if view.again and not view.asked and self.views.get(view.key.session) is view:
            self._subscribe(view)

    def _snapshot(self, view: View, message: dict[str, Any], account: Account) -> None:
        at = message["at"]
        if not self.world.check_range(view.asked_top, at, len(account.records)):
            self.world.violation(f"{self.name}: a snapshot at {at}, asked for at {view.asked_top}")
            return
        self.compare(view.key, message["state"], at)
        view.position = at

    def compare(self, key: SessionKey, state: dict[str, Any], at: int) -> None:
        """A state that was received is the fold of the log up to there."""
        account = self.cluster.books.account(key)
        rules = account.rules
        if at != rules.top:
            rules = Rules()
            for record in account.records[:at]:
                rules.take(record)
        shown, right = shown_to_client(state), rules.shown()
        for name, value in right.items():
            if shown[name] != value:
                self.world.violation(f"{self.name}: {key} at {at} says {name}: {shown[name]}, not {value}")

    def _event(self, message: dict[str, Any]) -> None:
        world, view = self.world, self.views.get(message["session"])
        if view is None or view.asked:
            return  # of a reading that has ended, or ends with the next `resumed`
        offset: int = message["offset"]
        first: int = message.get("first_offset") or offset
        position = view.position if view.position is not None else -1
        where = f"{self.name}: {view.key.session} {first}…{offset}"
        if not view.attached or first != position + 1 or offset < first:
            world.violation(f"{where} after {position}: a gap, a repeat, or out of turn")
            return
        account = self.cluster.books.account(view.key)
        if offset > len(account.records):
            world.violation(f"{where} is shown before it is durable")
            return
        world.check(message["epoch"] == view.epoch, f"{where}: epoch {message['epoch']}")
        if not is_shown(message["event"], account, first, offset, settled=world.rests):
            world.violation(f"{where} shows {message['event']}, the log says {account.records[offset - 1].event}")
        view.position = offset
        if self._ack_timer is None:
            self._ack_timer = world.loop.call_later(0.05 + self.rng.random() * 0.1, self._ack)

    def _ack(self) -> None:
        self._ack_timer = None
        for view in self.views.values():
            if view.attached and view.position and self._acked.get(view.key.session) != view.position and self.wire:
                self._acked[view.key.session] = view.position
                self.world.trace(self.name, "acks", view.key.session, view.position)
                self.wire.send({"type": "ack", "session": view.key.session, "offset": view.position})


def is_shown(event: dict[str, Any], account: Account, first: int, offset: int, *, settled: bool) -> bool:
    """Whether an event is what its records say, without what is known to be taken back since: all of it, once all has
    settled."""
    stands = shown_event(account, first, offset)
    later = [taken for taken in account.rules.taken_back if taken[0] > offset]
    for known in range(len(later), len(later) - 1 if settled else -1, -1):
        gone = frozenset(item for _, item, _ in later[:known])
        if event == blotted(stands, gone, title=any(by_people for _, _, by_people in later[:known])):
            return True
    return False


def blotted(value: Any, gone: frozenset[str], *, title: bool, inside: bool = False) -> Any:
    """An event without the texts of some items, and without a title that the server made of them."""
    if isinstance(value, list):
        return [blotted(part, gone, title=title, inside=inside) for part in value]
    if not isinstance(value, dict) or not gone:
        return value
    inside = inside or value.get("id") in gone or value.get("item_id") in gone
    hidden = TEXTS if inside else frozenset({"title"}) if title and value.get("title_made") else frozenset[str]()
    return {
        name: BLOT * len(part)
        if name in hidden and isinstance(part, str)
        else blotted(part, gone, title=title, inside=inside)
        for name, part in value.items()
    }


def shown_event(account: Account, first: int, offset: int) -> dict[str, Any]:
    """The event of one record, or of several deltas laid together."""
    for record in account.records[len(account.shown) :]:
        account.shown.append(msgspec.json.decode(msgspec.json.encode(record.event)))
    if first == offset:
        return account.shown[offset - 1]
    records = account.records[first - 1 : offset]
    kinds = {(type(record.event), getattr(record.event, "item_id", "")) for record in records}
    if len(kinds) > 1 or not isinstance(records[0].event, OutputTextDelta | ArgumentsDelta):
        return {"type": "these may not be laid together"}
    text = "".join(event["delta"] for event in account.shown[first - 1 : offset])
    return {**account.shown[offset - 1], "delta": text}
