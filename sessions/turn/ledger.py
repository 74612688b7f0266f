"""The ledger: the token ids that stand for a branch, and the prompts that are made of them.

    log ─► MessageTokens ─► BranchTokens ─► PromptRenderer ─► PromptPlan
           a message's ids,  a branch, piece   its prompt       what the engine runs
           each made once    by piece

So a turn costs only its own tokens, plus joining arrays. The ledger decides which items are in a prompt and which are
left out. It does not know engines or KV: engines compare ids and reuse the KV of those that match (I6).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET

from sessions.machine import item_tree
from sessions.machine.inputs_and_effects import CompactionWritten, Prepared
from sessions.machine.responses import item_ids_of
from sessions.machine.state import Answer, Open, State, cut_of, stands_below
from sessions.machine.turn_commands import new_item
from sessions.model import commands as cm
from sessions.model.errors import BadInput
from sessions.model.generation import RAW_PROMPT, TRUNCATION, EngineInfo, continues, may_call_instead, thinks
from sessions.model.memories import with_memories
from sessions.model.types import (
    DEFAULT_CONTEXT_POLICY,
    LOCAL_PRINCIPAL,
    ContextPolicy,
    FunctionCall,
    InputImage,
    ItemId,
    Json,
    Message,
    TenantId,
    Tokens,
    Tool,
    UnixMs,
    pack_tokens,
    unpack_tokens,
)
from sessions.ports import ChatMessage, Tokenizer
from sessions.turn.branch_tokens import (
    BranchTokens,
    answer_message,
    group_by_message,
    join_output,
    piece_behind,
    segment_of,
    summary_message,
)
from sessions.turn.context_fitting import (
    ANSWER_ROOM,
    COMPACT_NOW,
    Fit,
    Marks,
    compact,
    fit,
    last_turn,
    reserved,
    too_long,
)
from sessions.turn.images import images_of
from sessions.turn.message_tokens import MessageTokens
from sessions.turn.past_texts import goes_on_from
from sessions.turn.prompt_rendering import (
    JoinedPrompts,
    PromptFrame,
    PromptOpening,
    PromptRenderer,
    PromptSettings,
    WholePrompts,
)
from sessions.turn.retokenisation import as_written, shared_length, tail_ids

ANSWERS_LOOKED_AT: Final = 256  # at most, to find the one that a client has changed


class PromptPlan(msgspec.Struct, frozen=True):
    """The prompt that an engine is to run for a response, and the context cut to journal before that, if there is a new
    one."""

    prompt: array[int]
    emitted: array[int]  # the end of the prompt: what the response has written already
    shared_prefix: int
    max_tokens: int
    dropped: int
    cut: ItemId | None  # set when the cut is new
    num_header: int = 0  # how many tokens before `emitted` are the header of a text in a required format

    @property
    def num_input(self) -> int:
        return len(self.prompt) - len(self.emitted)


class CompactionPlan(msgspec.Struct, frozen=True):
    """The prompt that a model is to run for a summary, and the part of the branch that the summary will replace."""

    prompt: array[int]
    items: int  # how many items of the branch, from its first on, the summary stands for
    read: ItemId  # the last item that the model reads
    tokens_before: int  # of a prompt as it is now
    tokens_kept: int  # of a prompt with the summary, less the summary's
    tokens_max: int
    more: bool  # whether not all could be read, so that another summary is due


class ShortenedPrompt(NamedTuple):
    """The beginning of prompts as it will be with a summary in force."""

    prompt: array[int]
    tokens_before: int  # length of a prompt without the summary
    full: bool  # whether prompts without the summary leave something out, or soon will


class Ledger:
    """The token ids of one session's branches. It belongs to the session's actor."""

    def __init__(
        self,
        state: State,
        tokenizer: Tokenizer,
        engine: EngineInfo,
        *,
        tenant_policy: Callable[[TenantId], ContextPolicy | None] | None = None,
        answer_room: int = ANSWER_ROOM,
        answer_tokens: int | None = None,
    ) -> None:
        """`answer_tokens` is the longest answer if request and session set no limit; None: as long as the context
        window. `answer_room` is how much of the window prompts leave for an answer at most. `tenant_policy` returns a
        tenant's policy for a full window."""
        self.state = state
        self.messages = MessageTokens(state, tokenizer, engine)
        self._answer_tokens = answer_tokens
        self._tenant_policy = tenant_policy
        self._answer_room = answer_room
        self._tokenizer = tokenizer
        self._engine = engine
        self._renderer: PromptRenderer = (
            JoinedPrompts(tokenizer) if tokenizer.gap is None else WholePrompts(tokenizer, self.messages)
        )
        self._opening: tuple[PromptSettings, PromptOpening] | None = None
        self._thinking = ""  # what the chat template was told of thoughts for the last answer

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The functions that the model may call."""
        info = self.state.info
        return info.tools if info is not None else ()

    @property
    def images(self) -> tuple[InputImage, ...]:
        """The images of the conversation, if the model sees them."""
        return images_of(self.state.items.values()) if self._engine.images else ()

    @property
    def begun(self) -> bool:
        """Whether the session exists."""
        return self.state.info is not None

    @property
    def policy(self) -> ContextPolicy:
        """The policy for a full context window that holds for the conversation."""
        return self._chosen_policy or DEFAULT_CONTEXT_POLICY

    @property
    def _chosen_policy(self) -> ContextPolicy | None:
        """The policy that the session sets, else the one that its tenant sets; None if neither does."""
        info = self.state.info
        if info is not None and info.context_policy is not UNSET:
            return info.context_policy
        return None if self._tenant_policy is None else self._tenant_policy(self.state.key.tenant)

    def _truncates(self, request: Any, chosen: ContextPolicy | None) -> bool:
        """Returns whether an answer's prompt may leave the oldest turns out. A request by OpenAI's API allows that only
        if the request, its session or its tenant says so."""
        if not isinstance(request, dict):
            return (chosen or DEFAULT_CONTEXT_POLICY) != "off"
        truncation = request.get(TRUNCATION)
        return truncation == "auto" if truncation is not None else chosen not in (None, "off")

    async def prepare(self, message: ChatMessage, *, bounded: bool = True) -> Prepared:
        """Returns the token ids of a new message. Raises BadInput if it alone is too long for the window; with
        `bounded` False the caller checks that."""
        tokens = await self._tokenizer.message(message)
        room = self._engine.context_window - len(self._tokenizer.answer_opening) - 1
        if bounded and len(tokens) > room:
            raise too_long(len(tokens), room)
        return Prepared(pack_tokens(tokens), self._tokenizer.fingerprint)

    async def prepare_answer(self, text: str, question: ItemId | None, *, bounded: bool = True) -> Prepared:
        """Returns the token ids of an answer that a client sends back, maybe changed. As far as its text equals an
        answer of ours it gets that answer's ids, for which there is KV: a model may write a text with other ids than
        the tokenizer would choose."""
        prepared = await self.prepare(ChatMessage(role="assistant", text=text), bounded=bounded)
        for answer, ours in self._answers_to(question):
            written = [*self._tokenizer.answer_opening, *unpack_tokens(answer.tokens), *self._tokenizer.answer_closing]
            read = [
                *self._tokenizer.answer_opening,
                *await self._tokenizer.text(ours),
                *self._tokenizer.answer_closing,
            ]
            tokens = as_written(unpack_tokens(prepared.tokens), read, written)
            if tokens is not None:
                return Prepared(pack_tokens(tokens), prepared.fingerprint)
        return prepared

    def _answers_to(self, question: ItemId | None) -> Iterator[tuple[Answer, str]]:
        """Yields our newest answers to the item `question` whose token ids are known, with their texts."""
        for answer in islice(reversed(self.state.answers.values()), ANSWERS_LOOKED_AT):
            if answer.tail or len(answer.items) != 1 or answer.fingerprint != self._tokenizer.fingerprint:
                continue
            item = self.state.items.get(answer.items[0])
            if isinstance(item, Message) and item.parent_id == question:
                yield answer, item.text

    async def plan(self, open_: Open) -> PromptPlan:
        """Returns the prompt of a response: opening + kept items + answer opening + what it has written already.

        Raises BadInput `context_length_exceeded` when it does not fit.
        """
        if isinstance(open_.body.request, dict) and open_.body.request.get(RAW_PROMPT):
            return await self._plan_raw(open_)
        marks = self._engine.thoughts
        self._thinking = "" if marks is None else marks.template_hint(open_.sampling)
        begun, parent = array("I"), open_.body.parent_id  # of the answer, before its first word
        in_channels = marks is not None and marks.channels and not continues(open_.body.request)
        instead = in_channels and may_call_instead(open_.sampling)
        if not thinks(open_.sampling, open_.body.request) and not (instead and open_.began_with_call):
            begun.extend(await self._no_thoughts())
        num_header = len(begun) if instead else 0
        last = None if parent is None else self.state.items.get(parent)
        if continues(open_.body.request) and isinstance(last, Message) and last.role == "assistant":
            begun.extend(await self._tokenizer.text(last.text))
            parent = last.parent_id
        frame = await self._frame(await self.messages.branch(parent))
        emitted = unpack_tokens(bytes(open_.tokens))
        if open_.tail:
            first = not emitted and thinks(open_.sampling, open_.body.request)
            emitted.extend(await tail_ids(self._tokenizer, self._engine, open_.tail, first=first))
        window, answer_max = self._engine.context_window, open_.sampling.max_output_tokens
        truncates = self._truncates(open_.body.request, self._chosen_policy)
        cut = self.state.cuts.get(open_.id) if truncates or open_.body.request is UNSET else None
        fitting = self._fitting(frame, len(begun), answer_max, cut, truncates=truncates)
        room = window - reserved(window, answer_max, self._answer_room) - len(begun)
        branch = frame.branch
        fitted, prompt = await self._renderer.fit(frame, fitting, branch.segments, room)
        if prompt is None:
            prompt = await self._renderer.render(frame, fitted.first)
        shared = await self._renderer.shared(frame, prompt)
        prompt.extend(begun)
        prompt.extend(emitted)
        room = window - len(prompt)
        return PromptPlan(
            prompt=prompt,
            emitted=emitted,
            shared_prefix=shared,
            max_tokens=self._left(room, answer_max, emitted),
            dropped=fitted.dropped,
            cut=branch.pieces[fitted.first][0].item_id if fitted.moved else None,
            num_header=num_header,
        )

    async def _frame(self, branch: BranchTokens, brought: tuple[ChatMessage, ...] = ()) -> PromptFrame:
        settings = self._settings
        return PromptFrame(settings, await self._opening_of(settings), branch, brought)

    def _fitting(
        self, frame: PromptFrame, begun: int, answer: int | None, cut: ItemId | None, *, truncates: bool
    ) -> partial[Fit]:
        """Returns the function `fit` with all arguments except the segments. `begun` is how many tokens of the answer
        come before its first word."""
        return partial(
            fit,
            opening=frame.head,
            closing=len(self._tokenizer.answer_opening) + begun,
            window=self._engine.context_window,
            answer=answer,
            answer_room=self._answer_room,
            cut=cut,
            kept=frame.branch.kept,
            truncate=truncates,
        )

    async def fit_turn(
        self, command: cm.TurnCreate, prepared: Sequence[Prepared | None], memories: Sequence[str] = ()
    ) -> int:
        """Returns how many items the prompt of a turn's answer will leave out, before the turn is written. Raises
        BadInput `context_length_exceeded` if it does not fit; the text says how much each part takes."""
        window, state = self._engine.context_window, self.state
        if isinstance(command.request, dict) and command.request.get(RAW_PROMPT):
            words = (item.content for item in command.items if isinstance(item, cm.NewMessage))
            text = "".join(part.text for content in words for part in cm.content_parts(content))
            length = len(await self._raw_prompt(command.request, text))
            if length >= window:
                raise too_long(length, window - 1)
            return 0
        leaf = goes_on_from(state, command)
        branch = await self.messages.branch(leaf)
        pieces, messages = list(branch.pieces), list[ChatMessage]()
        names = item_ids_of(state.key, LOCAL_PRINCIPAL, command)
        ids = {name: each for name, each in zip(names, prepared, strict=False) if each is not None}
        brought = [
            new_item(name, new, None, UnixMs(0), ids.get(name)) for name, new in zip(names, command.items, strict=True)
        ]
        for items in group_by_message(brought):
            whole = ids.get(items[0].id) if not isinstance(items[-1], FunctionCall) else None
            is_calling = isinstance(items[-1], FunctionCall)
            message = answer_message(items) if is_calling else self.messages.rendered(items[0], leaf)
            tokens = unpack_tokens(whole.tokens) if whole is not None else await self._tokenizer.message(message)
            messages.append(msgspec.structs.replace(message, tokens=tokens))
            segment = segment_of(items, len(tokens) + (self._tokenizer.gap or 0))
            if segment.output is not None:
                join_output(pieces, segment.output)
            pieces.append((segment, ()))
        segments = [segment for segment, _ in pieces]
        chosen = self._chosen_policy if command.context_policy is UNSET else command.context_policy
        truncates = self._truncates(command.request, chosen)
        answer = command.max_output_tokens
        cut = cut_of(state, leaf) if leaf is not None and truncates else None
        settings = self._settings_of(command, tuple(memories))
        opening = await self._opening_of(settings)
        frame = PromptFrame(settings, opening, branch, tuple(messages))
        free = reserved(window, answer, self._answer_room)
        fitting = self._fitting(frame, 0, answer, cut, truncates=truncates)
        try:
            return (await self._renderer.fit(frame, fitting, segments, window - free))[0].dropped
        except BadInput as error:
            if error.code != "context_length_exceeded":
                raise
            instructions = len((await self._opening_of(settings._replace(tools=()), keep=False)).tokens)
            newest = last_turn(segments)
            history = sum(each.length for each in segments[branch.base : newest]) + branch.summary_length
            question = sum(each.length for each in segments[newest:]) + len(self._tokenizer.answer_opening)
            parts = {
                "instructions" if settings.instructions or settings.memories else "chat template": instructions,
                "tools": len(opening.tokens) - instructions,
                "history": history,
                "newest message": question,
            }
            taken = ", ".join(f"{name} {length}" for name, length in parts.items() if length)
            takes = f" By part: {taken}; of the window of {window}, {free} stay free for the answer."
            if history and (reason := _keeps_all(command.request, chosen)):
                takes += f" Nothing may be left out, because {reason}."
            most = max(("tools", "instructions"), key=lambda name: parts.get(name, 0))
            param = most if parts.get(most, 0) > (window - free) // 2 else error.param
            raise BadInput(error.code, f"{error.public_message}{takes}", param=param) from None

    async def _plan_raw(self, open_: Open) -> PromptPlan:
        """Returns the plan of a completion, whose prompt is the text of its question, without a chat template."""
        assert open_.body.parent_id is not None
        question = self.state.items[open_.body.parent_id]
        text = question.text if isinstance(question, Message) else ""
        prompt = await self._raw_prompt(open_.body.request, text)
        emitted = unpack_tokens(bytes(open_.tokens))
        if open_.tail:
            emitted.extend(await self._tokenizer.text(open_.tail))
        window, answer_max = self._engine.context_window, open_.sampling.max_output_tokens
        if len(prompt) >= window:
            raise too_long(len(prompt), window - 1)
        prompt.extend(emitted)
        room = window - len(prompt)
        left = self._left(room, answer_max, emitted)
        return PromptPlan(prompt=prompt, emitted=emitted, shared_prefix=0, max_tokens=left, dropped=0, cut=None)

    def _left(self, room: int, answer_max: int | None, emitted: array[int]) -> int:
        """Returns how many more tokens an answer may have if `room` are left in the window. `emitted` are those that it
        has already."""
        longest = self._answer_tokens if answer_max is None else answer_max
        return room if longest is None else min(room, longest - len(emitted))

    async def _raw_prompt(self, request: Json, text: str) -> array[int]:
        """Returns the token ids that a completion's client sent; if it sent text, the ids of `text`."""
        ids = request.get(RAW_PROMPT) if isinstance(request, dict) else None
        if isinstance(ids, list | tuple):
            return array("I", ids)
        return array("I", [*self._tokenizer.starts, *await self._tokenizer.text(text)])

    async def requested(self, leaf: ItemId | None, message: ChatMessage) -> array[int]:
        """Returns the ids of a prompt made of a branch, `message` behind it, and the beginning of an answer."""
        branch, first = await self._written(leaf)
        prompt = await self._renderer.render(await self._frame(branch, (message,)), first)
        prompt.extend(await self._no_thoughts())
        return prompt

    async def whole(self, leaf: ItemId | None) -> array[int]:
        """Returns the ids that the next prompt will begin with, for which KV can be computed ahead. An answer that is
        being written is not part of them."""
        branch, first = await self._written(leaf)
        return await self._renderer.prefix(await self._frame(branch), first)

    async def compaction(
        self, leaf: ItemId | None, instruction: ChatMessage, *, keep_turns: int | None = None
    ) -> CompactionPlan | None:
        """Returns the plan of a summary: its prompt is the conversation as it is, whose KV is there, with `instruction`
        behind it. Returns None if there is nothing to summarise."""
        info, tokenizer, window = self.state.info, self._tokenizer, self._engine.context_window
        if info is None or leaf is None:
            return None
        branch = await self.messages.branch(leaf)
        frame = await self._frame(branch, (instruction,))
        unthinking, begun = await self._no_thoughts(), len(tokenizer.answer_opening)
        answer = info.max_output_tokens if info.max_output_tokens is not UNSET else None
        threshold = info.compact_threshold if info.compact_threshold is not UNSET else None
        marks = Marks.of(window, answer, threshold, self._answer_room)
        segments, cut = branch.segments, cut_of(self.state, leaf)
        if cut is not None and any(each.item_id == cut for each in segments[branch.base + 1 :]):
            marks = msgspec.structs.replace(marks, high=min(marks.high, marks.low))  # something was left out already
        span = compact(
            segments,
            marks,
            opening=frame.head,
            closing=begun,
            window=window,
            instruction=len(await tokenizer.message(instruction)) + begun + len(unthinking) + (tokenizer.gap or 0),
            kept=branch.kept,
            keep_turns=keep_turns,
        )
        if span is None:
            return None
        prompt = await self._renderer.render(frame, branch.base, end=span.read)
        prompt.extend(unthinking)
        path = item_tree.branch(self.state, leaf)
        around = len(frame.opening.tokens) + begun
        kept = BranchTokens(branch.pieces, span.end, (), branch.pinned)
        return CompactionPlan(
            prompt=prompt,
            items=sum(each.items for each in segments[: span.end]),
            read=path[sum(each.items for each in segments[: span.read]) - 1].id,
            tokens_before=around + branch.length(branch.base),
            tokens_kept=around + kept.length(kept.base),
            tokens_max=marks.summary,
            more=span.read < len(segments),
        )

    async def shortened(self, leaf: ItemId | None, written: CompactionWritten) -> ShortenedPrompt | None:
        """Returns what the next prompt would begin with if the summary `written` were in force; None if it does not
        hold on the branch."""
        state, info, window = self.state, self.state.info, self._engine.context_window
        if info is None or leaf is None or not stands_below(state, leaf, written.read):
            return None
        branch = await self.messages.branch(leaf)
        base = piece_behind(branch.pieces, written.items)
        if not base:
            return None
        message = summary_message(written.text, written.model)
        shorter = BranchTokens(branch.pieces, base, (written.prepared.tokens,), branch.pinned, branch.path, message)
        frame = await self._frame(shorter)
        prompt = await self._renderer.prefix(frame, base)
        before = len(frame.opening.tokens) + branch.length(branch.base) + len(self._tokenizer.answer_opening)
        answer = info.max_output_tokens if info.max_output_tokens is not UNSET else None
        full = (
            before > COMPACT_NOW * (window - reserved(window, answer, self._answer_room))
            or cut_of(state, leaf) is not None
        )
        return ShortenedPrompt(prompt, before, full)

    async def _written(self, leaf: ItemId | None) -> tuple[BranchTokens, int]:
        """Returns a branch without an answer that is being written, and the index of the piece with which its prompts
        begin."""
        cut, end = cut_of(self.state, leaf), leaf
        while end is not None and self.state.made_by.get(end) in self.state.open:
            end = self.state.items[end].parent_id
        branch = await self.messages.branch(end)
        begin = next((index for index, (each, _) in enumerate(branch.pieces) if each.item_id == cut), 0) if cut else 0
        return branch, max(branch.base, begin)

    async def _no_thoughts(self) -> Tokens:
        """Returns the ids at the end of a prompt that keep its answer from having thoughts; empty if the model has no
        thoughts, or none unless it gets a hint."""
        marks = self._engine.thoughts
        if marks is None or (marks.asked and not self._thinking):
            return ()
        return await self._tokenizer.scaffold(marks.none)

    @property
    def _settings(self) -> PromptSettings:
        info = self.state.info
        assert info is not None
        return PromptSettings(info.instructions, info.memories or (), info.tools, self._thinking)

    def _settings_of(self, command: cm.TurnCreate, memories: tuple[str, ...]) -> PromptSettings:
        """Returns the instructions, memories and tools that the prompt of a turn will begin with."""
        info, made = self.state.info, command.create
        if info is None:
            return (
                PromptSettings(None, memories, ())
                if made is None
                else PromptSettings(made.instructions, memories, made.tools)
            )
        return PromptSettings(
            info.instructions if command.instructions is UNSET else command.instructions,
            info.memories or (),
            info.tools if command.tools is UNSET else command.tools,
        )

    async def _opening_of(self, settings: PromptSettings, *, keep: bool = True) -> PromptOpening:
        if self._opening is not None and self._opening[0] == settings:
            return self._opening[1]
        (instructions, memories, tools, _), opening = settings, self._tokenizer.opening
        tokens = array("I", await opening(with_memories(instructions, memories), tools))
        shared = shared_length(tokens, await opening(instructions, tools)) if memories else len(tokens)
        made = PromptOpening(tokens, shared)
        if keep:
            self._opening = (settings, made)
        return made


def _keeps_all(request: Any, chosen: ContextPolicy | None) -> str:
    """Returns the name of the setting that forbids to leave the oldest turns out; "" if neither request, session nor
    tenant forbids it."""
    if isinstance(request, dict) and (truncation := request.get(TRUNCATION)) is not None:
        return "`truncation` is `disabled`" if truncation == "disabled" else ""
    return "`context_policy` is `off`" if chosen == "off" else ""
