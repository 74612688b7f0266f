"""Ranks sessions' KV by when their next turn is expected, learned from when sessions came back.

Three things predict whether and when a session goes on: how long it has been silent, how far the conversation has
come, and how fast it went. So the chance to return, per second of silence, is a hazard

    h(silence | turns, size, pace) = base(silence) x turns x size x pace

that is learned as rates: returns per second of exposure, in cells of a table (Cox's proportional hazards, fitted
as Poisson rates by iterative scaling). Silences that have not ended count as exposure, so that sessions which never
come back are learned from, too. Old observations fade.

The rank of a session is its Gittins index: the best rate, over all horizons, of returns per second that its KV is kept,

    index(a) = max over H of P(return within H | silent for a) / E[time kept]

which is LRU's order where hazards fall with silence, and more than that where they rise first: nobody reads an answer
in three seconds (Gittins, 1979; ranking cached things by hits per time kept: LHD, Beckmann et al., NSDI '18).

A session that waits for tools is not silent as a person is: while it waits it ranks by how long those tools take
(`tool_times`), and its return teaches that and nothing about people.

`ReturnModel` and its fit are pure; `ReturnTracker` remembers sessions under a bound. Neither knows tiers, nor what
bytes cost. Before anything was observed the ranks are those of LRU.
"""

from __future__ import annotations

import bisect
import math
import random
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from inference.kv.tool_times import ToolSet, ToolTime, ToolTimes, tool_set
from sessions.model.types import SessionKey

Floats = npt.NDArray[np.float64]

AGES_S: Final = (
    *(0, 5, 10, 20, 30, 40, 50, 60, 80, 100, 130, 160, 200, 250, 300, 400, 500, 650, 800, 1000, 1300, 1700, 2200),
    *(3000, 4000, 7200, 14_400, 43_200, 86_400, 604_800),
)
SIZES: Final = (0, 1000, 2000, 4000, 8000, 16_000, 32_000, 64_000)  # tokens
PACES_S: Final = (0, 30, 50, 70, 100, 150, 250, 500)  # the silence before the last turn; one class more has none
_TURNS: Final = 8
_CELLS: Final = (_TURNS, len(SIZES), len(PACES_S) + 1)
_BUCKETS: Final = len(AGES_S) - 1
_SCALINGS: Final = 12
_PRIOR_EVENTS: Final = 10.0  # weight of the assumption that a factor is 1, in observed events
_STEPS: Final = 4  # steps of an index's table in each bucket of age
_LEVELS: Final = 8.0  # tables per e-fold of a session's factor
FIT_SAMPLE: Final = 4096  # how many ongoing silences a fit uses at most: it runs on the event loop
_EVENTS_MAX: Final = 50_000.0  # beyond, what was observed counts half

_EDGES: Final[Floats] = np.array(AGES_S, dtype=np.float64)
_WIDTHS: Final[Floats] = np.diff(_EDGES)


class SilenceKind(NamedTuple):
    """The class of a session's silence, by which its return is estimated: number of turns, size, and pace."""

    turns: int
    size: int
    pace: int


def silence_kind(turns: int, tokens: int, pace_s: float | None) -> SilenceKind:
    """Returns the class of a silence. `turns`: how many turns the session had before the last one; `tokens`: the tokens
    of its conversation; `pace_s`: how long the silence before this one was, None after a first turn."""
    pace = 0 if pace_s is None else bisect.bisect_right(PACES_S, pace_s)
    return SilenceKind(min(turns, _TURNS - 1), bisect.bisect_right(SIZES, tokens) - 1, pace)


