"""Counts what requests of a load came to: TTFT, TPOT, goodput against targets, errors by their sentence.

A request is *good* when it was answered whole and met both targets; goodput is the share of good ones among all that
were sent, those that failed and those that were turned away (429, 503 with Retry-After) among them. Pure.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from transport.load.stream_client import StreamedAnswer

KEPT_MAX: Final = 200_000  # requests whose figures are remembered: hours of a watch
ERRORS_MAX: Final = 50  # different sentences
POINTS: Final = (50, 95, 99)


class LatencyTargets(msgspec.Struct, frozen=True):
    """What a request has to keep to be good, in ms."""

    ttft_ms: float = 2000.0
    tpot_ms: float = 200.0


class RequestResult(msgspec.Struct, frozen=True):
    """One request that ended. Times in seconds since the start of the load; None where there is none."""

    kind: str
    sent: float
    ended: float
    ttft_s: float | None
    tpot_s: float | None
    tokens: int
    error: str
    turned_away: bool
    counted_pieces: bool
    """The server sent no usage, so that tokens are pieces of the stream."""


class LoadSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of some requests; times in ms, None where nothing was measured."""

    kind: str
    requests: int
    good: int
    failed: int
    turned_away: int
    tokens: int
    goodput: float
    """Share of the requests that were good; 1 where there were none."""
    good_per_s: float
    tokens_per_s: float
    ttft_ms: dict[str, float] | None
    tpot_ms: dict[str, float] | None


def result_of(kind: str, answer: StreamedAnswer, start: float) -> RequestResult:
    """What an answer means for its user."""
    ttft = answer.first - answer.sent if answer.first else None
    later = answer.tokens - 1
    tpot = (answer.last - answer.first) / later if answer.first and later > 0 else None
    return RequestResult(
        kind,
        answer.sent - start,
        answer.ended - start,
        ttft,
        tpot,
        answer.tokens,
        answer.error,
        turned_away=answer.status == 429 or (answer.status == 503 and answer.retry_after_s is not None),
        counted_pieces=answer.usage_tokens is None and answer.pieces > 0,
    )


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of sorted `values` do not exceed (nearest rank)."""
    return values[max(0, math.ceil(share * len(values)) - 1)]


class Measurements:
    """All requests of a load that ended, or the newest of them."""

    def __init__(self, targets: LatencyTargets) -> None:
        self.targets = targets
        self.results: deque[RequestResult] = deque(maxlen=KEPT_MAX)
        self.errors: Counter[str] = Counter()
        self.in_flight = 0

    def add(self, result: RequestResult) -> None:
        self.results.append(result)
        if result.error:
            known = result.error in self.errors or len(self.errors) < ERRORS_MAX
            self.errors[result.error if known else "other errors"] += 1

    def is_good(self, result: RequestResult) -> bool:
        return (
            not result.error
            and result.ttft_s is not None
            and result.ttft_s * 1000 <= self.targets.ttft_ms
            and (result.tpot_s is None or result.tpot_s * 1000 <= self.targets.tpot_ms)
        )

    def newest(self, since: float) -> list[RequestResult]:
        """Those that ended at `since` or later."""
        newest = []
        for result in reversed(self.results):
            if result.ended < since:
                break
            newest.append(result)
        return newest

    def summary(self, kind: str, results: Iterable[RequestResult], elapsed_s: float) -> LoadSummary:
        chosen = list(results)
        good = sum(map(self.is_good, chosen))
        turned_away = sum(each.turned_away for each in chosen)
        tokens = sum(each.tokens for each in chosen)
        return LoadSummary(
            kind=kind,
            requests=len(chosen),
            good=good,
            failed=sum(bool(each.error) for each in chosen) - turned_away,
            turned_away=turned_away,
            tokens=tokens,
            goodput=good / len(chosen) if chosen else 1.0,
            good_per_s=good / elapsed_s if elapsed_s > 0 else 0.0,
            tokens_per_s=tokens / elapsed_s if elapsed_s > 0 else 0.0,
            ttft_ms=_points([each.ttft_s for each in chosen if each.ttft_s is not None]),
            tpot_ms=_points([each.tpot_s for each in chosen if each.tpot_s is not None]),
        )

    def summaries(self, results: Iterable[RequestResult], elapsed_s: float) -> list[LoadSummary]:
        """One for each kind, and `all` as the last."""
        chosen = list(results)
        kinds = sorted({each.kind for each in chosen})
        rows = [self.summary(kind, (each for each in chosen if each.kind == kind), elapsed_s) for kind in kinds]
        return [*rows, self.summary("all", chosen, elapsed_s)]


def _points(seconds: list[float]) -> dict[str, float] | None:
    seconds.sort()
    return {f"p{point}": percentile(seconds, point / 100) * 1000 for point in POINTS} if seconds else None
