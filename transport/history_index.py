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
from sessions.model.types import InputImage, ItemId, Principal, SessionId, Tool

HISTORY_TTL_S: Final = 24 * 3600.0
HISTORY_PLACES_MAX: Final = 200_000
PLACES_PER_KEY_MAX: Final = 16
GIVEN_MAX: Final = 8  # times that one place is given
GIVEN_TTL_S: Final = 3600.0
PLACES_LOOKED_UP_MAX: Final = 128  # the newest of a history; an exchange has two
ROOT_BYTES: Final = 8
MARK_BYTES: Final = 16
MARKED_TEXT_BYTES: Final = 64  # bytes; the KV of shorter beginnings of instructions is computed as fast as it is found
ARGUMENT_VALUES_MAX: Final = 65_536  # in a call, counted by separators; larger arguments are compared as text
EXACT_DIGITS: Final = 19  # of an integer; a longer one is compared as a double
MARKS_PER_CALLER_MAX: Final = 20_000  # beyond that some are forgotten, in no order

_encode = msgspec.msgpack.Encoder(order="deterministic").encode


class HistoryPlace(NamedTuple):
    """The last item of an answer that the index knows, or of the question before that answer, with its session.
    `calls`: the ids of the answer's calls, in order."""

    session: SessionId
    leaf: ItemId
    calls: tuple[str, ...] = ()


class HistoryIndex(Protocol):
    """The index of places by the hash chain of the history up to them. Bounded; a place is forgotten after
    `HISTORY_TTL_S`, and `GIVEN_TTL_S` after `take` first returned it.

    Every call may raise Unavailable; callers then continue as if nothing had been found."""

    shared: ClassVar[bool]
    """Whether the gateways of a cluster share the index; only then is `mark` of use, for placing sessions."""

    async def take(self, chains: Sequence[bytes]) -> tuple[int, HistoryPlace] | None:
        """Returns a place for one of a history's chains, and that chain's index in `chains`; None if no chain has one.
        The first chain with a place counts; of its places, the newest of those that were returned least often."""

    async def put(self, chain: bytes, place: HistoryPlace) -> None:
        """Adds a place, as one that `take` never returned, unless the chain has it already."""

    async def give_back(self, chain: bytes, place: HistoryPlace) -> None:
        """Undoes one `take` of a place."""

    async def drop(self, chain: bytes, place: HistoryPlace) -> None:
        """Removes a place, because no conversation can continue there any more."""

    async def mark(self, caller: bytes, marks: Sequence[bytes], session: SessionId) -> None:
        """Records that a session of a caller begins with the texts that these marks stand for."""

    async def nearest(self, caller: bytes, marks: Sequence[bytes]) -> SessionId | None:
        """Returns the session that was last marked with the first known one of these marks; None if none is known."""


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
        self._places: OrderedDict[bytes, list[_CachedPlace]] = OrderedDict()  # by chain, the oldest first
        self._given: deque[tuple[float, bytes]] = deque()  # (expiry, chain) of places that `take` returned
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
        """Adds a place that an earlier process stored; it is forgotten after `left_s` seconds."""
        self._add(chain, _CachedPlace(place, self._clock() + left_s))

    async def give_back(self, chain: bytes, place: HistoryPlace) -> None:
        there = next((each for each in self._places.get(chain, ()) if each.place == place), None)
        given = GIVEN_MAX - 1 if there is None else max(0, there.given - 1)
        self._add(chain, _CachedPlace(place, self._clock() + (GIVEN_TTL_S if given else HISTORY_TTL_S), given))

    async def drop(self, chain: bytes, place: HistoryPlace) -> None:
        self._keep(chain, [each for each in self._places.get(chain, ()) if each.place != place])

    async def mark(self, caller: bytes, marks: Sequence[bytes], session: SessionId) -> None:
        """Does nothing, because one process has only one replica."""

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
            if self._given:  # places that were returned go first
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
    """One message of a client's history, as items. An answer is one unit with its calls. `at` is the place of its
    content in the request, for errors."""

    items: tuple[cm.NewItem, ...]
    answer: bool = False
    at: str = "input"


def chain_root(
    principal: Principal,
    user: str | None,
    model: str,
    tools: Sequence[Tool],
    instructions: str | None,
    *,
    listed: bool,
) -> bytes:
    """Returns the hash with which a history's chain begins, before its first message. Sessions that lists show
    (`listed`) and others have different ones."""
    who: list[Any] = [principal.tenant, principal.key_id, principal.user, user, model, list(tools), instructions]
    who += ["listed"] if listed else []
    return hashlib.sha256(_encode(who)).digest()


