"""Who attempts what, what must come of it, and what was allowed that should not be.

The rules are written down here a second time, on purpose without `sessions.model.authorization`: a slip in either
shows.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any, NamedTuple

from cryptography.hazmat.primitives.asymmetric import ec
from starlette.routing import Route

from sessions.model.types import Principal
from tests.support.authorisation.attempts import NOBODYS, Came, attempt, like
from tests.support.authorisation.entries import (
    COMMANDS,
    FRAMES,
    HTTP,
    METHODS,
    NOTHING_TO_ALLOW,
    Command,
    Entry,
    Http,
    Method,
    Names,
)
from tests.support.authorisation.world import CANARY, World, without
from tests.support.doors.transport import app_of
from transport.grpc_api import sessile_pb2 as pb
from transport.grpc_api.server import SERVICE

ENTRIES: tuple[Entry, ...] = (*HTTP, *COMMANDS, *METHODS)
IDENTIFIED = ("other tenant", "other user")
EMERGENCY = "emergency operator without a reason"


class Asker(NamedTuple):
    kind: str  # of `world.KINDS`
    who: str
    credential: str | None


# -- what there is ----------------------------------------------------------------------------------------------------


def routes_of(routes: Any) -> Iterator[tuple[str, str]]:
    """(method, path) of every route. Raises TypeError for one of an unknown kind."""
    for route in routes:
        if isinstance(route, Route) or hasattr(route, "methods"):
            yield from ((method, route.path) for method in route.methods or ())
        else:
            raise TypeError(f"{route} is of a kind that the matrix does not know")


async def missing(world: World) -> list[str]:
    """What is there and has no entry, and entries of what is not there."""
    server = world.assembly.server
    routes = [*(await app_of(server)).routes, *(await app_of(server, "rare")).routes]
    there = {f"{method} {path}" for method, path in routes_of(routes)}
    told = {f"{entry.method} {entry.path}" for entry in HTTP}
    frames = {each.__struct_config__.tag for each in FRAMES}
    spoken = {entry.name for entry in COMMANDS} | {str(each.__struct_config__.tag) for each in NOTHING_TO_ALLOW}
    calls = {method.name for method in pb.DESCRIPTOR.services_by_name[SERVICE.rpartition(".")[2]].methods}
    named = {entry.name for entry in METHODS}
    return sorted(map(str, (there ^ told) | (frames ^ spoken) | (calls ^ named)))


# -- who asks ---------------------------------------------------------------------------------------------------------


def askers(world: World, entry: Entry) -> list[Asker]:
    """Everybody who must not be let in to the victim's things by this entry."""
    credentials = world.credentials
    found = [
        Asker("none", "nobody", None),
        *(Asker("garbage", f"garbage {n}", each) for n, each in enumerate(garbage(world))),
        Asker("expired", "expired", credentials["expired"]),
        Asker("revoked", "revoked", credentials["revoked"]),
        *(Asker("other tenant", who, credentials[who]) for who in ("other tenant", "other tenant's ana")),
        Asker("other tenant", "token of another tenant", credentials["token of another tenant"]),
        Asker("other tenant", "a key of the file", "sk-filed-of-beta"),
        *(Asker("other user", who, credentials[who]) for who in ("other user", "other user without a name")),
        Asker("other user", "token of another user", credentials["token of another user"]),
        Asker("other user", "a key of the file without a user", "sk-filed-of-acme"),
    ]
    if isinstance(entry, Http) and entry.custody:
        found.append(Asker("other tenant", "operator of another tenant", credentials["operator of another tenant"]))
        found.append(Asker("other tenant", EMERGENCY, credentials["emergency operator"]))
    match entry.needs:
        case "administrator":
            found += [
                Asker("wrong scope", f"{r} without admin", without(world, r, "admin")) for r in ("service", "operator")
            ]
            found.append(Asker("wrong scope", "a user", credentials["victim"]))
        case "operator":
            found.append(Asker("wrong scope", "operator without admin", without(world, "operator", "admin")))
            found.append(Asker("wrong scope", "service with admin", without(world, "service", "usage")))
        case "reviewer":
            found += [
                Asker("wrong scope", f"{r} without review", without(world, r, "review"))
                for r in ("service", "operator")
            ]
            found.append(Asker("wrong scope", "a user", credentials["victim"]))
        case None | "anyone":
            pass
        case scope:
            for role in ("user", "service", "operator"):
                found.append(Asker("wrong scope", f"{role} without {scope}", without(world, role, scope)))
    return found


