"""What a simulated fleet is: its sessions and replicas, what an engine does, how people talk, what happens to it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from actors.handoff.drain import DrainLimits
from actors.hosting.runtime_limits import RuntimeLimits
from actors.peer.links import LinkLimits
from inference.kv.cost import CostModel

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]

DAY_S: Final = 86_400
Kind = Literal["rack_killed", "rack_silent", "region_drained", "hot_tenant", "rolling_upgrade"]

LIMITS: Final = RuntimeLimits()
LINKS: Final = LinkLimits()
DRAIN: Final = DrainLimits()


class FleetEvent(msgspec.Struct, frozen=True):
    """`share`: of the replicas, or how many times more a hot tenant talks."""

    kind: Kind
    at_s: int
    share: float


class EngineModel(msgspec.Struct, frozen=True):
    """One replica: a 70B model in eight bits on four GPUs."""

    slots: int = 16
    context: int = 32_768
    token_bytes: int = 163_840  # of KV
    prefill_tokens_s: float = 8_000.0
    attention_s: float = 2e-9  # more per pair of tokens
    tpot_idle_s: float = 0.02
    tpot_full_s: float = 0.04
    host_bytes: float = 256e9
    disk_bytes: float = 2e12
    device_bytes_s: float = 20e9
    disk_bytes_s: float = 5e9

    def costs(self) -> CostModel:
        """The product's model of costs after it has measured this engine."""
        model = CostModel()
        for begin, end in ((0, 512), (0, 8_192), (8_192, 8_704), (0, 32_768)) * 8:
            pairs = (end * end - begin * begin) / 2
            model.prefilled(begin, end, (end - begin) / self.prefill_tokens_s + pairs * self.attention_s)
        for tier, pace in (("device", self.device_bytes_s), ("disk", self.disk_bytes_s)):
            for num_bytes in (10**7, 10**9) * 8:
                model.moved(tier, num_bytes, 0.002 + num_bytes / pace, 0.0)
        return model


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    sessions: int = 100_000
    replicas: int = 100
    placers: int = 4  # processes that place sessions, each with its own knowledge
    seconds: int = 3_600
    starts_at_s: int = 10 * 3_600  # of the day
    seed: int = 1
    tenants: int = 50
    events: tuple[FleetEvent, ...] = ()
    engine: EngineModel = EngineModel()
    ttft_ms: float = 5_000.0
    restart_s: int = 60
    upgrade_wave: float = 0.02  # of the replicas at once
    drain_over_s: int = 600  # a region's replicas begin in turn
    hot_requests_per_minute: int = 3_000
    goes_on: float = 0.8  # after an answer, within minutes
    pause_s: float = 8_640.0  # otherwise, on average
    replaced: float = 0.05  # of those, by a new session


def day(second: float) -> float:
    """How much people talk at a second of the day, 1 on average: least at four, most at sixteen o'clock."""
    return 1.0 - 0.6 * math.cos((second / DAY_S - 4 / 24) * 2 * math.pi)


class Workload:
    """How long people are silent between two turns, what they send, and how long answers are."""

    def __init__(
        self,
        scenario: Scenario,
        rng: np.random.Generator,
        *,
        silences_s: Sequence[float] = (),
        prompts: Sequence[int] = (),
        answers: Sequence[int] = (),
    ) -> None:
        """From a trace's samples, or from distributions where there are none."""
        self._scenario = scenario
        self._rng = rng
        self._silences = np.array(silences_s or self._lognormal(60.0, 0.9, 10_000), dtype=np.float32)
        self._prompts = np.array(prompts or self._lognormal(120.0, 1.0, 10_000), dtype=np.float32)
        self._answers = np.array(answers or self._lognormal(250.0, 0.7, 10_000), dtype=np.float32)
        self.from_trace = bool(silences_s)

    def _lognormal(self, median: float, sigma: float, count: int) -> list[float]:
        return [float(each) for each in self._rng.lognormal(math.log(median), sigma, count)]

    def prompts(self, count: int) -> Ints:
        drawn: Ints = np.clip(self._rng.choice(self._prompts, count), 8, 8_192).astype(np.int32)
        return drawn

    def answers(self, count: int) -> Ints:
        drawn: Ints = np.clip(self._rng.choice(self._answers, count), 8, 1_500).astype(np.int32)
        return drawn

    def silences(self, count: int, now_s: float, faster: Any = 1.0) -> tuple[Floats, Bools]:
        """Until the next turn, and whether the conversation has ended meanwhile."""
        going_on = self._rng.random(count) < self._scenario.goes_on
        short = self._rng.choice(self._silences, count)
        rate = day(self._scenario.starts_at_s + now_s) / self._scenario.pause_s
        long = self._rng.exponential(1.0, count).astype(np.float32) / rate
        return np.where(going_on, short, long).astype(np.float32) / faster, ~going_on

    def first_silences(self, count: int) -> tuple[Floats, Floats]:
        """As an observer finds a fleet that has run for long: how long each session has been silent, and will be."""
        going_on, pause_s = self._scenario.goes_on, self._scenario.pause_s / day(self._scenario.starts_at_s)
        short_s = float(self._silences.mean())
        talking = self._rng.random(count, dtype=np.float32) < (
            going_on * short_s / (going_on * short_s + (1 - going_on) * pause_s)
        )
        ahead = self._rng.standard_exponential(count, dtype=np.float32) * np.float32(pause_s)
        behind = self._rng.standard_exponential(count, dtype=np.float32) * np.float32(pause_s)
        where = np.flatnonzero(talking)
        longer = self._silences / self._silences.sum()  # who looks falls into the long ones more often
        whole = self._rng.choice(
            self._silences, len(where), p=longer.astype(np.float64) / float(longer.sum(dtype=np.float64))
        )
        part = self._rng.random(len(where))
        ahead[where], behind[where] = whole * part, whole * (1 - part)
        return behind, ahead

    def lengths(self, count: int) -> Ints:
        """Tokens of sessions that have talked for a while."""
        return np.clip(
            self._rng.lognormal(math.log(2_500), 0.8, count), 200, self._scenario.engine.context - 4_096
        ).astype(np.int32)
