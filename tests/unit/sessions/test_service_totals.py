"""How well readers were served, added up over processes."""

from __future__ import annotations

from sessions.metrics import TURN_S, Metrics, quantile_of
from sessions.service_totals import sum_of, totals_of


def served(*ttft_s: float) -> Metrics:
    metrics = Metrics()
    for each in ttft_s:
        metrics.ttft_s.observe(each)
        metrics.responses.add("stop")
    metrics.activations.add("takeover")
    metrics.in_target.add("true")
    return metrics


def test_two_processes_together_are_as_one_that_did_the_work_of_both() -> None:
    apart = sum_of([totals_of(served(0.2, 0.3)), totals_of(served(30.0, 4.0))])
    together = served(0.2, 0.3, 30.0, 4.0)
    assert apart.ttft == tuple(together.ttft_s.counts)
    assert quantile_of(TURN_S, apart.ttft, 0.95) == quantile_of(TURN_S, together.ttft_s.counts, 0.95)
    assert apart.ended == {"stop": 4.0}
    assert (apart.met, apart.missed, apart.activations["takeover"]) == (2, 0, 2)
