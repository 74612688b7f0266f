"""Measures how fast one run of an engine writes: time to its first token, between its outputs, and per token.

One object per run. A run that continues where another stopped (`whole` False) has no first token of its own and is not
compared with the targets; the times between its outputs count like those of other runs. `count_ended` counts responses
by the log, in which each has one end, whichever replicas its runs were on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sessions.machine.inputs_and_effects import Step
from sessions.metrics import Metrics
from sessions.model.events import ResponseCompleted, ResponseFailed, ResponseIncomplete
from sessions.model.types import ResponseId, TenantId
from sessions.tracing import Attributes

ENDS_BY_ITSELF: Final = ("max_output_tokens",)


class RunTiming:
    __slots__ = ("_first_at", "_last_at", "_measures", "_now", "_num_tokens", "_priority", "_started_at", "_whole")

    def __init__(self, measures: Metrics, now: Callable[[], float], *, whole: bool, priority: int = 5) -> None:
        """Starts the clock. `now` returns the loop's time in seconds; `priority` selects the latency targets that the
        run is to meet; `whole`: the run begins its answer."""
        self._measures = measures
        self._now = now
        self._whole = whole
        self._priority = priority
        self._started_at = now()
        self._first_at = self._last_at = 0.0
        self._num_tokens = 0

    def record_tokens(self, num_tokens: int) -> None:
        """Counts `num_tokens` that the engine has given out at once."""
        now = self._now()
        if self._num_tokens:
            self._measures.itl_s.observe(now - self._last_at)
        elif num_tokens:
            self._first_at = now
            self._measures.num_decoding += 1
            self._measures.batch.observe(self._measures.num_decoding)
            if self._whole:
                self._measures.ttft_s.observe(now - self._started_at)
        self._last_at = now
        self._num_tokens += num_tokens

    def trace(self, tenant: TenantId, response_id: ResponseId, attributes: Attributes) -> None:
        """Records the run's trace span, if traces are on."""
        if self._measures.tracer is not None:
            now_s = self._measures.tracer.now_s()
            begun_at = now_s - (self._now() - self._started_at)
            first = {"sessile.first_token_s": self._first_at - self._started_at} if self._num_tokens else {}
            described: Attributes = {
                "gen_ai.usage.output_tokens": self._num_tokens,
                "sessile.goes_on": not self._whole,
                **first,
                **attributes,
            }
            self._measures.tracer.span(
                "generation", tenant, response_id, begun_at=begun_at, ended_at=now_s, attributes=described
            )

    def end(self) -> None:
        """Ends the measuring of a run, however it ended, and counts whether it met its targets."""
        if not self._num_tokens:
            return
        measures = self._measures
        measures.num_decoding -= 1
        per_token_s = (self._last_at - self._first_at) / max(1, self._num_tokens - 1)
        if self._num_tokens > 1:
            measures.tpot_s.observe(per_token_s)
        if self._whole:
            ttft_s, tpot_s = measures.targets_s(self._priority)
            met = self._first_at - self._started_at <= ttft_s and per_token_s <= tpot_s
            measures.in_target.add("true" if met else "false")


def count_ended(measures: Metrics, tenant: TenantId, step: Step, appended_s: float) -> None:
    """Counts the responses that ended with a durable step, and ends their traces. `appended_s` is how many seconds it
    took to make the step durable."""
    for row in step.usage:
        measures.prompt_tokens.add(by=row.usage.input_tokens)
        measures.cached_tokens.add(by=row.usage.cached_tokens)
        measures.output_tokens.add(by=row.usage.output_tokens)
        measures.recomputed_tokens.add(by=row.recomputed_tokens)
        measures.withheld_tokens.add(by=row.withheld_tokens)
    for record in step.records:
        event = record.event
        if isinstance(event, ResponseCompleted | ResponseIncomplete | ResponseFailed):
            body = event.response
            reason: str = body.status
            if body.incomplete_details is not None:
                reason = str(body.incomplete_details["reason"])
                if reason not in ENDS_BY_ITSELF:
                    measures.aborts.add(reason)
            elif body.error is not None:
                measures.aborts.add(str(body.error["code"]))
            measures.responses.add(reason)
            measures.e2e_s.observe((record.at - body.created_at) / 1000)
            if measures.tracer is not None:
                at = record.at / 1000
                failed = str(body.error["code"]) if body.error is not None else ""
                measures.tracer.span(
                    "journal.append", tenant, body.id, begun_at=at, ended_at=at + appended_s, attributes={}
                )
                measures.tracer.span(
                    "response",
                    tenant,
                    body.id,
                    begun_at=body.created_at / 1000,
                    ended_at=at + appended_s,
                    attributes={"gen_ai.response.model": body.model, "sessile.finished": reason},
                    failed=failed,
                    root=True,
                )
