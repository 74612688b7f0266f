"""What the longest pauses of conversations were due to, by what their reader was sent in between.

A pause in which the reader's connection changed is the gateways'; one in which the session changed hands the replicas';
one with neither is whatever held everybody up: the machine, or the reader itself (`LoopLateness`).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any, Final, NamedTuple

from bench.support import spread
from sessions.metrics import Metrics
from tests.support.chaos.device import Delta, Device, Frame
from tests.support.chaos.load import Load
from transport.ops.loop_watchdog import LoopWatchdog

CAUSES: Final = ("gateway", "handoff", "both", "neither")
LOOK_S: Final = 0.005
STALL_MS: Final = 60.0


class Pause(NamedTuple):
    """Between two pieces of one answer."""

    seconds: float
    cause: str
    stages: dict[str, float]  # seconds of each, in order


def longest_pause(device: Device, session: str, wall_s: float) -> Pause | None:
    """Of a conversation's answers. `wall_s`: the wall's clock when the monotonic one showed 0."""
    cursor = device.cursors[session]
    within = [two for two in pairwise(cursor.deltas) if two[0].response == two[1].response]
    if not within:
        return None
    before, after = max(within, key=lambda two: two[1].at - two[0].at)
    frames = [frame for frame in device.frames if before.at < frame.at <= after.at]
    ready = next((frame.at for frame in frames if frame.body["type"] == "ready"), None)
    moved = next(
        (frame for frame in _events(frames, session) if frame.body["event"]["type"] == "session.migrated"), None
    )
    if ready is not None and moved is not None:
        cause = "both"
    else:
        cause = "gateway" if ready is not None else "handoff" if moved is not None else "neither"
    stages: dict[str, float] = {}
    if ready is not None:
        stages |= _of_gateway(frames, session, before, ready, after)
    if moved is not None:
        stages |= _of_handoff(device.frames, session, before, moved, after, wall_s)
    return Pause(after.at - before.at, cause, stages)


def _events(frames: list[Frame], session: str) -> list[Frame]:
    return [each for each in frames if each.body["type"] == "event" and each.body["session"] == session]


def _of_gateway(frames: list[Frame], session: str, before: Delta, ready: float, after: Delta) -> dict[str, float]:
    resumed = next(
        (each.at for each in frames if each.body["type"] == "resumed" and each.body["session"] == session), after.at
    )
    return {"connect": ready - before.at, "resume": resumed - ready, "follow": after.at - resumed}


def _of_handoff(
    frames: list[Frame], session: str, before: Delta, moved: Frame, after: Delta, wall_s: float
) -> dict[str, float]:
    """By when things were written, which the log says: until the target had the session, until its first words."""
    written = {each.body["offset"]: each.body["at"] / 1000 - wall_s for each in _events(frames, session)}
    last, taken, first = written.get(before.offset), written[moved.body["offset"]], written.get(after.offset)
    if last is None or first is None:
        return {}
    return {"take": taken - last, "first_words": first - taken, "on_the_way": after.at - first}


def figures(running: Load, wall_s: float) -> dict[str, Any]:
    """Each cause's share of the longest pauses, and the stages of those."""
    found = [each for session in running.sessions if (each := longest_pause(running.device, session, wall_s))]
    shown: dict[str, Any] = {}
    for cause in CAUSES:
        pauses = [each for each in found if each.cause == cause]
        if not pauses:
            continue
        shown[f"by_{cause}"] = len(pauses)
        shown |= spread(f"by_{cause}_ms_{{}}", [each.seconds for each in pauses], "p50 max", times=1000)
        for stage in dict.fromkeys(name for each in pauses for name in each.stages):
            taken = [each.stages[stage] for each in pauses if stage in each.stages]
            shown |= spread(f"by_{cause}_{stage}_ms_{{}}", taken, "p50 max", times=1000)
    return shown


class LoopLateness:
    """How late this process itself was: what it measures of others is no better."""

    def __init__(self) -> None:
        self.late: list[float] = []

    async def run(self) -> None:
        while True:
            due = time.perf_counter() + LOOK_S
            await asyncio.sleep(LOOK_S)
            self.late.append(time.perf_counter() - due)


@asynccontextmanager
async def lateness() -> AsyncIterator[LoopLateness]:
    made = LoopLateness()
    running = asyncio.create_task(made.run())
    gc.collect()
    gc.disable()  # what a device was sent is kept: going through it holds everybody up for half a second
    try:
        async with LoopWatchdog(Metrics(), stall_ms=STALL_MS):  # says in which calls
            yield made
    finally:
        gc.enable()
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
