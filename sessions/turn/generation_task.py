"""One response being written: plan the prompt, run the engine until the answer has ended, and report that to the actor.

A generation task lives exactly as long as a generation runs. It never writes: what the pipeline releases is accumulated
(`output_accumulator`) and its actor takes it when it is ready to append. If a filter rewrote text, the engine is run
again from the released text: each attempt is one run, with its own pipeline and its own parser of tool calls. The
attempts' output goes to one accumulator, and their costs are added up in one `TokenCounts`.

Cancelling the task closes the engine's iterator, which frees its slot within one step. Every other failure becomes the
response's error.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Final, Literal, TypeVar

import msgspec
import structlog

from sessions.limits import Share
from sessions.machine.event_writer import CallBegin, Thought
from sessions.machine.inputs_and_effects import Fitted, GenerationFailed, GenerationFinished, GenerationStopped
from sessions.machine.state import Open
from sessions.metrics import Metrics
from sessions.model.errors import BadInput, Internal, Overloaded, SessileError, Unavailable
from sessions.model.generation import (
    Chunk,
    Finish,
    GenerationRequest,
    ThoughtMarks,
    cache_scope_of,
    continuation_seed,
    continues,
    generates,
    is_free,
    may_call_instead,
    thinks,
)
from sessions.model.types import Json, SessionKey, Tokens, Tool, Usage, pack_tokens, unpack_tokens
from sessions.ports import Engine, FilterSet, SchemaChecker
from sessions.schemas import check_schemas
from sessions.turn.call_formats import FORMATS, CallFormat
from sessions.turn.call_opening import call_opening, generate_behind
from sessions.turn.closing_marks import ClosingMarks, closing_token
from sessions.turn.ledger import Ledger, PromptPlan
from sessions.turn.output_accumulator import GenerationLimits, Inbox, OutputAccumulator
from sessions.turn.output_pipeline import OutputPipeline, Release
from sessions.turn.result_cache import ResultLookup, replay
from sessions.turn.retokenisation import tail_ids
from sessions.turn.run_timing import RunTiming
from sessions.turn.tool_call_parser import (
    MisfitCall,
    ParsedCall,
    ParsedRelease,
    ToolCallParser,
    constrained_output,
    forced_tools,
    state_at_ledger,
)

log = structlog.get_logger(__name__)

ENGINE_PATIENCE_S: Final = 5.0  # how long others wait for an engine to let go of a run
ATTEMPTS_MAX = 16
CHECK_WAIT_S: Final = 30.0
CHECK_PAUSE_MS: Final = 1_000
T = TypeVar("T")
EndReason = Literal["stop", "max_output_tokens", "content_filter"]


class GenerationRun(msgspec.Struct, frozen=True, kw_only=True):
    """One generation of a response to be written, with its place in the engine's queue."""

    key: SessionKey
    open_: Open
    generation: int
    model: str = ""  # the smaller model's name, if that one is to write; "": the engine's own model
    share: Share = Share()
    lookup: ResultLookup | None = None  # in the result cache, if the tenant uses that


class TokenCounts(msgspec.Struct):
    """The tokens of one generation, over all its attempts."""

    prompt: int = 0
    emitted: int = 0  # by earlier generations of the response
    generated: int = 0  # by the engine in this generation
    reasoning: int = 0  # tokens of thoughts, in the whole answer
    mute: int = 0  # of `generated`: at the end, in the middle of a character, so that nobody gets them
    replayed: int = 0  # of `generated`: from the result cache
    cached: int | None = None  # prompt tokens of the first attempt that were in KV; None: not known yet
    recomputed: int = 0
    withheld: int = 0

    def usage(self) -> Usage:
        """Returns the usage of an answer that has ended."""
        output = self.emitted + self.generated - self.mute - self.withheld
        again = min(self.replayed, output)
        return Usage(
            self.prompt,
            output,
            min(self.cached or 0, self.prompt),
            reasoning_tokens=min(self.reasoning, output),
            cached_output_tokens=again,
        )


