"""Finds the session that already holds the history which a stateless client resends.

A history is named by a chain of hashes: the first over the caller (tenant, principal, end user), the model, the tools
and the instructions, each next one over the one before it and one message. The index knows, for the chain as it stood
behind an answer of ours, where that answer lies, and for the chain behind a question of ours, where the question lies.
So a place is found only by whoever knows its words: same principal, `user`, model, tools and instructions. A call's
arguments are the same words if they are the same JSON value, and its id is its number in its answer: agents parse the
one and write it anew, and rename the other. A place remembers the ids that its calls have here. All chains of a
conversation begin with the same `ROOT_BYTES`, those of the hash behind its first message: an index may keep them
together.

The longest beginning of a history that is known wins. Where a client changed an answer before it resent it (white space
trimmed, cut where the reader pressed stop, reasoning taken out, other words, nothing at all), that is the question in
front of it: what comes is a branch from there, and its tokens are compared with those of the first. A question is a
place for histories that go on behind it only: the same first question again is another conversation.

`take` gives a place to one request, and to the next request with this history another one while there is any from which
nobody went on. Then it gives them a second time: what goes on from there is a fork, a branch beside the first one in
the same session, whose KV up to there it shares; an edited or repeated question costs what stands behind the fork. A
place is given `GIVEN_MAX` times, so that a beginning which a thousand conversations have in common does not tie them
all to one actor, and for `GIVEN_TTL_S` from the first time on. Whoever finds nothing begins a session of its own.
Losing the index costs tokens, never a conversation.

A new session begins best where its caller's KV is. So what sessions begin with is marked too, for the gateways of a
cluster: `nearest` gives the session that has most in common with a history. It is a hint for placement and nothing
else; whose KV an engine may reuse is decided by who calls (`sessions.model.generation.cache_scope_of`).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple, Never, Protocol

import msgspec

from sessions.model import commands as cm
from sessions.model.types import ItemId, Principal, SessionId, Tool

HISTORY_TTL_S: Final = 24 * 3600.0
HISTORY_PLACES_MAX: Final = 200_000
PLACES_PER_KEY_MAX: Final = 16
GIVEN_MAX: Final = 8  # times that one place is given
GIVEN_TTL_S: Final = 3600.0
PLACES_LOOKED_UP_MAX: Final = 128  # of a history, the newest: an exchange has two
ROOT_BYTES: Final = 8
MARK_BYTES: Final = 16
MARKED_TEXT_BYTES: Final = 64  # shorter beginnings of instructions are computed as soon
ARGUMENT_VALUES_MAX: Final = 65_536  # of a call, by its separators; more are compared as they are written
EXACT_DIGITS: Final = 19  # of an integer; a longer one is compared as a double
MARKS_PER_CALLER_MAX: Final = 20_000  # more: some of them, whichever, are forgotten

_encode = msgspec.msgpack.Encoder(order="deterministic").encode


class HistoryPlace(NamedTuple):
    """The last item of an answer, or of what it answers, and its session; the ids of the answer's calls, in order."""

    session: SessionId
    leaf: ItemId
    calls: tuple[str, ...] = ()


class HistoryIndex(Protocol):
    """Places by the chain that leads to them. Bounded; a place is forgotten after `HISTORY_TTL_S`, and `GIVEN_TTL_S`
    after it was first given.

    Every call may raise Unavailable; callers go on as if nothing had been found."""

    shared: ClassVar[bool]
    """By the gateways of a cluster, which place sessions; else nothing need be marked."""

    async def take(self, chains: Sequence[bytes]) -> tuple[int, HistoryPlace] | None:
        """The first of these chains of one conversation that has a place, by its number, and that place: the one that
        was given least often, of those which never were the newest."""

    async def put(self, chain: bytes, place: HistoryPlace) -> None:
        """As one that was never given, unless it is there already."""

    async def give_back(self, chain: bytes, place: HistoryPlace) -> None:
        """As if it had been given once less."""

    async def drop(self, chain: bytes, place: HistoryPlace) -> None:
        """Nobody can go on from it any more."""

    async def mark(self, caller: bytes, marks: Sequence[bytes], session: SessionId) -> None:
        """A session of the caller begins with what these marks stand for."""

    async def nearest(self, caller: bytes, marks: Sequence[bytes]) -> SessionId | None:
        """The session that was marked last with the first of these marks that is known."""


@dataclass(slots=True)
class _CachedPlace:
    place: HistoryPlace
    until: float
    given: int = 0