def extend_chain_all(chain: bytes, units: Iterable[Unit], last_calls: Sequence[str] = ()) -> list[bytes]:
    """Returns the chain after each of the messages, which follow `chain`. `last_calls`: the ids of the calls of the
    answer before them, whose outputs may come first."""
    behind = []
    calls = {call_id: number for number, call_id in enumerate(last_calls)}  # of the last answer that has any
    for unit in units:
        calls = {call_id: number for number, call_id in enumerate(call_ids(unit))} or calls
        link = hashlib.sha256(chain + _encode([_hashed_fields(item, calls) for item in unit.items])).digest()
        chain = (link if len(chain) == len(link) else chain)[:ROOT_BYTES] + link
        behind.append(chain)
    return behind


def call_ids(unit: Unit) -> tuple[str, ...]:
    """Returns the ids of an answer's calls, in order."""
    return tuple(item.call_id for item in unit.items if isinstance(item, cm.NewCall))


def rename_outputs(units: Iterable[Unit], names: Mapping[str, str]) -> list[Unit]:
    """Returns the messages after an answer with their outputs renamed by `names`, the ids that its calls have here."""
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
    """The beginning of a history. If no message of the history leads to a place, a session with the same beginning, and
    so its KV, is found by it. `marks` are hashes of ever shorter beginnings."""

    caller: bytes
    marks: list[bytes]  # the longest beginning first


def opening_of(caller: bytes, instructions: str | None, root: bytes, behind: Sequence[bytes]) -> Opening:
    """Returns the marks of a history's messages, of its instructions with tools, and of ever shorter beginnings of the
    instructions, each half as long as the one before. `caller` is from `caller_of`."""
    marks = [chain[-MARK_BYTES:] for chain in (root, *behind[:PLACES_LOOKED_UP_MAX])][::-1]
    text = (instructions or "").encode()
    length = 1 << max(0, len(text).bit_length() - 1)
    while length >= MARKED_TEXT_BYTES:
        marks.append(hashlib.sha256(caller + text[:length]).digest()[-MARK_BYTES:])
        length //= 2
    return Opening(caller, [*marks, caller])


def caller_of(principal: Principal, user: str | None, model: str) -> bytes:
    """Returns the hash of a caller, which all marks of its sessions depend on: nobody else's sessions have them."""
    who: list[Any] = [principal.tenant, principal.key_id, principal.user, user, model]
    return hashlib.sha256(_encode(who)).digest()[-MARK_BYTES:]


def _hashed_fields(item: cm.NewItem, calls: Mapping[str, int]) -> list[Any]:
    match item:
        case cm.NewMessage():
            parts = cm.content_parts(item.content)
            images = [part.sha256 for part in parts if isinstance(part, InputImage)]
            text = "".join(part.text for part in parts)
            return [item.role, text, images] if images else [item.role, text]
        case cm.NewCall():
            return ["call", calls[item.call_id], item.name, *compared_arguments(item.arguments)]
        case cm.NewOutput():
            return ["output", calls.get(item.call_id, item.call_id), item.output]


def compared_arguments(arguments: str) -> tuple[bool, str]:
    """Returns whether arguments are compared as a JSON value, and the text that is compared.

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
    """The part of a history that a session has: its first `units` messages, up to the item at `place`."""

    place: HistoryPlace
    units: int
    chain: bytes


async def look_up(
    index: HistoryIndex, opening: Opening, behind: Sequence[bytes], units: Sequence[Unit]
) -> tuple[HistoryMatch | None, SessionId | None]:
    """Returns the results of `find_history` and `nearest`, fetched at the same time. Raises Unavailable."""
    return await asyncio.gather(find_history(index, behind, units), index.nearest(*opening))


async def find_history(index: HistoryIndex, behind: Sequence[bytes], units: Sequence[Unit]) -> HistoryMatch | None:
    """Returns the place that covers most of a history's messages; None if the index has none. Raises Unavailable."""
    whole = len(units)
    known = [number for number in range(whole, 0, -1) if number < whole or units[number - 1].answer]
    known = known[:PLACES_LOOKED_UP_MAX]
    taken = await index.take([behind[number - 1] for number in known])
    if taken is None:
        return None
    number = known[taken[0]]
    return HistoryMatch(taken[1], number, behind[number - 1])