class ReturnModel:
    """A statistical model of when silent sessions return; `fit` applies what `observe` has counted."""

    def __init__(self) -> None:
        self._exposure: Floats = np.zeros((*_CELLS, _BUCKETS))  # seconds of silence
        self._returns: Floats = np.zeros((*_CELLS, _BUCKETS))
        self._base: Floats = _prior()
        self._factors: tuple[Floats, ...] = tuple(np.ones(size) for size in _CELLS)
        self._tables: dict[int, list[float]] = {}

    def observe(self, kind: SilenceKind, silence_s: float, *, returned: bool) -> None:
        """Counts a silence that has ended: with a return of the session, or, if not `returned`, because it is not
        waited for any more."""
        self._exposure[kind] += _exposure(silence_s)
        if returned:
            self._returns[kind][_bucket(silence_s)] += 1

    def fit(self, silent: Iterable[tuple[SilenceKind, float]] = (), *, weight: float = 1.0) -> None:
        """Fits the model to all that was observed. `silent` has the silences that have not ended, as (kind, seconds so
        far); each of them counts `weight` times."""
        exposure = self._exposure.copy()
        going_on = list(silent)
        if going_on:
            cells = np.ravel_multi_index(np.array([kind for kind, _ in going_on]).T, _CELLS)
            spans = _exposure(np.array([seconds for _, seconds in going_on])[:, None])
            np.add.at(exposure.reshape(-1, _BUCKETS), cells, weight * spans)
        factors = [np.ones(size) for size in _CELLS]
        prior = _prior()
        events = self._returns.sum(axis=(0, 1, 2))
        base = prior
        for _ in range(_SCALINGS):
            weights = factors[0][:, None, None] * factors[1][None, :, None] * factors[2][None, None, :]
            exposed = np.einsum("tspb,tsp->b", exposure, weights)
            base = (events + 1.0) / (exposed + 1.0 / prior)
            for axis in range(len(_CELLS)):
                weights = factors[0][:, None, None] * factors[1][None, :, None] * factors[2][None, None, :]
                others = tuple(other for other in range(len(_CELLS)) if other != axis)
                expected = (np.einsum("tspb,b->tsp", exposure, base) * weights).sum(axis=others)
                seen = self._returns.sum(axis=(*others, len(_CELLS)))
                factors[axis] = factors[axis] * (seen + _PRIOR_EVENTS) / (expected + _PRIOR_EVENTS)
        self._base, self._factors = base, tuple(factors)
        self._tables.clear()
        if events.sum() > _EVENTS_MAX:
            self._exposure *= 0.5
            self._returns *= 0.5

    def index(self, kind: SilenceKind, silence_s: float) -> float:
        """Returns the Gittins index of a silence: expected returns per second of keeping. Larger ones are kept."""
        factor = self._factors[0][kind.turns] * self._factors[1][kind.size] * self._factors[2][kind.pace]
        level = round(math.log(factor) * _LEVELS)
        table = self._tables.get(level)
        if table is None:
            table = self._tables[level] = _indices(self._base * math.exp(level / _LEVELS))
        bucket = _bucket(silence_s)
        step = int((silence_s - AGES_S[bucket]) / _WIDTHS[bucket] * _STEPS)
        return table[bucket * _STEPS + min(step, _STEPS - 1)]


class _Silence(NamedTuple):
    kind: SilenceKind
    since_s: float
    turns: int


class _ToolWait(NamedTuple):
    tools: ToolSet
    since_s: float


