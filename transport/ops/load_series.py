"""Makes time series for operators' charts of the samples that replicas keep of their load (`sessions.load_history`).

Columns that belong to one list of times; null where no replica has a sample, or where there is nothing to say of it
(no time to the first token where no answer began). Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from sessions.load_history import KV_TIERS, STEP_S, LoadSample, sum_by_time
from sessions.metrics import TURN_S, quantile_of

POINTS_MAX: Final = 360
RANGE_MIN_S: Final = 300
RANGE_MAX_S: Final = 6 * 3600

Read = Callable[[LoadSample], float | None]


def step_of(range_s: int) -> int:
    """Returns the seconds between two points of a series over `range_s`: a multiple of the samples' own step."""
    return -(-range_s // (POINTS_MAX * STEP_S)) * STEP_S


def times_of(now_s: int, range_s: int) -> list[int]:
    """Returns the unix times at which the completed steps of a range end, the newest last."""
    step_s = step_of(range_s)
    end = now_s // step_s * step_s
    return list(range(end - range_s // step_s * step_s + step_s, end + 1, step_s))


def series_of(times: list[int], samples: Iterable[LoadSample]) -> dict[str, Any]:
    """Returns the columns of a load chart. `samples` are of all replicas, in the steps of `times`."""
    by_time = sum_by_time(samples)
    points = [by_time.get(at) for at in times]

    def column(read: Read) -> list[float | None]:
        return [None if point is None else read(point) for point in points]

    tiers = [tier for tier in KV_TIERS if any(tier in point.kv_bytes for point in points if point is not None)]
    return {
        "at": times,
        "ttft_s": {name: column(_ttft(share)) for name, share in (("p50", 0.5), ("p95", 0.95))},
        "tokens_per_s": {
            "decoded": column(lambda point: _rate(point.decoded_tokens, point)),
            "prefilled": column(lambda point: _rate(point.prefilled_tokens, point)),
        },
        "requests": {
            "running": column(lambda point: point.running),
            "waiting": column(lambda point: point.waiting),
            "slots": column(lambda point: point.slots),
        },
        "sessions": column(lambda point: point.sessions),
        "kv_bytes": {tier: column(_kv(tier)) for tier in tiers},
        "events": {
            "failovers": column(lambda point: point.failovers),
            "handoffs": column(lambda point: point.handoffs),
            "failed": column(lambda point: point.failed),
        },
    }


def _ttft(share: float) -> Read:
    return lambda point: quantile_of(TURN_S, point.ttft, share)


def _kv(tier: str) -> Read:
    return lambda point: point.kv_bytes.get(tier, 0.0)


def _rate(count: float, point: LoadSample) -> float:
    return round(count / max(point.span_s, 0.001), 2)
