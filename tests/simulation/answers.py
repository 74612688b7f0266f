"""Whether the answer to a command may be the answer: what it promises must stand, what it denies must not."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any, Protocol

import msgspec

from sessions.model.types import FunctionCallOutput, ItemId, Message, Principal, SessionKey
from tests.simulation.books import Account
from tests.simulation.members import Members
from tests.simulation.nodes import ALICE, BOB, MALLORY
from tests.simulation.rules import Response
from tests.simulation.world import World

# Somebody is away, or something moves: the command is sent again by its id. Never while nothing is broken.
AWAY = frozenset(
    {
        "session_unavailable", "journal_unavailable", "session_moving", "shutting_down", "replica_unreachable",
        "no_replica", "lease_missing", "draining", "directory_unavailable", "directory_unknown", "outcome_unknown",
    }
)  # fmt: skip
FULL = frozenset({"rate_limited", "overloaded", "mailbox_full"})
BUSY = frozenset({"response_in_progress", "tools_pending", "queue_full"})
QUERIES = frozenset({"session.get", "session.list", "session.search", "session.warm"})


class Ask:
    """One command, from its first sending to its answer."""

    def __init__(self, key: SessionKey | None, body: dict[str, Any], account: Account | None, now: float) -> None:
        self.key = key
        self.body = body
        self.id: str = body["id"]
        self.sent_at = now
        self.top = len(account.records) if account is not None else 0
        self.resumed = 0  # the device's resumes when it was sent
        self.ok: dict[str, Any] | None = None
        self.error: dict[str, Any] | None = None
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Asking(Protocol):
    """The client that has the answer."""

    name: str
    principal: Principal
    rng: Random
    world: World
    cluster: Members

    def send_again(self, ask: Ask) -> None: ...

    def compare(self, key: SessionKey, state: dict[str, Any], at: int) -> None: ...


def judge(client: Asking, ask: Ask, message: dict[str, Any], position: int | None) -> None:
    """`position`: what the asking device has been shown, if it reads the session without a break since it asked."""
    if message["type"] == "ok" and contested(ask.body):
        return  # of the command that has its id: that one was sent twice
    if message["type"] == "ok":
        _ok(client, ask, message, position)
    else:
        _error(client, ask, message["error"])


def contested(body: dict[str, Any]) -> bool:
    """Whether this is the other command under an id that is taken."""
    return body.get("title") == "another body"


def _finish(ask: Ask) -> None:
    if not ask.answered.done():
        ask.answered.set_result(None)


def _ok(client: Asking, ask: Ask, ok: dict[str, Any], position: int | None) -> None:
    world = client.world
    if ask.ok is not None and ask.body["type"] not in QUERIES:
        world.check(ok == ask.ok, f"{ask.id} is answered {ok}, and was {ask.ok}")
    world.check(ask.error is None or bool(ask.error["retryable"]), f"{ask.id} is refused and then answered")
    ask.ok = ok
    if client.principal is BOB:  # of his sessions nothing stands in the books
        _finish(ask)
        return
    kind = ask.body["type"]
    world.check(client.principal is ALICE or kind == "session.list", f"{client.name} may not do {ask.body}")
    if world.faultless and not client.cluster.config.paced and world.loop.now - ask.sent_at > 3.0:
        world.violation(f"{ask.id} took {world.loop.now - ask.sent_at:.1f} s while nothing was broken")
    if ask.key is not None:
        account = client.cluster.books.account(ask.key)
        if kind == "session.get":
            world.check(ask.top <= ok["offset"] <= len(account.records), f"{ask.id}: at {ok['offset']}")
            client.compare(ask.key, ok["state"], ok["offset"])
        elif kind not in QUERIES:
            problem = _promised(client, ask, ok, account, position)
            if problem:
                world.violation(f"{ask.body} answered with {ok}: {problem}")
    _finish(ask)


def _promised(client: Asking, ask: Ask, ok: dict[str, Any], account: Account, position: int | None) -> str:
    body, rules = ask.body, account.rules
    applied = account.applied.get((client.principal.id, ask.id))
    if applied is None:
        return "it is not in the journal"
    stands: dict[str, Any] = msgspec.to_builtins(applied.answer)
    if {name: value for name, value in ok.items() if name != "epoch"} != stands:
        return f"the journal says {stands}"
    if "epoch" in ok and ok["epoch"] != account.epoch:
        return "another epoch"
    offset, item_id, response_id = ok.get("offset"), ok.get("item_id"), ok.get("response_id")
    if offset is None or offset > rules.top:
        return "its offset is not durable"
    if position is not None and position < offset:
        return f"before its events: the device has seen {position}"
    if ok.get("noop"):
        return ""
    match body["type"]:
        case "item.pin":
            item_id = None
            if offset == rules.top and (body["item_id"] in rules.pinned) != body["pinned"]:
                return "it is not so"
        case "item.delete" if body["item_id"] not in rules.removed:
            return "it is there"
        case "turn.create":
            made, unchanged = (
                rules.responses[body["after_response"]],
                not any(at > ask.top for at, *_ in rules.taken_back),
            )
            if unchanged and [rules.items[ItemId(str(item_id))].parent_id] != rules.ends_of(made):
                return f"it does not go on from {rules.ends_of(made)}"
        case "compaction.undo" if any(one.id == ok["compaction_id"] for one in rules.in_force):
            return "it is in force"
        case "response.erase":
            response_id = None
            if rules.responses[body["response_id"]].parts and not rules.responses[body["response_id"]].scrubbed:
                return "its text stands"
    if item_id is not None and item_id not in rules.removed:
        item = rules.items.get(item_id)
        if item is None:
            waiting = next((w for w in rules.responses.values() if w.queued_item and w.queued_item.id == item_id), None)
            item = waiting.queued_item if waiting is not None else None
        if item is None:
            return "its item is nowhere"
        text = item.text if isinstance(item, Message) else getattr(item, "output", "")
        if text != body.get("content", body.get("output")):
            return f"its item says {text!r}"
        if (at := rules.created.get(item_id)) is not None and at <= ask.top:
            return "its item is older than the command"
    if response_id is not None:
        response = rules.responses.get(response_id)
        if response is None:
            return "its response is nowhere"
        if body["type"] == "response.cancel":
            if response.open or response in rules.queue or response_id in rules.awaiting:
                return "it goes on"
        elif rules.first_response[response_id] <= ask.top:
            return "its response is older than the command"
        elif has_another_limit(response, body):
            return "its response has another limit"
    if body["type"] == "session.delete" and not rules.deleted:
        return "it is not deleted"
    if body.get("title") is not None and body["type"] == "session.update" and offset == rules.top:
        assert rules.info is not None
        if rules.info.title != body["title"]:
            return f"the title is {rules.info.title!r}"
    return ""


def has_another_limit(response: Response, body: dict[str, Any]) -> bool:
    """A response that has begun was begun with another limit than its command asked for."""
    asked = body.get("max_output_tokens")
    inherits = body["type"] in ("tool.output", "response.steer")
    return not inherits and response.sampling is not None and response.sampling.max_output_tokens != asked


def _error(client: Asking, ask: Ask, error: dict[str, Any]) -> None:
    world, code, body = client.world, error["code"], ask.body
    account = client.cluster.books.account(ask.key) if ask.key is not None else None
    ask.error = error
    world.count("refused_" + code)
    world.check(ask.ok is None or code in AWAY or code in FULL, f"{ask.id} was answered and is refused: {error}")
    if code in AWAY or code in FULL:
        world.check(bool(error["retryable"]), f"{code} is not retryable")
        if world.faultless and code not in FULL:
            world.violation(f"{body} is refused with {error} while nothing is broken")
        if not ask.answered.done():
            pause_s = min(error.get("retry_after_ms", 100) / 1000, 0.4) * (0.5 + client.rng.random())
            world.loop.call_later(pause_s, client.send_again, ask)
        return
    if account is not None and client.principal is not BOB:
        if (client.principal.id, ask.id) in account.applied and code != "idempotency_conflict":
            world.violation(f"{body} is refused with {code}, and was applied")
        if problem := _unfounded(client, ask, code, account):
            world.violation(f"{body} is refused with {error}: {problem}")
    _finish(ask)


def _unfounded(client: Asking, ask: Ask, code: str, account: Account) -> str:
    """Why a refusal has no reason; "" where it has."""
    rules, body = account.rules, ask.body
    if client.principal is MALLORY:
        return "" if code == "session_not_found" else "it exists for her"
    moved_on = any(response.ended_at > ask.top for response in rules.responses.values())
    match code:
        case "response_in_progress" | "queue_full":
            return "" if moved_on or rules.open or rules.queue else "nothing is in progress"
        case "tools_pending":
            waited = any(
                isinstance(record.event.item, FunctionCallOutput)
                for record in account.records[ask.top :]
                if hasattr(record.event, "item")
            )
            return "" if moved_on or waited or rules.awaiting else "nobody waits for tools"
        case "session_deleted":
            return "" if rules.deleted else "it is not deleted"
        case "session_not_found":
            return "" if not ask.top else "it is there"
        case "session_exists":
            return "" if body["type"] == "session.create" and rules.top else "it does not"
        case "item_not_found":
            known = body.get("item_id") or body.get("parent_id")
            return "it is there" if known in rules.items and rules.created.get(known, 0) <= ask.top else ""
        case "response_not_found":
            response = rules.responses.get(body["response_id"])
            return "it is there" if response is not None and rules.first_response[response.id] <= ask.top else ""
        case "compaction_not_found":
            stands = rules.summary_on(rules.newest) if body.get("compaction_id") is None else None
            named = stands is not None or any(one.id == body.get("compaction_id") for one in rules.in_force)
            changed = max(rules.compacted_at, *rules.created.values(), *(at for at, _, _ in rules.taken_back), 0)
            return "it is there" if named and changed <= ask.top else ""
        case "response_not_active" | "response_already_completed":
            response = rules.responses[body["response_id"]]
            ended = response.terminal is not None
            return "" if ended or (code == "response_not_active" and response.created_at > ask.top) else "it goes on"
        case "call_answered" | "call_not_found":
            missing = [call for calls, _ in rules.awaiting.values() for call in calls]
            return "it is missing" if body["call_id"] in missing else ""
        case "idempotency_conflict":
            return "" if contested(body) else "it is the same command"
        case "invalid_request":
            of = rules.responses.get(body.get("after_response", ""))
            return "" if body["type"] == "message.edit" or (of is not None and not rules.ends_of(of)) else "it is valid"
        case _:
            return "that is not expected here"