class ReturnTracker:
    """Observes the silences of one engine's sessions, to rank them for eviction. `clock` counts seconds."""

    def __init__(
        self, clock: Callable[[], float], *, sessions_max: int = 50_000, fit_every: int = 256, model: Any = None
    ) -> None:
        self.model: ReturnModel = model or ReturnModel()
        self._clock = clock
        self._sessions_max = sessions_max
        self._fit_every = fit_every
        self._unfitted = 0
        self._silences: OrderedDict[SessionKey, _Silence] = OrderedDict()
        self._tool_waits: OrderedDict[SessionKey, _ToolWait] = OrderedDict()
        self._tool_times = ToolTimes()

    def on_tools(self, key: SessionKey, tools: Sequence[str]) -> ToolTime:
        """Notes that a turn ended with calls of these tools, and will go on with their outputs. Returns how long
        those take."""
        wait = _ToolWait(tool_set(key.tenant, tools), self._clock())
        self._tool_waits[key] = wait
        self._tool_waits.move_to_end(key)
        if len(self._tool_waits) > self._sessions_max:
            self._tool_waits.popitem(last=False)
        return self._tool_times.expected(wait.tools)

    def waits_for_tools(self, key: SessionKey) -> bool:
        """Returns whether the session waits for outputs of tools and may still get them."""
        return self._tool_index(key) is not None

    def on_turn(self, key: SessionKey, tokens: int) -> None:
        """Notes that a turn begins, with a prompt of so many tokens; or goes on with its tools' outputs."""
        now = self._clock()
        before = self._silences.pop(key, None)
        turns, pace_s = 0, None
        wait = self._tool_waits.pop(key, None)
        if wait is not None:
            self._tool_times.observe(wait.tools, now - wait.since_s)
        if before is not None and wait is not None:
            size = silence_kind(0, tokens, None).size
            self._silences[key] = _Silence(before.kind._replace(size=size), now, before.turns)
            return
        if before is not None:
            turns, pace_s = before.turns + 1, now - before.since_s
            self.model.observe(before.kind, pace_s, returned=True)
            self._unfitted += 1
        self._silences[key] = _Silence(silence_kind(turns, tokens, pace_s), now, turns)
        if len(self._silences) > self._sessions_max:
            _, longest = self._silences.popitem(last=False)
            self.model.observe(longest.kind, now - longest.since_s, returned=False)
        if self._unfitted >= self._fit_every:
            self._unfitted = 0
            going_on = list(self._silences.values())
            some = going_on if len(going_on) <= FIT_SAMPLE else random.sample(going_on, FIT_SAMPLE)
            weight = len(going_on) / len(some)
            self.model.fit(((silence.kind, now - silence.since_s) for silence in some), weight=weight)

    def forget(self, key: SessionKey) -> None:
        """Drops a deleted session: that it does not return teaches nothing."""
        self._silences.pop(key, None)
        self._tool_waits.pop(key, None)

    def index(self, key: SessionKey, used_s: float, tokens: int) -> float:
        """Returns the session's rank now: the higher, the sooner its return is expected. If the session is not
        remembered, its silence began at `used_s`."""
        waiting = self._tool_index(key)
        if waiting is not None:
            return waiting
        silence = self._silences.get(key)
        now = self._clock()
        if silence is None:
            return self.model.index(silence_kind(0, tokens, None), max(0.0, now - used_s))
        return self.model.index(silence.kind, max(0.0, now - silence.since_s))

    def _tool_index(self, key: SessionKey) -> float | None:
        wait = self._tool_waits.get(key)
        if wait is None:
            return None
        return self._tool_times.expected(wait.tools).index(max(0.0, self._clock() - wait.since_s))


# -- inside ----------------------------------------------------------------------------------------------


def _prior() -> Floats:
    """Returns the assumed return rates before any observation: the longer the silence, the less likely its end."""
    middle = (_EDGES[:-1] + _EDGES[1:]) / 2
    prior: Floats = 0.5 / (middle + 60.0)
    return prior


def _bucket(age_s: float) -> int:
    return min(_BUCKETS - 1, bisect.bisect_right(AGES_S, age_s) - 1)


def _exposure(silence_s: float | Floats) -> Floats:
    """Returns how many seconds of a silence fall into each bucket of the model; for a column of silences a row for
    each."""
    return np.clip(silence_s - _EDGES[:-1], 0.0, _WIDTHS)


def _indices(hazard: Floats) -> list[float]:
    """Returns the Gittins index at each step of age; works from the end and merges a step with better ones that
    follow."""
    steps = np.repeat(_WIDTHS / _STEPS, _STEPS)
    rates = np.repeat(hazard, _STEPS)
    indices = [0.0] * len(steps)
    later: list[tuple[float, float, float]] = []  # (P(return), E[time], P(none)) of stretches, the next one last
    for number in range(len(steps) - 1, -1, -1):
        some = -math.expm1(-rates[number] * steps[number])
        none, time = 1.0 - some, some / rates[number]
        while later and later[-1][0] * time > some * later[-1][1]:
            next_some, next_time, next_none = later.pop()
            some, time, none = some + none * next_some, time + none * next_time, none * next_none
        later.append((some, time, none))
        indices[number] = some / time
    return indices
