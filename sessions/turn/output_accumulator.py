"""Accumulates what an answer released until its actor takes it, as one output: the roll-up before the journal.

Output waits here, and only here, while the journal is slow, bounded by the answer's length. The actor is notified of
the first delta at once, of later ones when `rollup_s` has passed since the last or `rollup_bytes` have gathered.

Invariants: the actor is notified once per take. If an answer is shown whole or not at all (`whole`), nothing is taken
before all of it has passed the filters.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import msgspec

from sessions.machine import event_writer
from sessions.machine.inputs_and_effects import Input, Output
from sessions.machine.state import Open
from sessions.model.types import Json, Message, ResponseId
from sessions.model.verdicts import Finding, Verdict
from sessions.turn.output_pipeline import Release
from sessions.turn.tool_call_parser import ParsedRelease


class GenerationLimits(msgspec.Struct, frozen=True):
    rollup_s: float = 0.025
    rollup_bytes: int = 512


class Inbox(Protocol):
    """The actor, as a generation sees it when it reports."""

    def ready(self, output: OutputAccumulator) -> None:
        """Informs the actor that `output` has something to take. Called once per take."""

    def post(self, input: Input) -> None:
        """Passes an input that takes effect behind everything that was released so far."""

    def prompted(self, response_id: ResponseId, input_tokens: int, cached_tokens: int) -> None: ...


class OutputAccumulator:
    """The released output of one generation. `written` is the packed token ids released so far, `tail` the raw text
    behind them; both include what the actor has not taken. It has many attributes because everything that one flush
    takes is emptied in one place."""

    def __init__(self, open_: Open, generation: int, inbox: Inbox, limits: GenerationLimits, *, whole: bool) -> None:
        self.response_id = open_.id
        self.generation = generation
        self.written = bytearray(open_.tokens)
        self.tail = open_.tail
        self.thinking = bool(open_.drafts) and open_.drafts[-1].is_thinking  # whether the answer ends with thoughts
        self.in_text = bool(open_.drafts) and isinstance(open_.drafts[-1].item, Message) and not self.thinking
        self.begun = bool(open_.drafts)
        self.began_with_call = open_.began_with_call  # with a call, or the thoughts before one
        self.findings: list[Finding] = []  # those that the actor has not taken
        self._open = open_
        self._inbox = inbox
        self._limits = limits
        self._whole = whole
        self._loop = asyncio.get_running_loop()
        self._pieces: list[event_writer.Piece] = []  # the released pieces of an answer that may call tools
        self._texts: list[str] = []  # the released texts of an answer that may not
        self._bytes = 0
        self._logprobs: list[Json] = []
        self._unplaced: tuple[Json, ...] = ()  # log probabilities of text that a parser holds back
        self._tokens: list[bytes] = []
        self._retracted: Verdict | None = None
        self._taken = asyncio.Event()  # set whenever the actor takes something
        self._notified = False  # whether the actor is about to take
        self._flushed_at: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    # -- what is released ----------------------------------------------------------------------------------------

    def accept(self, release: Release) -> None:
        """Adds a release of an answer that may call no tools."""
        if release.tokens:
            self._tokens.append(release.tokens)
            self.written += release.tokens
        self.tail = release.tail
        if release.logprobs:
            self._logprobs.extend(release.logprobs)
        if not release.text:
            return
        self._texts.append(release.text)
        self._bytes += len(release.text)
        self._schedule()

    def accept_parsed(self, parsed: ParsedRelease, logprobs: tuple[Json, ...] = ()) -> None:
        """Adds what a parser let through; joins neighbouring pieces of one kind."""
        if parsed.tokens:
            self._tokens.append(parsed.tokens)
            self.written += parsed.tokens
        self.tail = parsed.tail
        if logprobs:
            self._unplaced += logprobs
        for piece in parsed.pieces:
            last = self._pieces[-1] if self._pieces else None
            if self._unplaced:
                if isinstance(piece, event_writer.Text):
                    piece = msgspec.structs.replace(piece, logprobs=self._unplaced)
                self._unplaced = ()  # those of a call's text belong to no text that is shown
            if isinstance(piece, event_writer.Text):
                if isinstance(last, event_writer.Text):
                    piece = event_writer.Text(last.text + piece.text, last.logprobs + piece.logprobs)
                    self._pieces.pop()
            elif isinstance(piece, event_writer.Thought) and isinstance(last, event_writer.Thought):
                piece = event_writer.Thought(last.text + piece.text)
                self._pieces.pop()
            elif isinstance(piece, event_writer.CallArguments) and isinstance(last, event_writer.CallArguments):
                piece = event_writer.CallArguments(last.text + piece.text)
                self._pieces.pop()
            self.in_text, self.thinking = isinstance(piece, event_writer.Text), isinstance(piece, event_writer.Thought)
            if not self.begun:
                self.begun = True
                self.began_with_call = isinstance(piece, event_writer.CallBegin | event_writer.Thought)
            self._pieces.append(piece)
            self._bytes += 0 if isinstance(piece, event_writer.CallBegin) else len(piece.text)
        if parsed.pieces:
            self._schedule()

    def shown_text(self) -> str:
        """Returns the text of the answer so far, including what the actor has not taken. Only for answers without
        calls."""
        drafts = self._open.drafts
        shown = drafts[-1].text if drafts and isinstance(drafts[-1].item, Message) and not drafts[-1].done else []
        return "".join([*shown, *self._texts])

    async def retract(self, verdict: Verdict) -> None:
        """Has the actor write the retraction `verdict` behind everything that was released, and waits until it has
        taken it. The answer's remaining text becomes the `tail`."""
        self._retracted = verdict
        self._taken.clear()
        self.flush()
        await self._taken.wait()
        self.written.clear()  # as the state clears its ledger for the retraction
        self.tail = self.shown_text()

    def complete(self, *, withheld: bool) -> bool:
        """Ends the output. If the answer is shown whole or not at all, it is passed on now, or dropped if it was
        `withheld`. Returns whether it was dropped."""
        dropped = self._whole and withheld
        if dropped:
            self._drop()
        self._whole = False
        self.flush()
        return dropped

    # -- what the actor takes ------------------------------------------------------------------------------------

    def take(self) -> Output | None:
        """Returns everything that was released since the last take as one output; None if nothing was. The actor calls
        it when it can append."""
        self._notified = False
        if not self._texts and not self._pieces and self._retracted is None:
            return None
        texts, tokens = self._texts, b"".join(self._tokens)
        if texts:
            pieces: tuple[event_writer.Piece, ...] = (event_writer.Text("".join(texts), tuple(self._logprobs)),)
        else:
            pieces = tuple(self._pieces)
        self._drop()
        retracted, self._retracted = self._retracted, None
        if not self._taken.is_set():
            self._taken.set()
        findings = self.take_findings() if self.findings else ()
        return Output(self.response_id, self.generation, pieces, tokens, self.tail, findings, retracted)

    def take_findings(self) -> tuple[Finding, ...]:
        taken = tuple(self.findings)
        self.findings.clear()
        return taken

    def take_last_findings(self) -> tuple[Finding, ...]:
        """Returns the findings that no output will report. If an output is still to be taken it reports them, and the
        result is empty."""
        return () if self._notified else self.take_findings()

    def flush(self) -> None:
        """Notifies the actor of what was released, without waiting for the roll-up."""
        if self._timer is not None:
            self.disarm()
        if self._whole:
            self._drop()
        if (self._texts or self._pieces or self._retracted) and not self._notified:
            self._notified = True
            self._flushed_at = self._loop.time()
            self._inbox.ready(self)

    def disarm(self) -> None:
        """Cancels the flush that is scheduled for the roll-up."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        if self._whole:
            return
        full = self._bytes >= self._limits.rollup_bytes
        if not full and (self._timer is not None or self._notified):
            return  # it goes with what came before it
        due_at = None if self._flushed_at is None else self._flushed_at + self._limits.rollup_s
        if full or due_at is None or self._loop.time() >= due_at:
            self.flush()
        else:
            self._timer = self._loop.call_at(due_at, self.flush)

    def _drop(self) -> None:
        self._pieces.clear()
        self._texts.clear()
        self._tokens.clear()
        self._logprobs.clear()
        self._bytes = 0