def garbage(world: World) -> list[str]:
    """Credentials that are none, each near to one in another way."""
    mine = world.credentials["victim"]
    other = world.credentials["other user"]
    return [
        mine[:-1] + ("a" if mine[-1] != "a" else "b"),
        mine.rpartition("-")[0] + "-" + other.rpartition("-")[2],
        world.token(key=ec.generate_private_key(ec.SECP256R1()), sub="ana"),
        world.token(aud="another", sub="ana"),
        world.token(exp=1, sub="ana"),
        world.token(iss="https://evil.example", sub="ana"),
        "sk-sessile-" + secrets.token_hex(6) + "-" + secrets.token_hex(26),
        "x",
    ]


# -- judging ----------------------------------------------------------------------------------------------------------


def expected(world: World, entry: Entry, asker: Asker) -> str:
    """ "unauthorized", "forbidden", "reason required", "not found" (word for word as for nobody's), "own" (no canary),
    or "open"."""
    if entry.needs is None:
        return "open"
    if asker.kind not in (*IDENTIFIED, "wrong scope"):
        return "unauthorized"
    if asker.kind == "wrong scope":
        return "forbidden"
    assert asker.credential is not None
    principal = world.assembly.gateway.access.authenticate(asker.credential)
    if not _has(principal, entry):
        return "forbidden"
    if entry.about == "tenant" and asker.kind == "other tenant":
        return "reason required" if asker.who == EMERGENCY else "forbidden"
    return "own" if entry.about in (None, "tenant") else "not found"


def _has(principal: Principal, entry: Entry) -> bool:
    match entry.needs:
        case None | "anyone":
            return True
        case "administrator":
            return principal.role != "user" and "admin" in principal.scopes
        case "reviewer":
            return principal.role != "user" and "review" in principal.scopes
        case "operator":
            return principal.role == "operator" and "admin" in principal.scopes
        case "read":
            return "read" in principal.scopes or "chat" in principal.scopes
        case scope:
            return scope in principal.scopes


async def judged(world: World, entry: Entry, asker: Asker, names: Names) -> list[str]:
    """Makes the attempt and says what is wrong with what came of it."""
    came = await attempt(world, entry, asker.credential, names)
    wanted = expected(world, entry, asker)
    told = f"{entry.name} by {asker.who} ({asker.kind})"
    wrong = [f"{told}: showed {word}" for word in shown(world, entry, came)]
    if wanted in ("own", "open"):
        return wrong
    if came.outcome != wanted:
        return [*wrong, f"{told}: {came.outcome} instead of {wanted}: {came.said[:300]}"]
    if wanted == "not found" and names != NOBODYS:
        nobodys = await attempt(world, entry, asker.credential, NOBODYS)
        if like(came.said, names, NOBODYS) != nobodys.said:
            wrong.append(f"{told}: told apart from nothing: {came.said[:300]} against {nobodys.said[:300]}")
    return wrong


def shown(world: World, entry: Entry, came: Came) -> list[str]:
    """What of the victim's is in an answer. Her ids are no secret where the asker has named them."""
    words = [CANARY]
    if entry.about is None:
        words += [
            world.victim.session,
            world.victim.response,
            world.victim.item,
            world.victim.key_id,
            world.victim.review,
        ]
    return [word for word in words if word in came.said]


def kind_of(entry: Entry) -> str:
    match entry:
        case Http():
            return "route"
        case Command():
            return "command"
        case Method():
            return "method"
