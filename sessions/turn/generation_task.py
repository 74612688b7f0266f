"""One response being written: plan the prompt, run the engine, filter, and hand what is released to the actor.

A turn task lives exactly as long as a generation runs. It never writes: it accumulates what the pipeline releases
and tells its actor, which takes it when it is ready to append. So output waits while the journal is slow, in one place,
bounded by the answer's length, and what waited goes out as one event (roll-up happens before the journal).

Roll-up: the first delta at once, later ones when `rollup_s` has passed since the last or `rollup_bytes` have gathered.

Cancelling the task closes the engine's iterator, which frees its slot within one step.
"""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import aclosing
from typing import Literal, Protocol

import msgspec
import structlog

from sessions.limits import Share
from sessions.machine import event_writer
from sessions.machine.inputs_effects import (
    Fitted,
    GenerationFailed,
    GenerationFinished,
    GenerationStopped,
    Input,
    Output,
)
from sessions.machine.state import Open
from sessions.metrics import Metrics
from sessions.model.errors import BadInput, Internal, SessileError
from sessions.model.generation import Finish, GenerationRequest
from sessions.model.types import Json, Message, Principal, ResponseId, Sampling, SessionKey, Tool, Usage, unpack_tokens
from sessions.model.verdicts import Finding, Verdict
from sessions.ports import Engine, FilterSet
from sessions.turn.ledger import Ledger, PromptPlan
from sessions.turn.output_pipeline import OutputPipeline, Release
from sessions.turn.run_timing import RunTiming
from sessions.turn.tool_call_parser import ParsedRelease, ToolCallParser, constrained_output, forced_tools

log = structlog.get_logger(__name__)

RESTARTS_MAX = 16
EndReason = Literal["stop", "max_output_tokens", "content_filter"]


class GenerationLimits(msgspec.Struct, frozen=True):
    rollup_s: float = 0.025
    rollup_bytes: int = 512


class Inbox(Protocol):
    """What a turn needs of its actor."""

    def ready(self, turn: GenerationTask) -> None:
        """There is something to take. Called once per take."""

    def post(self, input: Input) -> None:
        """Something that comes after all that was released so far."""

    def prompted(self, response_id: ResponseId, input_tokens: int, cached_tokens: int) -> None: ...


def continuation_seed(seed: int, response_id: ResponseId, emitted: int) -> int:
    """The seed of a run that continues after `emitted` tokens: the same whoever computes it (DESIGN.md §4)."""
    if emitted == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}\0{response_id}\0{emitted}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big")


