"""One response being written: plan the prompt, run the engine, and report its end to the actor.

A generation task lives exactly as long as a generation runs. It never writes: what the pipeline releases is accumulated
(`output_accumulator`) and its actor takes it when it is ready to append. The engine's runs are in `attempts`.

Cancelling the task closes the engine's iterator, which frees its slot within one step. Every other failure becomes the
response's error.
"""

from __future__ import annotations

import asyncio

import structlog

from sessions.machine.inputs_and_effects import Fitted, GenerationFailed, GenerationFinished, GenerationStopped
from sessions.metrics import Metrics
from sessions.model.errors import BadInput, Internal, SessileError
from sessions.model.types import Usage
from sessions.ports import Engine, FilterSet, SchemaChecker
from sessions.turn.attempts import Attempts, AttemptsEnd, GenerationRun
from sessions.turn.ledger import Ledger
from sessions.turn.output_accumulator import GenerationLimits, Inbox, OutputAccumulator

log = structlog.get_logger(__name__)


class GenerationTask:
    """The task that writes one generation of one response."""

    def __init__(
        self,
        run: GenerationRun,
        ledger: Ledger,
        *,
        engine: Engine,
        schemas: SchemaChecker,
        filters: FilterSet,
        inbox: Inbox,
        limits: GenerationLimits,
        metrics: Metrics,
    ) -> None:
        self.response_id = run.open_.id
        self._generation = run.generation
        self._run = run
        self._ledger = ledger
        self._inbox = inbox
        whole = filters.holds_whole(run.open_.principal)  # nothing is shown before all of it has passed
        self._output = OutputAccumulator(run.open_, run.generation, inbox, limits, whole=whole)
        self._attempts = Attempts(
            run, ledger, self._output, engine=engine, schemas=schemas, filters=filters, inbox=inbox, metrics=metrics
        )

    @property
    def begun(self) -> bool:
        """Whether the engine has produced at least one token."""
        return self.generated > 0

    @property
    def generated(self) -> int:
        """How many tokens the engine has produced."""
        return self._attempts.counts.generated

    async def run(self) -> None:
        """Generates the answer to its end, or until cancelled."""
        output, counts, timing = self._output, self._attempts.counts, self._attempts.timing
        try:
            lookup = self._run.lookup
            plan = await self._ledger.plan(self._run.open_) if lookup is None else lookup.plan
            if plan.cut is not None:
                self._inbox.post(Fitted(self.response_id, self._generation, plan.dropped, plan.cut))
            counts.prompt, counts.emitted = plan.num_input, len(plan.emitted)
            if counts.emitted:  # the prompt was computed before; else it is once the engine has begun to write
                self._inbox.prompted(self.response_id, counts.prompt, 0)
            self._finish(await self._attempts.generate(plan))
        except SessileError as error:
            self._fail(self._explain_schema_error(error))
        except Exception as error:  # whatever an engine does becomes this response's failure
            log.exception("engine_failed", session=self._run.key.session, response=self.response_id)
            failure = Internal("engine_failed", "The engine failed while it wrote this answer.")
            failure.__cause__ = error
            self._fail(failure)
        except asyncio.CancelledError:
            output.flush()  # what was released is written, unless the response has ended or runs elsewhere
            findings = output.take_last_findings()
            if findings:
                self._inbox.post(GenerationStopped(self.response_id, self._generation, findings))
            raise
        finally:
            output.disarm()
            timing.end()
            timing.trace(self._run.key.tenant, self.response_id, {"sessile.generation": self._generation})

    def _finish(self, end: AttemptsEnd) -> None:
        output, counts = self._output, self._attempts.counts
        if output.complete(withheld=end.reason == "content_filter"):
            counts.withheld = counts.generated - counts.mute
        lookup = self._run.lookup
        if lookup is not None and end.reason == "stop" and not self._attempts.filtered:
            lookup.close()
        self._inbox.post(
            GenerationFinished(
                self.response_id,
                self._generation,
                end.reason,
                counts.usage(),
                recomputed_tokens=counts.recomputed,
                withheld_tokens=counts.withheld,
                refusal=end.refusal or None,
                findings=output.take_findings(),
            )
        )

    def _fail(self, error: SessileError) -> None:
        self._output.flush()
        counts = self._attempts.counts
        computed = counts.cached is not None or counts.emitted > 0
        usage = Usage(counts.prompt if computed else 0, counts.emitted + counts.generated)
        findings = self._output.take_last_findings()
        self._inbox.post(GenerationFailed(self.response_id, self._generation, error, usage, findings))

    def _explain_schema_error(self, error: SessileError) -> SessileError:
        """Returns the error to show for an engine's error about a schema. If the schema was made from tools, it names
        the tools."""
        must_call = self._attempts.must_call
        if error.code != "invalid_schema" or not must_call:
            return error
        names = ", ".join(tool.name for tool in must_call)
        advice = "Make them simpler, or let the model choose (`tool_choice`: `auto`)."
        explained = BadInput(
            error.code, f"The engine cannot be held to the parameters of {names}. {advice}", param="tools"
        )
        explained.__cause__ = error
        return explained
