"""Attempts with what users may choose: ids, names, metadata. Whatever somebody calls a thing of theirs, it leads to
nobody else's.

Three kinds. `one_chosen`: any route, command or method with the victim's ids, names and pointers wherever the caller
may write something of their own. `beforehand`: sessions that an Idempotency-Key leads to, made by another before its
owner needs them; and pointers into the victim's session, written where the server writes its own. `leaks`: at the end
the owner sends the requests whose place somebody tried to take, and nothing of them, nor anything else of the victim's,
is in a session of another user or tenant.
"""

from __future__ import annotations

import hashlib
import random
from typing import Any, Final

import msgspec

from persistence.codec import encode_record
from sessions.model import commands as cm
from sessions.model.types import CommandId, SessionId, derived_session_id
from tests.support.authorisation.attempts import Came, attempt, over_http, talk
from tests.support.authorisation.entries import COMMANDS, METHODS, Command, Entry, Http, Method, Names, fixed
from tests.support.authorisation.matrix import ENTRIES, askers, expected
from tests.support.authorisation.world import CANARY, World
from tests.support.stores.tables import head_of, keys_in, records_of
from transport.openai.turn_starter import PLACE

ROUTES: Final = ("chat", "responses", "conversations")
ORDERS: Final = ("order-1", "order-2")  # Idempotency-Keys that others guess
STRANGERS: Final = ("other user", "other tenant's ana", "other tenant", "token of another user")
SENT: Final = {
    "chat": ("/v1/chat/completions", {"model": "simulated", "messages": [{"role": "user", "content": ""}]}),
    "responses": ("/v1/responses", {"model": "simulated", "input": ""}),
    "conversations": ("/v1/conversations", {"metadata": {"note": ""}}),
}


def names_of(world: World) -> Names:
    named = world.named
    return Names(named.session, named.response, named.item, named.key_id, named.review)


def words(world: World, names: Names) -> tuple[str, ...]:
    """What somebody may call a thing of theirs that is, or is in the form of, something of hers."""
    return (
        *names,
        *("ana", "acme", "acme/ana", f"{names.key_id}/ana", "acme\0ana", "jwt:carol", "filed", "app", "local"),
        *("operator", "admin", "service", "*", "%", "../", "", "null", "'; --", f"../{names.session}"),
        *(f"{names.session}/export", f"{world.owner_of_orders.id}", "break_glass", "sk-filed-of-beta", "\u202eana"),
        *(reserved(world, route, order) for route in ROUTES for order in ORDERS),
    )


def metadata(names: Names, word: str) -> dict[str, Any]:
    """What the server's own notes look like, and what a careless one might believe."""
    return {PLACE: [names.session, names.item, 1], "user": word, "tenant": "acme", "role": "operator", "owner": "ana"}


def idempotent_command(world: World, route: str, order: str) -> CommandId:
    """The command that the owner's request with this Idempotency-Key will be, as anybody can compute it."""
    owner = world.owner_of_orders
    digest = hashlib.sha256("\0".join((route, owner.tenant, owner.id, order)).encode()).hexdigest()
    return CommandId(f"idem_{digest[:40]}")


def reserved(world: World, route: str, order: str) -> SessionId:
    """The session that it will be in."""
    return derived_session_id(world.owner_of_orders, idempotent_command(world, route, order))


# -- any door ---------------------------------------------------------------------------------------------------------


async def one_chosen(world: World, rng: random.Random) -> list[str]:
    """Makes one attempt; what is wrong with what came of it."""
    names = names_of(world)
    entry = rng.choice(ENTRIES)
    asker = rng.choice(askers(world, entry))
    word = rng.choice(words(world, names))
    wanted = expected(world, entry, asker)
    came = await _attempt_with(world, rng, entry, asker.credential, names, word)
    label = f"{entry.name} by {asker.who} ({asker.kind}), with {word!r}"
    wrong = [f"{label}: showed {CANARY}"] if CANARY in came.said else []
    if came.outcome == "allowed" and wanted not in ("own", "open"):
        wrong.append(f"{label}: allowed: {came.said[:300]}")
    return wrong


async def _attempt_with(
    world: World, rng: random.Random, entry: Entry, credential: str | None, names: Names, word: str
) -> Came:
    notes = metadata(names, word)
    match entry:
        case Http():
            body = dict(entry.body(names)) if entry.body is not None else None
            if body is not None:
                fields = {"metadata": notes, "user": word, "safety_identifier": word, "name": word, "title": word}
                body |= {name: fields[name] for name in rng.sample(sorted(fields), rng.randint(1, 2))}
            headers = {"idempotency-key": rng.choice((*ORDERS, "mine")), "x-request-id": word}
            if rng.random() < 0.5:
                headers["last-event-id"] = f"{word}.{names.response}.{'0' * 12}:1"
            sendable = {name: value for name, value in headers.items() if value and value.isprintable()}
            sendable = {name: value for name, value in sendable.items() if value.isascii()}
            changed = entry._replace(body=None if body is None else fixed(**body))
            return await over_http(world, changed, credential, names, sendable)
        case Command():
            return await attempt(world, entry._replace(make=_frame_with(entry, notes, word)), credential, names)
        case Method():
            return await attempt(world, entry._replace(make=_message_with(entry, notes, word)), credential, names)