class AttemptsEnd(msgspec.Struct, frozen=True):
    reason: EndReason
    refusal: str = ""


class Attempts:
    """The engine runs of one generation. It has many attributes because a run that fails is followed by another one,
    and what the runs share lives here for the whole generation."""

    def __init__(
        self,
        run: GenerationRun,
        ledger: Ledger,
        output: OutputAccumulator,
        *,
        engine: Engine,
        schemas: SchemaChecker,
        filters: FilterSet,
        inbox: Inbox,
        metrics: Metrics,
    ) -> None:
        loop, open_ = asyncio.get_running_loop(), run.open_
        self.counts = TokenCounts(emitted=len(open_.tokens) // 4, reasoning=open_.reasoning_tokens)
        self.timing = RunTiming(metrics, loop.time, whole=not open_.tokens, priority=run.share.priority)
        self._run = run
        self._ledger = ledger
        self._output = output
        self._engine = engine
        self._schemas = schemas
        self._filters = filters
        self._inbox = inbox
        self._now = loop.time
        self._may_lead = False  # a call may come in place of an answer in the required format
        self._held_output: list[tuple[ParsedRelease, tuple[Json, ...]]] = []  # of such a run, until a call is known
        self._begins_anew = False  # this run's output is dropped; the next run is held to the format, or to a call
        self._misfit: MisfitCall | None = None  # the call that the model made badly, and is now held to
        self._num_before = 0  # tokens of the answer before that call
        self._is_answering = False
        self._closed = False  # a thought, by the server in the model's place
        self._closing_token: int | None = None  # the one that ends a thought
        self._closings: ClosingMarks | None = None  # those of the run
        self.filtered = False  # whether a filter acted on the answer
        request = open_.body.request
        self._cache_scope = cache_scope_of(open_.principal, request if isinstance(request, dict) else None)
        self._late_filter_s = metrics.filter_s.of("output")

    @property
    def must_call(self) -> tuple[Tool, ...]:
        """The functions of which the answer must call one, if this class has to enforce that; else empty."""
        if not self._enforces:
            return ()
        if self._misfit is not None:
            return (self._misfit.tool,)
        return forced_tools(self._run.open_.sampling, self._ledger.tools)

    async def generate(self, plan: PromptPlan) -> AttemptsEnd:
        """Generates the answer of `plan` and returns how it ended. When it returns or raises, the engine has let go of
        the answer."""
        counts, output = self.counts, self._output
        prompt, emitted, left = plan.prompt, plan.emitted, plan.max_tokens
        num_input = plan.num_input
        parser: ToolCallParser | None = None
        sampling, tools = self._run.open_.sampling, self._ledger.tools
        if tools or sampling.text is not None:  # it may have been stored before there were bounds
            checked = tools if sampling.tool_choice != "none" else ()
            forced = forced_tools(sampling, checked)
            await self._wait_for_check(lambda: check_schemas(self._schemas, checked, sampling.text, forced=forced))
        if not generates(self._run.open_.body.request):
            await self._engine.warm(self._run.key, plan.prompt)
            return AttemptsEnd("stop")
        self._closing_token = await closing_token(self._engine.tokenizer, self._thoughts)
        for attempt in range(ATTEMPTS_MAX):
            if left <= 0:
                return await self._end(parser, "max_output_tokens")
            self._may_lead = is_lead = self._may_call_first()
            if is_lead:  # the header of a text would leave no room for a call
                num_input = plan.num_input - plan.num_header
                prompt = plan.prompt[:num_input] + emitted
            parser = self._new_parser()
            if parser is not None and parser.ended:
                return await self._end(parser, "stop")
            generated_before, written_before = counts.generated, len(output.written)
            reasoning_before, mute_before = counts.reasoning, counts.mute
            request = self._request(prompt, emitted, left, shared_prefix=plan.shared_prefix)
            self._begins_anew = False
            again = attempt > 0 or len(plan.emitted) > 0
            try:
                release, finish = await self._attempt(request, self._new_pipeline(emitted, parser), parser, again=again)
                if self._may_lead and parser is not None:
                    await self._end_lead(parser, _end_reason(release, finish))
                ended = None if self._begins_anew else await self._conclude(release, finish, parser)
            except MisfitCall as misfit:
                if self._misfit is not None or not self._enforces or "text" not in self._engine.info.sampling:
                    raise
                ended, self._begins_anew, self._misfit = None, True, misfit
            except BadInput as error:
                if self._misfit is None or error.code != "invalid_schema":
                    raise
                raise self._misfit from error
            if ended is not None:
                return ended
            if self._begins_anew:
                counts.mute = mute_before  # such tokens are withheld like the others
                if not output.begun:
                    num_input, counts.reasoning = plan.num_input, reasoning_before
                self._held_output.clear()
                if self._misfit is not None:
                    emitted = await self._settled()
                    self._num_before = len(emitted)
                else:
                    parser = None
                prompt = plan.prompt[:num_input] + emitted
                generated = counts.generated - generated_before
                kept = (len(output.written) - written_before) // 4
                counts.withheld += max(0, generated - kept)
                left -= kept if is_lead else generated  # a run that may lead has a limit of its own
                continue
            emitted = unpack_tokens(bytes(output.written))
            emitted.extend(await self._tail_ids())
            prompt = plan.prompt[:num_input] + emitted
            generated = counts.generated - generated_before
            left = min(left - generated, self._engine.info.context_window - len(prompt))
        return await self._end(parser, "content_filter")

    async def _conclude(
        self, release: Release | None, finish: Finish | None, parser: ToolCallParser | None
    ) -> AttemptsEnd | None:
        """Ends the answer after a run; returns None if another run must continue it."""
        is_blocked = release is not None and release.ended == "content_filter"
        if parser is not None and self._is_over_budget(parser) and not is_blocked:
            await self._close_thought(parser)
        elif release is not None:
            self.counts.withheld += release.withheld_tokens
            if release.retracted is not None:
                await self._output.retract(release.retracted)
            if release.ended == "content_filter":
                return await self._end(parser, "content_filter", release.message)
        if self._closed or (release is not None and release.restart):
            return None
        return await self._end(parser, _end_reason(release, finish))

    async def _attempt(
        self, request: GenerationRequest, pipeline: OutputPipeline, parser: ToolCallParser | None, *, again: bool
    ) -> tuple[Release | None, Finish | None]:
        """Runs the engine once, to its end or to the release that ends it. Returns the last release and the finish.
        `again`: the prompt was computed before, so tokens that are not in KV count as recomputed."""
        counts, timing, output = self.counts, self.timing, self._output
        release: Release | None = None
        finish: Finish | None = None
        first, reported, counts_input, lookup = True, 0, counts.cached is None, self._run.lookup
        answer = lookup.answer if lookup is not None and not again else None
        if lookup is not None and again:
            lookup.discard()
        written = self._run_engine(request) if answer is None else replay(answer, len(request.prompt))
        async with aclosing(written) as stream:  # type: ignore[type-var]
            async for part in stream:
                if first or (isinstance(part, Finish) and part.cached_tokens != reported):
                    if counts_input:
                        counts.cached = part.cached_tokens
                        self._inbox.prompted(request.response_id, counts.prompt, part.cached_tokens)
                    if again:
                        counts.recomputed += (len(request.prompt) if first else reported) - part.cached_tokens
                    first, reported = False, part.cached_tokens
                if isinstance(part, Finish):
                    finish = part
                    release = pipeline.finish()
                else:
                    counts.generated += len(part.tokens)
                    if answer is not None:
                        counts.replayed += len(part.tokens)
                    else:
                        timing.record_tokens(len(part.tokens))
                        if lookup is not None:
                            lookup.record(part)
                    if self._closings is not None:
                        self._closings.feed(part)
                    release = pipeline.feed(part)
                if pipeline.closing is not None and (release is None or not (release.ended or release.restart)):
                    if release is not None:
                        await self._accept(release, parser)
                    self._take_findings(pipeline)
                    begun_at = self._now()
                    release = await pipeline.close()
                    self._late_filter_s.observe(self._now() - begun_at)
                if finish is not None:
                    counts.mute += pipeline.num_mute
                if pipeline.findings:
                    self._take_findings(pipeline)
                if release is not None:
                    if parser is None:
                        output.accept(release)
                    else:
                        await self._accept(release, parser)
                    if release.ended is not None or release.restart or (parser is not None and parser.ended):
                        break
                    if self._begins_anew or (parser is not None and self._is_over_budget(parser)):
                        break
        return release, finish

    def _run_engine(self, request: GenerationRequest) -> AsyncIterator[Chunk | Finish]:
        sampling = self._run.open_.sampling
        if not len(request.emitted) and not self._run.model and not sampling.logprobs and not sampling.top_logprobs:
            opening = call_opening(self._engine.info, self.must_call)
            if opening:
                return generate_behind(self._engine, request, opening)
        return self._engine.generate(request)

    def _take_findings(self, pipeline: OutputPipeline) -> None:
        findings = pipeline.take_findings()
        self.filtered |= bool(findings)
        self._output.findings += findings

    def _request(self, prompt: Tokens, emitted: Tokens, left: int, *, shared_prefix: int) -> GenerationRequest:
        run, must_call = self._run, self.must_call
        sampling = run.open_.sampling
        seed = continuation_seed(sampling.seed or 0, run.open_.id, len(emitted))
        if self._may_lead or (sampling.text is not None and self._output.began_with_call):
            sampling = msgspec.structs.replace(sampling, text=None)
        if must_call:
            sampling = msgspec.structs.replace(sampling, text=constrained_output(sampling, must_call))
        if self._misfit is not None:
            sampling = msgspec.structs.replace(sampling, min_tokens=None, ignore_eos=False)
        return GenerationRequest(
            key=run.key,
            response_id=run.open_.id,
            generation=run.generation,
            prompt=prompt,
            sampling=sampling,
            seed=seed,
            max_tokens=left,
            emitted=emitted[self._num_before :],  # a grammar begins with the call
            shared_prefix=shared_prefix,
            priority=run.share.priority,
            weight=run.share.weight,
            model=run.model,
            images=self._ledger.images,
            cache_scope=self._cache_scope,
        )

    def _new_pipeline(self, emitted: Tokens, parser: ToolCallParser | None) -> OutputPipeline:
        open_, output = self._run.open_, self._output
        filters = self._filters.output_filters(
            open_.principal, shown=output.shown_text() if parser is None else "", calls=parser is not None
        )
        tail_tokens = emitted[len(output.written) // 4 :]
        return OutputPipeline(open_.sampling.stops, filters, tail=output.tail, tail_tokens=tail_tokens)

    def _new_parser(self) -> ToolCallParser | None:
        """Returns the parser of an attempt; None if no tool may be called and the answer has no thoughts."""
        sampling, tools, output = self._run.open_.sampling, self._ledger.tools, self._output
        calls = bool(tools) and sampling.tool_choice != "none" and self._call_format is not None
        thoughts = self._thoughts
        self._closings = None
        if not calls and thoughts is None:
            return None
        if thoughts is not None and self._closing_token is not None:
            pieces = self._engine.tokenizer.pieces
            self._closings = ClosingMarks(thoughts.close, self._closing_token, pieces, thinking=output.thinking)
        written = self._call_format or FORMATS["hermes"]
        thinking, in_text = state_at_ledger(
            thoughts,
            output.tail,
            begun=output.begun,
            thinking=output.thinking,
            in_text=output.in_text,
            opens=written.opens,
        )
        heading = not self._closed and (not output.written or not (output.tail or thinking or in_text))
        if self._closed:
            self._closed = thinking = in_text = False
        return ToolCallParser(
            tools,
            tail=output.tail,
            in_text=in_text or continues(self._run.open_.body.request),
            bare=bool(self.must_call),
            parallel=sampling.parallel_tool_calls,
            calls=calls,
            written=written,
            thoughts=thoughts,
            thinking=thinking,
            heading=heading and (self._calls_instead or thinks(sampling, self._run.open_.body.request)),
            closings=self._closings,
        )

    @property
    def _call_format(self) -> CallFormat | None:
        """The format in which the model writes calls; None if it makes none."""
        info = self._engine.info
        return FORMATS[info.call_format] if info.takes_tools else None

    @property
    def _enforces(self) -> bool:
        """Whether this class must make the model follow calls and formats, by a grammar of ours; if not, the engine
        does."""
        return self._engine.info.tool_format == "hermes"

    @property
    def _thoughts(self) -> ThoughtMarks | None:
        """The marks of the thoughts that the answer may have; None if it may have none. A model that writes in channels
        may always have thoughts, unless the answer must have a format; with a call in its place it may again."""
        sampling, request, marks = self._run.open_.sampling, self._run.open_.body.request, self._engine.info.thoughts
        if marks is not None and marks.channels:
            return marks if is_free(sampling, request) or self._calls_instead else None
        if marks is None or not thinks(sampling, request):
            return None
        return msgspec.structs.replace(marks, opened=marks.opens(sampling))

    async def _accept(self, release: Release, parser: ToolCallParser | None) -> None:
        if parser is None:
            self._output.accept(release)
            return
        counted = parser.reasoning_tokens
        parsed = parser.accept(release)
        self.counts.reasoning += parser.reasoning_tokens - counted
        await self._accept_parsed(parsed, release.logprobs)

    async def _accept_parsed(
        self, parsed: ParsedRelease, logprobs: tuple[Json, ...] = (), *, ends: bool = False
    ) -> None:
        """Passes output on, unless a run that may only begin with a call has not shown yet that it does. `ends`: the
        run is over."""
        if self._may_lead and not self._admit_call(parsed, logprobs, ends=ends):
            return
        if parsed.calls:
            await self._check(parsed.calls)
        self._pass_held_output()
        self._output.accept_parsed(parsed, logprobs)

    def _admit_call(self, parsed: ParsedRelease, logprobs: tuple[Json, ...], *, ends: bool) -> bool:
        """Looks at output of a run that may begin with a call although the answer must have a format. Returns whether
        it may be passed on: it is held back until a call begins, and dropped if text comes or the run `ends` without
        one."""
        first = next((piece for piece in parsed.pieces if not isinstance(piece, Thought)), None)
        if first is None and not ends:
            self._held_output.append((parsed, logprobs))
            return False
        self._may_lead = False
        if not isinstance(first, CallBegin):
            self._begins_anew = self._is_answering = True
            return False
        return True

    async def _end_lead(self, parser: ToolCallParser, reason: EndReason) -> None:
        """Ends a run that could have begun with a call and only had thoughts until now. What a filter ends is the
        answer itself, with its thoughts."""
        if reason == "content_filter":
            self._may_lead = False
            self._pass_held_output()
        else:
            await self._accept_parsed(parser.finish(reason), ends=True)

    def _pass_held_output(self) -> None:
        """Passes on the thoughts of a run that could have begun with a call, together with the call, or with the end of
        the answer: a thought alone in the log would make another replica believe that a call comes."""
        for parsed, logprobs in self._held_output:
            self._output.accept_parsed(parsed, logprobs)
        self._held_output.clear()

    @property
    def _calls_instead(self) -> bool:
        """Whether a call comes, or may come, in the place of an answer in the required format."""
        began = self._output.began_with_call and bool(self._ledger.tools) and may_call_instead(self._run.open_.sampling)
        return self._may_lead or began

    def _may_call_first(self) -> bool:
        """Returns whether a run may begin with a call, although the answer must have a format. Such a run has no
        format; if it does not begin with a call its output is dropped, and another run has the format."""
        sampling, output = self._run.open_.sampling, self._output
        calls = bool(self._ledger.tools) and sampling.tool_choice in (None, "auto")
        formatted = sampling.text is not None and self._enforces
        return calls and formatted and not (output.begun or self._is_answering or self._misfit)

    def _is_over_budget(self, parser: ToolCallParser) -> bool:
        """Returns whether the answer is in a thought that has used up its token budget."""
        budget = self._run.open_.sampling.thinking_tokens
        return budget is not None and parser.thinking and self.counts.reasoning >= budget

    async def _tail_ids(self) -> Tokens:
        """Returns the token ids of the released text that is not in the ledger yet."""
        open_, output = self._run.open_, self._output
        first = not output.written and thinks(open_.sampling, open_.body.request)
        return await tail_ids(self._engine.tokenizer, self._engine.info, output.tail, first=first)

    async def _settled(self) -> array[int]:
        """Returns the token ids of all released text, after adding the tail to the ledger."""
        ids = await self._tail_ids()
        self._output.accept_parsed(ParsedRelease((), pack_tokens(ids), ""))
        return unpack_tokens(bytes(self._output.written))

    async def _close_thought(self, parser: ToolCallParser) -> None:
        """Ends a thought as the model would have done: adds its closing mark to the ledger, and the next run continues
        after it."""
        assert self._thoughts is not None
        tokenizer, output = self._engine.tokenizer, self._output
        ids = [*await self._tail_ids(), *await tokenizer.scaffold(self._thoughts.closing)]
        output.accept_parsed(ParsedRelease((), pack_tokens(ids), ""))
        self._closed = True

    async def _check(self, calls: Sequence[ParsedCall]) -> None:
        """Raises MisfitCall if a call's arguments do not fit its tool's schema."""
        for call in calls:
            schema, arguments = call.tool.parameters, call.arguments
            if schema is not None:
                wrong = await self._wait_for_check(partial(self._schemas.value_problem, schema, arguments))
                if wrong is not None:
                    raise MisfitCall(call.tool, wrong)

    async def _wait_for_check(self, check: Callable[[], Awaitable[T]]) -> T:
        """Returns the result of `check`. If it fails because too many schemas wait, or the worker was killed, it is
        called again for CHECK_WAIT_S, because the turn is accepted and its answer would be lost; then its error is
        raised."""
        until = self._now() + CHECK_WAIT_S
        while True:
            try:
                return await check()
            except (Overloaded, Unavailable) as error:
                pause_s = (error.retry_after_ms or CHECK_PAUSE_MS) / 1000
                if error.code == "draining" or self._now() + pause_s > until:
                    raise
            await asyncio.sleep(pause_s)

    async def _end(self, parser: ToolCallParser | None, reason: EndReason, refusal: str = "") -> AttemptsEnd:
        if parser is not None:
            try:
                parsed = parser.finish(reason)
                await self._check(parsed.calls)
            except MisfitCall:
                if reason == "stop":
                    raise
            else:
                self._output.accept_parsed(parsed)
        return AttemptsEnd(reason, refusal)


def _end_reason(release: Release | None, finish: Finish | None) -> EndReason:
    """Returns why a run ended: what the pipeline says, or else what the engine says."""
    if release is not None and release.ended is not None:
        return release.ended
    if finish is None:
        return "stop"
    return "max_output_tokens" if finish.reason == "length" else finish.reason


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

    async def run(self, behind: asyncio.Task[None] | None = None) -> None:
        """Generates the answer to its end, or until cancelled. `behind` is the task of the response whose text it goes
        on from: the run waits until the engine has let go of that one, whose KV it then finds, but at most
        ENGINE_PATIENCE_S seconds."""
        if behind is not None:
            await asyncio.wait((behind,), timeout=ENGINE_PATIENCE_S)
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