class MemoryHistory:
    """Implements `HistoryIndex` for one process."""

    shared: ClassVar[bool] = False

    def __init__(self, clock: Callable[[], float], *, places_max: int = HISTORY_PLACES_MAX) -> None:
        self._clock = clock
        self._places_max = places_max
        self._places: OrderedDict[bytes, list[_CachedPlace]] = OrderedDict()  # of a chain, the oldest first
        self._given: deque[tuple[float, bytes]] = deque()  # chains with a place that was given, by when it goes
        self._count = 0

    def __len__(self) -> int:
        return self._count

    async def take(self, chains: Sequence[bytes]) -> tuple[int, HistoryPlace] | None:
        now = self._clock()
        self._sweep(now)
        for number, chain in enumerate(chains):
            kept = [each for each in self._places.get(chain, ()) if each.until > now]
            chosen = min(reversed(kept), key=lambda each: each.given, default=None)
            if chosen is not None:
                chosen.given += 1
                if chosen.given == 1:
                    chosen.until = min(chosen.until, now + GIVEN_TTL_S)
                    self._given.append((chosen.until, chain))
            self._keep(chain, [each for each in kept if each.given < GIVEN_MAX])
            if chosen is not None:
                return number, chosen.place
        return None

    async def put(self, chain: bytes, place: HistoryPlace) -> None:
        kept = self._places.get(chain, [])
        if any(each.place == place and each.given for each in kept):
            return
        self._add(chain, _CachedPlace(place, self._clock() + HISTORY_TTL_S))

    def _add_known(self, chain: bytes, place: HistoryPlace, left_s: float) -> None:
        """One that was put before this process began."""
        self._add(chain, _CachedPlace(place, self._clock() + left_s))

    async def give_back(self, chain: bytes, place: HistoryPlace) -> None:
        there = next((each for each in self._places.get(chain, ()) if each.place == place), None)
        given = GIVEN_MAX - 1 if there is None else max(0, there.given - 1)
        self._add(chain, _CachedPlace(place, self._clock() + (GIVEN_TTL_S if given else HISTORY_TTL_S), given))

    async def drop(self, chain: bytes, place: HistoryPlace) -> None:
        self._keep(chain, [each for each in self._places.get(chain, ()) if each.place != place])

    async def mark(self, caller: bytes, marks: Sequence[bytes], session: SessionId) -> None:
        """Nothing: one process has one replica."""

    async def nearest(self, caller: bytes, marks: Sequence[bytes]) -> SessionId | None:
        return None

    def _add(self, chain: bytes, new: _CachedPlace) -> None:
        rest = [each for each in self._places.get(chain, ()) if each.place != new.place]
        self._keep(chain, [*rest, new][-PLACES_PER_KEY_MAX:])
        self._places.move_to_end(chain)
        if new.given:
            self._given.append((new.until, chain))
        self._sweep(self._clock())
        while max(self._count, len(self._given)) > self._places_max:
            if self._given:  # those first that were gone on from
                chain = self._given.popleft()[1]
                self._keep(chain, [each for each in self._places.get(chain, ()) if not each.given])
            else:
                self._keep(next(iter(self._places)), [])

    def _sweep(self, now: float) -> None:
        while self._given and self._given[0][0] <= now:
            chain = self._given.popleft()[1]
            self._keep(chain, [each for each in self._places.get(chain, ()) if each.until > now])

    def _keep(self, chain: bytes, kept: list[_CachedPlace]) -> None:
        self._count += len(kept) - len(self._places.get(chain, ()))
        if kept:
            self._places[chain] = kept
        else:
            self._places.pop(chain, None)


class Unit(NamedTuple):
    """One message of a client's history, as items. An answer is one unit with its calls."""

    items: tuple[cm.NewItem, ...]
    answer: bool = False


def chain_root(
    principal: Principal,
    user: str | None,
    model: str,
    tools: Sequence[Tool],
    instructions: str | None,
    *,
    listed: bool,
) -> bytes:
    """Returns the chain before the first message. What is not stored never goes on in a session that lists show."""
    who: list[Any] = [principal.tenant, principal.key_id, principal.user, user, model, list(tools), instructions]
    who += ["listed"] if listed else []
    return hashlib.sha256(_encode(who)).digest()


def extend_chain_all(chain: bytes, units: Iterable[Unit], last_calls: Sequence[str] = ()) -> list[bytes]:
    """The chain behind each message. `last_calls`: ids of the calls that the first of them may bring outputs of."""
    behind = []
    calls = {call_id: number for number, call_id in enumerate(last_calls)}  # of the last answer that has any
    for unit in units:
        calls = {call_id: number for number, call_id in enumerate(call_ids(unit))} or calls
        link = hashlib.sha256(chain + _encode([_hashed_fields(item, calls) for item in unit.items])).digest()
        chain = (link if len(chain) == len(link) else chain)[:ROOT_BYTES] + link
        behind.append(chain)
    return behind