def _frame_with(entry: Command, notes: dict[str, Any], word: str) -> Any:
    def make(names: Names, id: str) -> msgspec.Struct:
        frame = entry.make(names, word or id)
        own = {"title": word, "metadata": notes}
        if isinstance(frame, cm.SessionCreate):
            own["session"] = SessionId(word)
        return msgspec.structs.replace(frame, **{k: v for k, v in own.items() if k in frame.__struct_fields__})

    return make


def _message_with(entry: Method, notes: dict[str, Any], word: str) -> Any:
    def make(names: Names) -> Any:
        message = entry.make(names)
        fields = message.DESCRIPTOR.fields_by_name
        for name in ("id", "title"):
            if name in fields:
                setattr(message, name, word)
        if "metadata" in fields:
            message.metadata.update(notes)
        if entry.method == "Create":
            message.session = word
        return message

    return make


# -- places that somebody needs later ---------------------------------------------------------------------------------


async def beforehand(world: World) -> tuple[int, list[str]]:
    """Strangers take the sessions that the owner's requests will be in, at every door, and point their own to the
    victim's. How many attempts, and what is wrong with what came of them."""
    create = next(each for each in COMMANDS if each.kind is cm.SessionCreate)
    method = next(each for each in METHODS if each.method == "Create")
    wrong, made, names = [], 0, names_of(world)
    for who in STRANGERS:
        credential = world.credentials[who]
        for route in ROUTES:
            for order in ORDERS:
                place = reserved(world, route, order)
                for entry, make in ((create, _frame_with), (method, _message_with)):
                    made += 1
                    notes = metadata(names, place)
                    came = await attempt(world, entry._replace(make=make(entry, notes, place)), credential, names)  # type: ignore[arg-type]
                    if came.outcome == "allowed":
                        wrong.append(f"{who} took {place}, where {route} {order} goes, by {entry.name}")
        made += 1
        wrong += await _pointed_elsewhere(world, credential, who, names)
    return made, wrong


async def _pointed_elsewhere(world: World, credential: str, who: str, names: Names) -> list[str]:
    """A session of one's own, which a key of one's own leads to, says that its place is in the victim's; the request
    comes again, at a gateway that has not seen it."""
    headers = {"authorization": f"Bearer {credential}", "idempotency-key": "mine"}
    path, body = "/v1/chat/completions", {"model": "simulated", "messages": [{"role": "user", "content": "mine"}]}
    first = await world.http.post(path, headers=headers, json=body)
    if first.status_code != 200:
        return [f"{who}: {first.text[:300]}"]
    mine = first.headers["x-session-id"]
    notes = cm.SessionUpdate(id=CommandId("point"), session=SessionId(mine), metadata=metadata(names, "ana"))
    pointed = await talk(world, [notes], credential)
    before = await world.log_of(world.named)
    world.forget_retries()
    again = await world.http.post(path, headers=headers, json=body)
    wrong = [] if pointed.outcome == "allowed" else [f"{who}: nothing was pointed: {pointed.said[:300]}"]
    if CANARY in again.text or again.headers.get("x-session-id") == names.session:
        wrong.append(f"{who}: a pointer of its own led into the victim's session")
    if await world.log_of(world.named) != before:
        wrong.append(f"{who}: a pointer of its own moved the victim's log")
    return wrong


async def leaks(world: World) -> list[str]:
    """What of the victim's tenant's secrets lies where it should not. Sends the requests first whose place strangers
    tried to take."""
    wrong = []
    headers = {"authorization": f"Bearer {world.credentials['owner of orders']}"}
    for route, (path, body) in SENT.items():
        for order in ORDERS:
            text = msgspec.json.encode(body).decode().replace('""', f'"{world.canary} {order}"')
            answer = await world.http.post(
                path, headers={**headers, "idempotency-key": order}, json=msgspec.json.decode(text)
            )
            if answer.status_code != 200:
                wrong.append(f"{route} {order}: {answer.status_code} {answer.text[:300]}")
    owners = ("ana", None)  # the victim, and services of her tenant, who speak for no one
    database = world.assembly.journal.database
    for key in keys_in(database):
        head = head_of(database, key)
        if head is None or (key.tenant == "acme" and head.user in owners):
            continue
        if any(world.canary.encode() in encode_record(record) for record in records_of(database, key)):
            wrong.append(f"something of the victim's is in {key} of {head.user}")
    return wrong
