"""How well one process has served readers since it started, in a form that adds up over the replicas of a cluster.

Quantiles of several processes cannot be averaged, so the counts in their histograms' buckets are sent and added up.
They are read from `Metrics` only when they are shown, so that counting costs nothing more. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest

import msgspec

from sessions.metrics import Metrics

Counts = tuple[int, ...]


class ServiceTotals(msgspec.Struct, frozen=True, array_like=True):
    """The service that one process has given since it started. The fields from `ttft` to `journal` are counts per
    bucket of the histograms of these names in `Metrics`; `met` and `missed` count answers within and beyond their
    latency targets; `ended` counts answers by status, `activations` counts by cause."""

    ttft: Counts = ()
    tpot: Counts = ()
    itl: Counts = ()
    journal: Counts = ()
    met: float = 0
    missed: float = 0
    decoding: int = 0
    recomputed_tokens: float = 0
    withheld_tokens: float = 0
    ended: dict[str, float] = {}
    activations: dict[str, float] = {}


def totals_of(metrics: Metrics) -> ServiceTotals:
    met, missed = (metrics.in_target.values.get((each,), 0) for each in ("true", "false"))
    return ServiceTotals(
        ttft=tuple(metrics.ttft_s.counts),
        tpot=tuple(metrics.tpot_s.counts),
        itl=tuple(metrics.itl_s.counts),
        journal=tuple(metrics.journal_s.counts),
        met=met,
        missed=missed,
        decoding=metrics.num_decoding,
        recomputed_tokens=metrics.recomputed_tokens.total,
        withheld_tokens=metrics.withheld_tokens.total,
        ended={labels[0]: count for labels, count in metrics.responses.values.items()},
        activations={labels[0]: count for labels, count in metrics.activations.values.items()},
    )


def sum_of(totals: Iterable[ServiceTotals]) -> ServiceTotals:
    parts = list(totals)

    def buckets(read: Callable[[ServiceTotals], Counts]) -> Counts:
        return add_counts([read(one) for one in parts])

    return ServiceTotals(
        ttft=buckets(lambda one: one.ttft),
        tpot=buckets(lambda one: one.tpot),
        itl=buckets(lambda one: one.itl),
        journal=buckets(lambda one: one.journal),
        met=sum(one.met for one in parts),
        missed=sum(one.missed for one in parts),
        decoding=sum(one.decoding for one in parts),
        recomputed_tokens=sum(one.recomputed_tokens for one in parts),
        withheld_tokens=sum(one.withheld_tokens for one in parts),
        ended=add_by_name(one.ended for one in parts),
        activations=add_by_name(one.activations for one in parts),
    )


def add_counts(counts: Sequence[Counts]) -> Counts:
    """Adds up counts bucket by bucket."""
    return tuple(map(sum, zip_longest(*counts, fillvalue=0)))


def add_by_name(values: Iterable[dict[str, float]]) -> dict[str, float]:
    summed: Counter[str] = Counter()
    for value in values:
        summed.update(value)
    return dict(summed)