def call_ids(unit: Unit) -> tuple[str, ...]:
    """The ids of an answer's calls, in order."""
    return tuple(item.call_id for item in unit.items if isinstance(item, cm.NewCall))


def rename_outputs(units: Iterable[Unit], names: Mapping[str, str]) -> list[Unit]:
    """The messages behind an answer whose calls have other ids here, their outputs under these ids."""
    renamed = []
    for unit in units:
        if call_ids(unit):
            names = {}
        items = (
            msgspec.structs.replace(item, call_id=names.get(item.call_id, item.call_id))
            if isinstance(item, cm.NewOutput)
            else item
            for item in unit.items
        )
        renamed.append(unit._replace(items=tuple(items)))
    return renamed


class Opening(NamedTuple):
    """What a history begins with, as far as its sessions are looked for by it: where none of its messages leads to a
    place, the session that has most of it in common is where its KV is."""

    caller: bytes
    marks: list[bytes]  # those of more come first


def opening_of(caller: bytes, instructions: str | None, root: bytes, behind: Sequence[bytes]) -> Opening:
    """Marks of the messages, of the instructions with the tools, and of the instructions' beginnings, of which each is
    half as long as the one before it. `caller`: of `caller_of`."""
    marks = [chain[-MARK_BYTES:] for chain in (root, *behind[:PLACES_LOOKED_UP_MAX])][::-1]
    text = (instructions or "").encode()
    length = 1 << max(0, len(text).bit_length() - 1)
    while length >= MARKED_TEXT_BYTES:
        marks.append(hashlib.sha256(caller + text[:length]).digest()[-MARK_BYTES:])
        length //= 2
    return Opening(caller, [*marks, caller])


def caller_of(principal: Principal, user: str | None, model: str) -> bytes:
    """Whose sessions are looked for: nobody else's have these names."""
    who: list[Any] = [principal.tenant, principal.key_id, principal.user, user, model]
    return hashlib.sha256(_encode(who)).digest()[-MARK_BYTES:]


def _hashed_fields(item: cm.NewItem, calls: Mapping[str, int]) -> list[Any]:
    match item:
        case cm.NewMessage():
            return [item.role, "".join(part.text for part in cm.content_parts(item.content))]
        case cm.NewCall():
            return ["call", calls[item.call_id], item.name, *_hashed_arguments(item.arguments)]
        case cm.NewOutput():
            return ["output", calls.get(item.call_id, item.call_id), item.output]


def _hashed_arguments(arguments: str) -> tuple[bool, str]:
    """Whether arguments are compared as a JSON value, and the one spelling of what is compared.

    `{"b": 1.0, "a": "\\u00fc"}` and `{"a":"ü","b":1}` are the same; `{"b": true}` is not."""
    if sum(map(arguments.count, ",[{")) > ARGUMENT_VALUES_MAX:
        return False, arguments
    try:
        return True, _WRITER.encode(_READER.decode(arguments))
    except (ValueError, RecursionError):  # no JSON, nested too deep, or with numbers that no client could keep
        return False, arguments


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= EXACT_DIGITS else _fraction(digits)


def _fraction(digits: str) -> int | float:
    value = float(digits)
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def _refuse_constant(name: str) -> Never:
    raise ValueError(f"{name} is no JSON.")


_READER: Final = json.JSONDecoder(parse_int=_integer, parse_float=_fraction, parse_constant=_refuse_constant)
_WRITER: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


class HistoryMatch(NamedTuple):
    """How much of a history is in a session already: `units` messages, up to `place`."""

    place: HistoryPlace
    units: int
    chain: bytes


async def look_up(
    index: HistoryIndex, opening: Opening, behind: Sequence[bytes], units: Sequence[Unit]
) -> tuple[HistoryMatch | None, SessionId | None]:
    """The place of `find_history`, and the session of `nearest`, in one round trip. Raises Unavailable."""
    return await asyncio.gather(find_history(index, behind, units), index.nearest(*opening))


async def find_history(index: HistoryIndex, behind: Sequence[bytes], units: Sequence[Unit]) -> HistoryMatch | None:
    """The place that holds most of the history, as the index gives it. Raises Unavailable."""
    whole = len(units)
    known = [number for number in range(whole, 0, -1) if number < whole or units[number - 1].answer]
    known = known[:PLACES_LOOKED_UP_MAX]
    taken = await index.take([behind[number - 1] for number in known])
    if taken is None:
        return None
    number = known[taken[0]]
    return HistoryMatch(taken[1], number, behind[number - 1])
