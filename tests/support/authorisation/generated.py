"""Attempts made up from a seed: any route, command or method, by anybody who must not be let in, in any disguise.

A disguise is something that a careless server might believe: headers that name a tenant or a user, a key in odd places
or twice, a method override, a body that names somebody, a path written in other ways, names that are nearly right. It
never makes an attempt rightful, so what must come of it is at most what came of it undisguised: nothing of the victim's
may be shown, nothing may be moved, and where the plain attempt is refused the disguised one is not allowed.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Callable
from typing import Any, Final

from tests.support.authorisation.attempts import NOBODYS, Came, attempt, over_http, talk
from tests.support.authorisation.chosen import one_chosen
from tests.support.authorisation.entries import COMMANDS, Command, Entry, Http, Method, Names
from tests.support.authorisation.matrix import ENTRIES, Asker, askers, expected, judged, shown
from tests.support.authorisation.world import World

Headers = dict[str, str]
FORWARDED: Final = (
    "x-tenant",
    "x-user",
    "x-sessile-user",
    "x-sessile-tenant",
    "x-forwarded-user",
    "x-forwarded-for",
    "x-real-ip",
    "x-original-url",
    "x-rewrite-url",
    "x-http-method-override",
    "x-session-id",
    "session-id",
    "x-api-key",
    "api-key",
    "cookie",
    "proxy-authorization",
    "forwarded",
    "idempotency-key",
    "last-event-id",
)


def lies(world: World, rng: random.Random) -> Headers:
    """Headers that say that somebody else is there."""
    values = ("acme", "ana", "127.0.0.1", "GET", "/healthz", world.victim.session, world.victim.key_id, "for=127.0.0.1")
    return {name: rng.choice(values) for name in rng.sample(FORWARDED, rng.randint(1, 5))}


def mangled(credential: str, rng: random.Random) -> str:
    """A credential that is none any more: changed, cut, doubled, wrapped."""
    place = rng.randrange(len(credential))
    ways: tuple[Callable[[], str], ...] = (
        lambda: credential[:place] + rng.choice("abcdefgh234567-") + credential[place + 1 :],
        lambda: credential[: place + 1] if place + 1 < len(credential) else "sk-",
        lambda: credential + rng.choice("abc.=,;"),
        lambda: f"{credential},{credential}",
        lambda: credential.upper(),
        lambda: base64.b64encode(credential.encode()).decode(),
        lambda: credential.replace("-", "_"),
        lambda: f'"{credential}"',
    )
    made = rng.choice(ways)()
    return made if made != credential else credential + "x"


def near(name: str, rng: random.Random) -> str:
    """A name that is nearly the victim's, or is it in another spelling."""
    return rng.choice(
        (name.upper(), name[:-1], name + "0", name.replace("_", "-"), f"{name}%20", f"./{name}", f"{name}/")
    )


async def one(world: World, rng: random.Random, names: Names) -> list[str]:
    """Makes one attempt; what is wrong with what came of it."""
    way = rng.choice(("plain", "lies", "mangled", "near", "elsewhere", "chosen"))
    if way == "chosen":
        return await one_chosen(world, rng)
    entry = rng.choice(COMMANDS if way == "elsewhere" else ENTRIES)
    asker = rng.choice(askers(world, entry))
    if way == "plain":
        return await judged(world, entry, asker, names)
    told = f"{entry.name} by {asker.who} ({asker.kind}), {way}"
    came, wanted = await _disguised(world, rng, entry, asker, names, way)
    wrong = [f"{told}: showed {word}" for word in shown(world, entry, came)]
    if came.outcome == "allowed" and wanted not in ("own", "open"):
        wrong.append(f"{told}: allowed: {came.said[:300]}")
    return wrong


async def _disguised(
    world: World, rng: random.Random, entry: Entry, asker: Asker, names: Names, way: str
) -> tuple[Came, str]:
    """The attempt and what the plain one must come to."""
    wanted = expected(world, entry, asker)
    match way:
        case "lies" if isinstance(entry, Http):
            return await over_http(world, entry, asker.credential, names, lies(world, rng)), wanted
        case "mangled":
            # The victim's own key, spoilt: nobody's.
            spoilt = mangled(world.victim.credential, rng)
            return await attempt(world, entry, spoilt, names), "open" if entry.needs is None else "unauthorized"
        case "near" if entry.about not in (None, "tenant") and not isinstance(entry, Command):
            wrong = Names(*(near(name, rng) for name in names))
            return await attempt(world, entry, asker.credential, wrong), wanted
        case "elsewhere" if isinstance(entry, Command):
            # A WebSocket whose handshake and hello disagree, or whose key stands in the subprotocol or the query.
            return await _elsewhere(world, rng, entry, asker, names), wanted
    return await attempt(world, entry, asker.credential, rng.choice((names, NOBODYS))), wanted


async def _elsewhere(world: World, rng: random.Random, entry: Command, asker: Asker, names: Names) -> Came:
    frame: Any = entry.make(names, "attempt")
    credential = asker.credential
    match rng.randrange(4):
        case 0:  # the handshake's is what counts
            return await talk(world, [frame], world.victim.credential, header=f"Bearer {credential or 'x'}")
        case 1:
            return await talk(world, [frame], credential, query=f"?ticket={rng.choice(('x', credential or 'tkt_'))}")
        case 2:
            return await talk(world, [frame], credential, query="?tenant=acme&user=ana&auth=" + world.victim.key_id)
        case _:
            hidden = base64.urlsafe_b64encode((credential or "x").encode()).decode().rstrip("=")
            return await talk(world, [frame], None, protocols=("sessile.v1+json", f"sessile.bearer.{hidden}"))


def doors() -> dict[str, int]:
    """How many entries each door has."""
    return {
        "routes": sum(isinstance(entry, Http) for entry in ENTRIES),
        "commands": sum(isinstance(entry, Command) for entry in ENTRIES),
        "methods": sum(isinstance(entry, Method) for entry in ENTRIES),
    }