class GenerationTask:
    """The run of one generation of one response."""

    def __init__(
        self,
        open_: Open,
        generation: int,
        *,
        key: SessionKey,
        principal: Principal,
        ledger: Ledger,
        engine: Engine,
        filters: FilterSet,
        inbox: Inbox,
        limits: GenerationLimits,
        model: str = "",
        share: Share | None = None,
        measures: Metrics,
    ) -> None:
        """`model`: the smaller one's name where that is to write; "": the engine's own."""
        self.response_id = open_.id
        self.generation = generation
        self.slot_free = asyncio.Event()  # set when the engine has let go of this run
        self._open = open_
        self._key = key
        self._principal = principal
        self._ledger = ledger
        self._engine = engine
        self._filters = filters
        self._inbox = inbox
        self._limits = limits
        self._model = model
        self._share = share or Share()
        self._loop = asyncio.get_running_loop()
        self._calls: ToolCallParser | None = None  # the stage of this run, where tools may be called
        self._said = bool(open_.drafts) and isinstance(open_.drafts[-1].item, Message)
        self._pieces: list[event_writer.Piece] = []  # what it let through
        self._texts: list[str] = []
        self._bytes = 0
        self._logprobs: list[Json] = []
        self._tokens: list[bytes] = []
        self._written = bytearray(open_.tokens)  # the ledger as released so far, packed
        self._tail = open_.tail
        self._whole = filters.holds_whole(principal)  # nothing is shown before all of it has passed
        self._findings: list[Finding] = []  # that the actor has not taken
        self._retracted: Verdict | None = None  # likewise
        self._taken = asyncio.Event()  # whenever the actor takes something
        self._told = False  # the actor knows that there is something to take
        self._flushed_at: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._seen = 0  # tokens that the engine made for this run
        self._unsaid = 0  # of them, those that it ended on in the middle of a character: nobody gets them
        self._filters_s = measures.filter_s.of("output")
        self._pace = RunTiming(measures, self._loop.time, whole=not open_.tokens, priority=self._share.priority)

    # -- the run -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Runs to the end of the answer, or until cancelled. Every failure becomes the response's error."""
        usage = Usage(0, len(self._open.tokens) // 4)
        try:
            plan = await self._ledger.plan(self._open)
            if plan.cut is not None:
                self._inbox.post(Fitted(self.response_id, self.generation, plan.dropped, plan.cut))
            usage = Usage(plan.num_input, len(plan.emitted))
            self._inbox.prompted(self.response_id, usage.input_tokens, 0)
            await self._generate(plan)
        except SessileError as error:
            self._broke(self._explain_schema_error(error), usage)
        except Exception as error:  # whatever an engine does becomes this response's failure
            log.exception("engine_failed", session=self._key.session, response=self.response_id)
            failure = Internal("engine_failed", "The engine failed while it wrote this answer.")
            failure.__cause__ = error
            self._broke(failure, usage)
        except asyncio.CancelledError:
            self._flush()  # what was released is written, unless the response has ended or runs elsewhere
            if self._findings and not self._told:
                self._inbox.post(GenerationStopped(self.response_id, self.generation, self._take_findings()))
            raise
        finally:
            self._disarm()
            self._pace.end()
            self._pace.trace(
                self._key.tenant,
                self.response_id,
                {"sessile.generation": self.generation},
            )
            self.slot_free.set()

    @property
    def begun(self) -> bool:
        """The engine has said something."""
        return self._seen > 0

    def _explain_schema_error(self, error: SessileError) -> SessileError:
        """What an engine has against a schema, in the words of who sent it: it may have been made of tools."""
        if error.code != "invalid_schema" or not self._must_call:
            return error
        names = ", ".join(tool.name for tool in self._must_call)
        advice = "Make them simpler, or let the model choose (`tool_choice`: `auto`)."
        told = BadInput(error.code, f"The engine cannot be held to the parameters of {names}. {advice}", param="tools")
        told.__cause__ = error
        return told

    def _broke(self, error: SessileError, usage: Usage) -> None:
        self._flush()
        usage = msgspec.structs.replace(usage, output_tokens=usage.output_tokens + self._seen)
        findings = () if self._told else self._take_findings()  # what the actor is about to take carries them
        self._inbox.post(GenerationFailed(self.response_id, self.generation, error, usage, findings))

    async def _generate(self, plan: PromptPlan) -> None:
        """Runs the engine, again from the released text where a filter rewrote it."""
        sampling = asked = self._open.sampling
        if self._must_call:
            asked = msgspec.structs.replace(sampling, text=constrained_output(sampling, self._must_call))
        prompt, emitted, left = plan.prompt, plan.emitted, plan.max_tokens
        withheld = recomputed = 0
        first_cached: int | None = None
        for attempt in range(RESTARTS_MAX):
            if left <= 0:
                return self._end("max_output_tokens", plan, first_cached or 0, recomputed, withheld)
            self._calls = self._stage(sampling)
            if self._calls is not None and self._calls.ended:
                return self._end("stop", plan, first_cached or 0, recomputed, withheld)
            pipeline = OutputPipeline(
                sampling.stops,
                self._filters.output_filters(
                    self._principal,
                    told=self._readers_have() if self._calls is None else "",
                    calls=self._calls is not None,
                ),
                tail=self._tail,
                tail_tokens=emitted[len(self._written) // 4 :],
            )
            request = GenerationRequest(
                key=self._key,
                response_id=self.response_id,
                generation=self.generation,
                prompt=prompt,
                sampling=asked,
                seed=continuation_seed(sampling.seed or 0, self.response_id, len(emitted)),
                max_tokens=left,
                emitted=emitted,
                shared_prefix=plan.shared_prefix,
                priority=self._share.priority,
                weight=self._share.weight,
                model=self._model,
            )
            seen_before = self._seen
            release: Release | None = None
            finish: Finish | None = None
            told = False  # what this run found of its prompt
            async with aclosing(self._engine.generate(request)) as stream:  # type: ignore[type-var]
                async for part in stream:
                    if not told:
                        told = True
                        if first_cached is None:
                            first_cached = part.cached_tokens
                            self._inbox.prompted(self.response_id, plan.num_input, first_cached)
                        if attempt or len(plan.emitted):
                            recomputed += len(prompt) - part.cached_tokens
                    if isinstance(part, Finish):
                        finish = part
                        release = pipeline.finish()
                    else:
                        self._seen += len(part.tokens)
                        self._pace.record_tokens(len(part.tokens))
                        release = pipeline.feed(part)
                    if pipeline.closing is not None and (release is None or not (release.ended or release.restart)):
                        if release is not None:
                            self._accept(release)
                        self._findings += pipeline.take_findings()
                        begun_at = self._loop.time()
                        release = await pipeline.close()
                        self._filters_s.observe(self._loop.time() - begun_at)
                    if finish is not None:
                        self._unsaid += pipeline.num_mute
                    self._findings += pipeline.take_findings()
                    if release is not None:
                        self._accept(release)
                        if release.ended is not None or release.restart or self._call_ended:
                            break
            if release is not None:
                withheld += release.withheld_tokens
                if release.retracted is not None:
                    await self._take_back(release.retracted)
            if release is not None and release.ended == "content_filter":
                return self._end("content_filter", plan, first_cached or 0, recomputed, withheld, release.message)
            if release is None or not release.restart:
                reason: EndReason = "stop"
                if finish is not None and finish.reason == "length" and (release is None or release.ended is None):
                    reason = "max_output_tokens"
                return self._end(reason, plan, first_cached or 0, recomputed, withheld)
            emitted = unpack_tokens(bytes(self._written))
            emitted.extend(await self._engine.tokenizer.text(self._tail))
            prompt = plan.prompt[: len(plan.prompt) - len(plan.emitted)] + emitted
            left = min(left - (self._seen - seen_before), self._engine.info.context_window - len(prompt))
        return self._end("content_filter", plan, first_cached or 0, recomputed, withheld)

    def _readers_have(self) -> str:
        """The text of the answer so far, what the actor is about to take included; of answers without calls."""
        drafts = self._open.drafts
        said = drafts[-1].text if drafts and isinstance(drafts[-1].item, Message) and not drafts[-1].done else []
        return "".join([*said, *self._texts])

    async def _take_back(self, verdict: Verdict) -> None:
        """Has the actor write a retraction behind all that was released; the model goes on from what is left of it."""
        self._retracted = verdict
        self._taken.clear()
        self._flush()
        await self._taken.wait()
        self._written.clear()  # as the state's ledger is, once it has obeyed
        self._tail = self._readers_have()

    @property
    def _must_call(self) -> tuple[Tool, ...]:
        return (
            forced_tools(self._open.sampling, self._ledger.tools) if self._engine.info.tool_format == "hermes" else ()
        )

    @property
    def _call_ended(self) -> bool:
        return self._calls is not None and self._calls.ended

    def _stage(self, sampling: Sampling) -> ToolCallParser | None:
        tools = self._ledger.tools
        if not tools or sampling.tool_choice == "none" or self._engine.info.tool_format != "hermes":
            return None
        return ToolCallParser(
            tools,
            tail=self._tail,
            said=self._said,
            bare=bool(self._must_call),
            parallel=sampling.parallel_tool_calls,
        )

    def _end(
        self, reason: EndReason, plan: PromptPlan, cached: int, recomputed: int, withheld: int, refusal: str = ""
    ) -> None:
        if self._calls is not None:
            self._take_in(self._calls.finish(reason), ())
        if self._whole and reason == "content_filter":
            self._drop()
            withheld = self._seen - self._unsaid
        self._whole = False  # all of it has passed
        self._flush()
        usage = Usage(
            input_tokens=plan.num_input,
            output_tokens=len(plan.emitted) + self._seen - self._unsaid - withheld,
            cached_tokens=min(cached, plan.num_input),
        )
        self._inbox.post(
            GenerationFinished(
                self.response_id,
                self.generation,
                reason,
                usage,
                recomputed_tokens=recomputed,
                withheld_tokens=withheld,
                refusal=refusal or None,
                findings=self._take_findings(),
            )
        )

    # -- roll-up -----------------------------------------------------------------------------------------------

    def _take_in(self, passed: ParsedRelease, logprobs: tuple[Json, ...]) -> None:
        """What the stage let through; texts of one kind are laid together."""
        if passed.tokens:
            self._tokens.append(passed.tokens)
            self._written += passed.tokens
        self._tail = passed.tail
        for piece in passed.pieces:
            last = self._pieces[-1] if self._pieces else None
            if isinstance(piece, event_writer.Text):
                piece, logprobs = msgspec.structs.replace(piece, logprobs=logprobs), ()
                if isinstance(last, event_writer.Text):
                    piece = event_writer.Text(last.text + piece.text, last.logprobs + piece.logprobs)
                    self._pieces.pop()
            elif isinstance(piece, event_writer.CallArguments) and isinstance(last, event_writer.CallArguments):
                piece = event_writer.CallArguments(last.text + piece.text)
                self._pieces.pop()
            self._said = isinstance(piece, event_writer.Text)
            self._pieces.append(piece)
            self._bytes += 0 if isinstance(piece, event_writer.CallBegin) else len(piece.text)
        if passed.pieces:
            self._schedule()

    def _accept(self, release: Release) -> None:
        if self._calls is not None:
            self._take_in(self._calls.accept(release), release.logprobs)
            return
        if release.tokens:
            self._tokens.append(release.tokens)
            self._written += release.tokens
        self._tail = release.tail
        self._logprobs.extend(release.logprobs)
        if not release.text:
            return
        self._texts.append(release.text)
        self._bytes += len(release.text)
        self._schedule()

    def _schedule(self) -> None:
        if self._whole:
            return
        now = self._loop.time()
        due = self._flushed_at is None or now >= self._flushed_at + self._limits.rollup_s
        if due or self._bytes >= self._limits.rollup_bytes:
            self._flush()
        elif self._timer is None and not self._told and self._flushed_at is not None:
            self._timer = self._loop.call_at(self._flushed_at + self._limits.rollup_s, self._flush)

    def _flush(self) -> None:
        self._disarm()
        if self._whole:
            self._drop()
        if (self._texts or self._pieces or self._retracted) and not self._told:
            self._told = True
            self._flushed_at = self._loop.time()
            self._inbox.ready(self)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _take_findings(self) -> tuple[Finding, ...]:
        found = tuple(self._findings)
        self._findings.clear()
        return found

    def _drop(self) -> None:
        """Of an answer that is shown whole or not at all: not at all."""
        for gathered in (self._pieces, self._texts, self._tokens, self._logprobs):
            gathered.clear()
        self._bytes = 0

    def take(self) -> Output | None:
        """All that was released since the last take, as one output. Called by the actor when it can append."""
        self._told = False
        if not self._texts and not self._pieces and self._retracted is None:
            return None
        tokens = b"".join(self._tokens) if len(self._tokens) > 1 else (self._tokens[0] if self._tokens else b"")
        pieces = tuple(self._pieces)
        if self._texts:
            text = "".join(self._texts) if len(self._texts) > 1 else self._texts[0]
            pieces = (event_writer.Text(text, tuple(self._logprobs)),)
        self._pieces.clear()
        self._texts.clear()
        self._tokens.clear()
        self._logprobs.clear()
        self._bytes = 0
        retracted, self._retracted = self._retracted, None
        self._taken.set()
        findings = self._take_findings()
        return Output(self.response_id, self.generation, pieces, tokens, self._tail, findings, retracted)
