"""The ledger: the token ids that stand for a branch, put together piece by piece, each tokenised once.

A message's ids are journaled with it, an answer's ids are the ones that the engine made; only what carries another
tokenizer's fingerprint, or was rewritten (a retraction, a text cut inside a token), is tokenised again, and then kept.
So the work for a turn is its own tokens, plus joining arrays.

Does not know engines or KV: these compare ids and reuse what matches (I6).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, chain, groupby, islice
from operator import is_
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET

from sessions.machine import item_tree
from sessions.machine.inputs_and_effects import CompactionWritten, Prepared
from sessions.machine.responses import item_ids_of
from sessions.machine.server_tools import newest_of
from sessions.machine.state import Answer, Compaction, Open, State, compaction_of, cut_of, stands_below
from sessions.machine.turn_commands import new_item
from sessions.model import commands as cm
from sessions.model.errors import BadInput
from sessions.model.generation import RAW_PROMPT, TRUNCATION, EngineInfo, continues, thinks
from sessions.model.memories import with_memories
from sessions.model.types import (
    DEFAULT_CONTEXT_POLICY,
    LOCAL_PRINCIPAL,
    CallId,
    ContextPolicy,
    FunctionCall,
    FunctionCallOutput,
    Item,
    ItemId,
    Json,
    Message,
    Role,
    TenantId,
    Tokens,
    Tool,
    UnixMs,
    pack_tokens,
    unpack_tokens,
)
from sessions.ports import ChatMessage, Tokenizer
from sessions.turn.context_fitting import (
    ANSWER_ROOM,
    COMPACT_NOW,
    PINNED_SHARE,
    Fit,
    Kept,
    Marks,
    Segment,
    compact,
    fit,
    last_turn,
    reserved,
    too_long,
)
from sessions.turn.retokenisation import as_written, shared_length

ANSWERS_LOOKED_AT: Final = 256  # for the one that a client has changed
JOINED_PIECES_MIN: Final = 128  # fewer are put together anew at each turn, and not kept
NEIGHBOURS_REACH: Final = 512  # code points of what stands before a text that it is judged together with


Packed = tuple[bytes, ...]
"""Token ids of a piece, packed, in parts that the state holds as well."""


Pieces = tuple[tuple[Segment, Packed], ...]
"""A branch, message by message. No plan changes one that another plan has read: it makes a new one."""


class PromptPlan(msgspec.Struct, frozen=True):
    """What an engine is to run for a response, and whether a new context cut must be journaled first."""

    prompt: array[int]
    emitted: array[int]  # the end of the prompt: what the response has written already
    shared_prefix: int
    max_tokens: int
    dropped: int
    cut: ItemId | None  # set when the cut is new

    @property
    def num_input(self) -> int:
        return len(self.prompt) - len(self.emitted)


class CompactionPlan(msgspec.Struct, frozen=True):
    """What a model is to run for a summary, and what it will stand for."""

    prompt: array[int]
    items: int  # of the branch, from its first, that it stands for
    read: ItemId  # the last one that the model reads
    tokens_before: int  # of a prompt as it is now
    tokens_kept: int  # of one with the summary, but for the summary
    tokens_max: int
    more: bool  # not all could be read: another is due behind it


class ShortenedPrompt(NamedTuple):
    """What prompts begin with once a summary is in force."""

    prompt: array[int]
    tokens_before: int  # of a prompt without it
    full: bool  # prompts leave something out without it, or the next one may


class Line(msgspec.Struct, frozen=True):
    """A branch, piece by piece, with what stands in its prompts for the pieces before `base`."""

    pieces: Pieces
    base: int = 0
    summary: Packed = ()
    pinned: tuple[int, ...] = ()  # pieces that stay, in order
    path: tuple[Item, ...] = ()  # what the pieces are made of
    summarised: ChatMessage | None = None  # the summary as a message

    @property
    def segments(self) -> list[Segment]:
        return [segment for segment, _ in self.pieces]

    @property
    def kept(self) -> Kept:
        return Kept(self.base, self.pinned)

    @property
    def summary_length(self) -> int:
        return sum(map(len, self.summary)) // 4

    def length(self, first: int) -> int:
        """Tokens of the summary, of what is pinned before `first`, and of the pieces from there on."""
        head = sum(self.pieces[index][0].length for index in self.pinned if index < first)
        return self.summary_length + head + sum(segment.length for segment, _ in self.pieces[first:])

    def packed(self, first: int, end: int | None = None) -> bytes:
        """The ids of the summary, of what is pinned before `first`, and of the pieces from there on."""
        head = chain.from_iterable(self.pieces[index][1] for index in self.pinned if index < first)
        kept = chain.from_iterable(packed for _, packed in self.pieces[first:end])
        return b"".join(chain(self.summary, head, kept))


class _Settled(NamedTuple):
    """The last branch, whose pieces stay."""

    items: tuple[Item, ...]
    names: tuple[ItemId, ...]
    pieces: Pieces


class _JoinedPrompt(NamedTuple):
    """The last prompt of a long line, up to its answer, which the next one begins with."""

    opening: array[int]
    first: int
    pieces: tuple[Packed, ...]  # of the whole line
    ids: bytes

    def begins(self, opening: array[int], first: int, pieces: tuple[Packed, ...]) -> bool:
        """Whether a prompt with this opening, from piece `first` of these on, begins with it."""
        same = self.opening is opening and self.first == first and len(self.pieces) <= len(pieces)
        return same and all(map(is_, self.pieces, pieces))


class _Settings(NamedTuple):
    """What an opening is made of."""

    instructions: str | None
    memories: tuple[str, ...]
    tools: tuple[Tool, ...]


class _Opening(NamedTuple):
    """What a session's prompts begin with. `shared` tokens of it, those before its user's memories, other sessions of
    the tenant may have in common with it."""

    tokens: array[int]
    shared: int


class PromptText(NamedTuple):
    """A text of a prompt, and whether it is the model's, as far as the prompt says."""

    text: str
    by_model: bool


class Ledger:
    """The token ids of one session's branches. Belongs to its actor."""

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
        """`answer_tokens`: the most of an answer whose request and session name no limit; None: what fits."""
        self._answer_tokens = answer_tokens
        self._tenant_policy = tenant_policy
        self._answer_room = answer_room
        self._state = state
        self._tokenizer = tokenizer
        self._engine = engine
        # Tokenised here because the log's ids do not fit; good for the items as they were (one may be taken back).
        self._made: dict[tuple[ItemId, ...], tuple[tuple[Item, ...], Packed]] = {}
        self._opening: tuple[_Settings, _Opening] | None = None
        self._answer_opening, self._answer_closing = map(
            pack_tokens, (tokenizer.answer_opening, tokenizer.answer_closing)
        )
        self._settled = _Settled((), (), ())
        self._joined: _JoinedPrompt | None = None

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The functions that the model may call."""
        info = self._state.info
        return info.tools if info is not None else ()

    @property
    def begun(self) -> bool:
        """The session is there."""
        return self._state.info is not None

    @property
    def policy(self) -> ContextPolicy:
        """What becomes of this conversation when its window is full."""
        return self._chosen_policy or DEFAULT_CONTEXT_POLICY

    @property
    def _chosen_policy(self) -> ContextPolicy | None:
        """The policy that the session has, or its tenant."""
        info = self._state.info
        if info is not None and info.context_policy is not UNSET:
            return info.context_policy
        return None if self._tenant_policy is None else self._tenant_policy(self._state.key.tenant)

    def _truncates(self, request: Any, chosen: ContextPolicy | None) -> bool:
        """Whether an answer's prompt may leave the oldest turns out. Where a request came by OpenAI's doors, only if
        it, its session or its tenant says so."""
        if not isinstance(request, dict):
            return (chosen or DEFAULT_CONTEXT_POLICY) != "off"
        asked = request.get(TRUNCATION)
        return asked == "auto" if asked is not None else chosen not in (None, "off")

    async def prepare(self, message: ChatMessage, *, bounded: bool = True) -> Prepared:
        """The ids of a new message. Raises BadInput when it could never fit the window, unless something else looks at
        that."""
        tokens = await self._tokenizer.message(message)
        room = self._engine.context_window - len(self._tokenizer.answer_opening) - 1
        if bounded and len(tokens) > room:
            raise too_long(len(tokens), room)
        return Prepared(pack_tokens(tokens), self._tokenizer.fingerprint)

    async def prepare_answer(self, text: str, question: ItemId | None, *, bounded: bool = True) -> Prepared:
        """The ids of an answer that a client brings in the place of one of ours: cut, edited, with parts taken out. As
        far as the two read alike they are those of ours, whose KV is there; text that a model wrote may have others
        than it is tokenised to."""
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
        """Our newest answers to it whose ids are known, with their texts."""
        for answer in islice(reversed(self._state.answers.values()), ANSWERS_LOOKED_AT):
            if answer.tail or len(answer.items) != 1 or answer.fingerprint != self._tokenizer.fingerprint:
                continue
            item = self._state.items.get(answer.items[0])
            if isinstance(item, Message) and item.parent_id == question:
                yield answer, item.text

    async def plan(self, open_: Open) -> PromptPlan:
        """The prompt of a response: opening + kept items + answer opening + what it has written already.

        Raises BadInput `context_length_exceeded` when it does not fit.
        """
        if isinstance(open_.body.request, dict) and open_.body.request.get(RAW_PROMPT):
            return await self._plan_raw(open_)
        opening = await self._open()
        begun, parent = array("I", self._tokenizer.answer_opening), open_.body.parent_id
        if not thinks(open_.sampling, open_.body.request):
            begun.extend(await self._no_thoughts())
        last = None if parent is None else self._state.items.get(parent)
        if continues(open_.body.request) and isinstance(last, Message) and last.role == "assistant":
            begun.extend(await self._tokenizer.text(last.text))
            parent = last.parent_id
        line = await self._line(parent)
        emitted = unpack_tokens(bytes(open_.tokens))
        if open_.tail:
            emitted.extend(await self._tokenizer.text(open_.tail))
        window, answer_max = self._engine.context_window, open_.sampling.max_output_tokens
        truncates = self._truncates(open_.body.request, self._chosen_policy)
        head, shared = len(opening.tokens) + line.summary_length, opening.shared
        fitting = partial(
            fit,
            opening=head,
            closing=len(begun),
            window=window,
            answer=answer_max,
            answer_room=self._answer_room,
            cut=self._state.cuts.get(open_.id) if truncates or open_.body.request is UNSET else None,
            kept=line.kept,
            truncate=truncates,
        )
        if self._tokenizer.gap is None:
            fitted = fitting(line.segments)
            prompt = self._joined_prompt(opening.tokens, line, fitted.first)
        else:
            settings = self._settings
            room = window - reserved(window, answer_max, self._answer_room) - len(begun)
            fitted, prompt = await self._fit_whole(fitting, line.segments, settings, line, (), head, room)
            alone = await self._conversation(settings._replace(memories=()), Line((), path=line.path), 0, answer=False)
            shared = shared_length(prompt, alone)
        prompt.extend(begun)
        prompt.extend(emitted)
        room = window - len(prompt)
        return PromptPlan(
            prompt=prompt,
            emitted=emitted,
            shared_prefix=shared,
            max_tokens=self._left(room, answer_max, emitted),
            dropped=fitted.dropped,
            cut=line.pieces[fitted.first][0].item_id if fitted.moved else None,
        )

    async def _fit_whole(
        self,
        fitting: Callable[[Sequence[Segment]], Fit],
        segments: Sequence[Segment],
        settings: _Settings,
        line: Line,
        brought: Sequence[ChatMessage],
        opening: int,
        room: int,
    ) -> tuple[Fit, array[int]]:
        """Where a prompt begins that is rendered as a whole, and that prompt. How long it is shows only then: where it
        is too long for `room`, it is fitted again with what each message takes more than was thought."""
        while True:
            fitted = fitting(segments)
            prompt = await self._conversation(settings, line, fitted.first, brought)
            if len(prompt) <= room:
                return fitted, prompt
            kept = [each for index, each in enumerate(segments) if index >= fitted.first or index in line.pinned]
            missing = len(prompt) - opening - sum(each.length for each in kept)
            more = max(1, -(-missing // max(1, len(kept))))
            segments = [msgspec.structs.replace(each, length=each.length + more) for each in segments]

    async def _conversation(
        self,
        settings: _Settings,
        line: Line,
        first: int,
        brought: Sequence[ChatMessage] = (),
        *,
        end: int | None = None,
        answer: bool = True,
    ) -> array[int]:
        """The ids of a prompt that is rendered as a whole: the pieces of a line up to `end`, and what is brought. The
        day that it names is that of its newest question, so that the log alone says what it is."""
        messages = list[ChatMessage]()
        if line.summarised is not None:
            summary = unpack_tokens(b"".join(line.summary))
            messages.append(msgspec.structs.replace(line.summarised, tokens=summary))
        at = 0
        for index, (segment, packed) in enumerate(line.pieces[:end]):
            items = line.path[at : at + segment.items]
            at += segment.items
            if index >= first or index in line.pinned:
                message = self._said(items)
                messages.append(msgspec.structs.replace(message, tokens=unpack_tokens(b"".join(packed))))
        asked = (item for item in reversed(line.path) if isinstance(item, Message) and item.role == "user")
        newest = next(asked, None)
        day = newest.created_at if newest is not None else UnixMs(0)
        instructions = with_memories(settings.instructions, settings.memories)
        return array(
            "I",
            await self._tokenizer.conversation(instructions, settings.tools, [*messages, *brought], day, answer=answer),
        )

    def _said(self, items: Sequence[Item]) -> ChatMessage:
        """The items of one piece as a template sees them."""
        if len(items) > 1 or isinstance(items[-1], FunctionCall):
            message = _with_calls(items)
            said = items[0]
            return message if not isinstance(said, Message) else self._thinking(message, said)
        return self.rendered(items[0])

    def _with_thoughts(self, item: Message) -> str:
        """A message's text as a template that sees whole conversations has it: it drops thoughts or keeps them, as its
        authors meant. Elsewhere thoughts stand in the ids of their answer alone."""
        marks, thoughts = self._engine.thoughts, item.reasoning
        if self._tokenizer.gap is None or marks is None or not thoughts:
            return item.text
        return f"{marks.open}\n{thoughts}\n{marks.close}\n\n{item.text}"

    def _thinking(self, message: ChatMessage, said: Message) -> ChatMessage:
        """An answer with calls, with the thoughts before it."""
        thoughts = self._with_thoughts(said).removesuffix(said.text)
        return msgspec.structs.replace(message, text=f"{thoughts}{message.text}")

    async def requested(self, leaf: ItemId | None, message: ChatMessage) -> array[int]:
        """The ids of a prompt with a branch, a message behind it, and the beginning of its answer."""
        if self._tokenizer.gap is None:
            prompt = await self.whole(leaf)
            prompt.extend(await self._tokenizer.message(message))
            prompt.extend(self._tokenizer.answer_opening)
        else:
            line, begin = await self._written(leaf)
            prompt = await self._conversation(self._settings, line, begin, (message,))
        prompt.extend(await self._no_thoughts())
        return prompt

    async def _no_thoughts(self) -> Tokens:
        """What stands at the end of a prompt whose answer is to have no thoughts."""
        marks = self._engine.thoughts
        return () if marks is None else await self._tokenizer.scaffold(marks.none)

    async def fit_turn(
        self, command: cm.TurnCreate, prepared: Sequence[Prepared | None], memories: Sequence[str] = ()
    ) -> int:
        """How many items the prompt of a turn's answer will leave out: looked at before anything of the turn is
        written. Raises BadInput `context_length_exceeded`, which says what takes how much, where it does not fit."""
        window, state = self._engine.context_window, self._state
        if isinstance(command.request, dict) and command.request.get(RAW_PROMPT):
            words = (item.content for item in command.items if isinstance(item, cm.NewMessage))
            text = "".join(part.text for content in words for part in cm.content_parts(content))
            length = len(await self._raw_prompt(command.request, text))
            if length >= window:
                raise too_long(length, window - 1)
            return 0
        settings = self._settings_of(command, tuple(memories))
        opening = await self._opening_of(settings)
        leaf = self.goes_on_from(command)
        line = await self._line(leaf)
        pieces, messages = list(line.pieces), list[ChatMessage]()
        names = item_ids_of(state.key, LOCAL_PRINCIPAL, command)
        brought = [new_item(name, new, None, UnixMs(0)) for name, new in zip(names, command.items, strict=True)]
        ids = {name: each for name, each in zip(names, prepared, strict=False) if each is not None}
        for items in _group_by_message(brought):
            whole = ids.get(items[0].id) if not isinstance(items[-1], FunctionCall) else None
            message = _with_calls(items) if isinstance(items[-1], FunctionCall) else self.rendered(items[0], leaf)
            tokens = unpack_tokens(whole.tokens) if whole is not None else await self._tokenizer.message(message)
            messages.append(msgspec.structs.replace(message, tokens=tokens))
            segment = _segment(items, len(tokens) + (self._tokenizer.gap or 0))
            if segment.output is not None:
                _join(pieces, segment.output)
            pieces.append((segment, ()))
        segments = [segment for segment, _ in pieces]
        chosen = self._chosen_policy if command.context_policy is UNSET else command.context_policy
        truncates = self._truncates(command.request, chosen)
        answer = command.max_output_tokens
        cut = cut_of(state, leaf) if leaf is not None and truncates else None
        head = len(opening.tokens) + line.summary_length
        closing = len(self._tokenizer.answer_opening)
        fitting = partial(
            fit,
            opening=head,
            closing=closing,
            window=window,
            answer=answer,
            answer_room=self._answer_room,
            cut=cut,
            kept=line.kept,
            truncate=truncates,
        )
        try:
            if self._tokenizer.gap is None:
                return fitting(segments).dropped
            room = window - reserved(window, answer, self._answer_room)
            return (await self._fit_whole(fitting, segments, settings, line, messages, head, room))[0].dropped
        except BadInput as error:
            if error.code != "context_length_exceeded":
                raise
            instructions = len((await self._opening_of(settings._replace(tools=()), keep=False)).tokens)
            newest = last_turn(segments)
            history = sum(each.length for each in segments[line.base : newest]) + line.summary_length
            question = sum(each.length for each in segments[newest:]) + closing
            takes = (
                f" The instructions take {instructions}, the tools {len(opening.tokens) - instructions}, the history"
                f" {history}, the newest message {question}; of the window of {window},"
                f" {reserved(window, answer, self._answer_room)} stay free for the answer."
            )
            raise BadInput(error.code, f"{error.public_message}{takes}", param=error.param) from None

    def _settings_of(self, command: cm.TurnCreate, memories: tuple[str, ...]) -> _Settings:
        """What the prompt of a turn will begin with."""
        info, made = self._state.info, command.create
        if info is None:
            return _Settings(None, memories, ()) if made is None else _Settings(made.instructions, memories, made.tools)
        return _Settings(
            info.instructions if command.instructions is UNSET else command.instructions,
            info.memories or (),
            info.tools if command.tools is UNSET else command.tools,
        )

    def _joined_prompt(self, opening: array[int], line: Line, first: int) -> array[int]:
        """The ids of the opening and of a line from its piece `first` on. Of a long line what the prompt before had in
        common with it is not put together again."""
        if line.summary or line.pinned or len(line.pieces) - first < JOINED_PIECES_MIN:
            self._joined = None
            prompt = array("I", opening)
            prompt.frombytes(line.packed(first))
            return prompt
        packed, joined = tuple(packed for _, packed in line.pieces), self._joined
        if joined is None or not joined.begins(opening, first, packed):
            joined = _JoinedPrompt(opening, first, packed[:first], opening.tobytes())
        ids = b"".join((joined.ids, *chain.from_iterable(packed[len(joined.pieces) :])))
        self._joined = _JoinedPrompt(opening, first, packed, ids)
        prompt = array("I")
        prompt.frombytes(ids)
        return prompt

    async def _plan_raw(self, open_: Open) -> PromptPlan:
        """The prompt of a completion: its question's text, behind what every prompt begins with."""
        assert open_.body.parent_id is not None
        question = self._state.items[open_.body.parent_id]
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
        """How many tokens an answer may still have in a window with this room."""
        longest = self._answer_tokens if answer_max is None else answer_max
        return room if longest is None else min(room, longest - len(emitted))

    async def _raw_prompt(self, request: Json, text: str) -> array[int]:
        """The token ids that a completion's client sent; else those of its text."""
        ids = request.get(RAW_PROMPT) if isinstance(request, dict) else None
        if isinstance(ids, list | tuple):
            return array("I", ids)
        return array("I", [*self._tokenizer.starts, *await self._tokenizer.text(text)])

    async def whole(self, leaf: ItemId | None) -> array[int]:
        """The ids of a branch as the next prompt would begin with them, up to an answer that is being written: what KV
        is warmed for."""
        line, begin = await self._written(leaf)
        if self._tokenizer.gap is not None:
            asked = line.pieces and not (isinstance(line.path[-1], Message) and line.path[-1].role == "assistant")
            return await self._conversation(self._settings, line, begin, answer=bool(asked))
        prompt = array("I", (await self._open()).tokens)
        prompt.frombytes(line.packed(begin))
        return prompt

    async def _written(self, leaf: ItemId | None) -> tuple[Line, int]:
        """A branch up to an answer that is being written, and the piece that its prompts begin with."""
        cut, end = cut_of(self._state, leaf), leaf
        while end is not None and self._state.made_by.get(end) in self._state.open:
            end = self._state.items[end].parent_id
        line = await self._line(end)
        begin = next((index for index, (each, _) in enumerate(line.pieces) if each.item_id == cut), 0) if cut else 0
        return line, max(line.base, begin)

    async def compaction(
        self, leaf: ItemId | None, instruction: ChatMessage, *, keep_turns: int | None = None
    ) -> CompactionPlan | None:
        """The prompt that a summary is requested with: the conversation as it stands, and `instruction` behind it, so
        that the rest is in its KV. None where there is nothing to summarise."""
        info, tokenizer, window = self._state.info, self._tokenizer, self._engine.context_window
        if info is None or leaf is None:
            return None
        opening, line = (await self._open()).tokens, await self._line(leaf)
        unthinking = await self._no_thoughts()
        requested = [*await tokenizer.message(instruction), *tokenizer.answer_opening, *unthinking]
        answer = info.max_output_tokens if info.max_output_tokens is not UNSET else None
        threshold = info.compact_threshold if info.compact_threshold is not UNSET else None
        marks = Marks.of(window, answer, threshold, self._answer_room)
        segments, cut = line.segments, cut_of(self._state, leaf)
        if cut is not None and any(each.item_id == cut for each in segments[line.base + 1 :]):
            marks = msgspec.structs.replace(marks, high=min(marks.high, marks.low))  # something was left out already
        span = compact(
            segments,
            marks,
            opening=len(opening) + line.summary_length,
            closing=len(tokenizer.answer_opening),
            window=window,
            instruction=len(requested) + (tokenizer.gap or 0),
            kept=line.kept,
            keep_turns=keep_turns,
        )
        if span is None:
            return None
        if tokenizer.gap is None:
            prompt = array("I", opening)
            prompt.frombytes(line.packed(line.base, span.read))
            prompt.extend(requested)
        else:
            prompt = await self._conversation(self._settings, line, line.base, (instruction,), end=span.read)
            prompt.extend(unthinking)
        path = item_tree.branch(self._state, leaf)
        closing = len(opening) + len(tokenizer.answer_opening)
        kept = Line(line.pieces, span.end, (), line.pinned)
        return CompactionPlan(
            prompt=prompt,
            items=sum(each.items for each in segments[: span.end]),
            read=path[sum(each.items for each in segments[: span.read]) - 1].id,
            tokens_before=closing + line.length(line.base),
            tokens_kept=closing + kept.length(kept.base),
            tokens_max=marks.summary,
            more=span.read < len(segments),
        )

    async def shortened(self, leaf: ItemId | None, written: CompactionWritten) -> ShortenedPrompt | None:
        """What the next prompt would begin with if a summary that is not in force were; None where it does not hold."""
        state, info, window = self._state, self._state.info, self._engine.context_window
        if info is None or leaf is None or not stands_below(state, leaf, written.read):
            return None
        opening, line = (await self._open()).tokens, await self._line(leaf)
        base = _index_behind(line.pieces, written.items)
        if not base:
            return None
        message = summary_message(written.text, written.model)
        shorter = Line(line.pieces, base, (written.prepared.tokens,), line.pinned, line.path, message)
        if self._tokenizer.gap is None:
            prompt = array("I", opening)
            prompt.frombytes(shorter.packed(base))
        else:
            prompt = await self._conversation(self._settings, shorter, base, answer=False)
        before = len(opening) + line.length(line.base) + len(self._tokenizer.answer_opening)
        answer = info.max_output_tokens if info.max_output_tokens is not UNSET else None
        full = (
            before > COMPACT_NOW * (window - reserved(window, answer, self._answer_room))
            or cut_of(state, leaf) is not None
        )
        return ShortenedPrompt(prompt, before, full)

    async def pinned_too_long(self, item_id: ItemId) -> bool:
        """Whether an item, with what goes with it, has no place among the pinned ones of its branch."""
        leaf = self._state.newest
        if not stands_below(self._state, leaf, item_id):
            leaf = item_id
        path = item_tree.branch(self._state, leaf)
        pieces = await self._pieces(path)
        pinned = pinned_pieces(path, pieces, [*self._state.pinned, item_id])
        return sum(pieces[index][0].length for index in pinned) > self._engine.context_window // PINNED_SHARE

    async def _line(self, leaf: ItemId | None) -> Line:
        """The branch that ends in `leaf`, as prompts have it."""
        state = self._state
        path = self._path(leaf)
        pieces = await self._pieces(path)
        compaction = compaction_of(state, leaf) if state.compactions else None
        if compaction is None and not state.pinned:
            return Line(pieces, path=tuple(path))
        base, summary, summarised = 0, Packed(), None
        if compaction is not None:
            base = _index_behind(pieces, compaction.count)
            summary = await self._summary(compaction) if base else summary
            summarised = summary_message(compaction.summary.text, compaction.model) if base else None
        pinned = self._pinned(path, pieces) if state.pinned else ()
        if sum(map(len, summary)) // 4 > self._engine.context_window // 2:  # of a model with a larger window
            base, summary, summarised = 0, Packed(), None
        return Line(pieces, base, summary, pinned, tuple(path), summarised)

    def _path(self, leaf: ItemId | None) -> list[Item]:
        """The branch that ends in `leaf`. What the last one had of it is not walked again."""
        (settled, names, _), items = self._settled, self._state.items
        if not settled:
            return item_tree.branch(self._state, leaf)
        newer: list[Item] = []
        for item in item_tree.ancestors(self._state, leaf):
            if item is settled[-1]:
                if not all(map(is_, map(items.get, names), settled)):
                    break  # something of it was rewritten
                return [*settled, *reversed(newer)]
            newer.append(item)
        return item_tree.branch(self._state, leaf)

    def _pinned(self, path: list[Item], pieces: Pieces) -> tuple[int, ...]:
        """The pieces that stay whatever is left out: the newest of them, where there is no room for all."""
        room, kept = self._engine.context_window // PINNED_SHARE, list[int]()
        for index in reversed(pinned_pieces(path, pieces, self._state.pinned)):
            room -= pieces[index][0].length
            if room < 0:
                break
            kept.append(index)
        return tuple(reversed(kept))

    async def _summary(self, compaction: Compaction) -> Packed:
        if compaction.fingerprint == self._tokenizer.fingerprint:
            return (compaction.tokens,)
        items: tuple[Item, ...] = (compaction.summary,)
        made = self._kept(items)
        if made is None:
            message = summary_message(compaction.summary.text, compaction.model)
            made = self._keep(items, await self._tokenizer.message(message))
        return made

    async def _pieces(self, path: list[Item]) -> Pieces:
        """The pieces of a branch, message by message. Those of the branch before it, up to where the two part, are
        taken over: a turn costs its own items. Nothing stands behind an answer that has not ended."""
        settled, names, pieces = self._settled
        count = len(settled)
        if count and all(map(is_, settled, path)) and not self._goes_on(path, count):
            made = list(pieces)
        else:
            count, made = 0, []
        for made_by, group in groupby(path[count:], key=lambda item: self._state.made_by.get(item.id)):
            if made_by is None:
                groups = [(sent, await self._render_group(sent)) for sent in _group_by_message(group)]
            else:
                items = tuple(group)
                groups = [(items, await self._answer(items))]
            for items, packed in groups:
                segment = _segment(items, sum(map(len, packed)) // 4 + (self._tokenizer.gap or 0))
                if segment.output is not None:
                    _join(made, segment.output)
                made.append((segment, packed))
        names = (*names[:count], *(item.id for item in path[count:]))
        self._settled = _Settled(tuple(path), names, tuple(made))
        return self._settled.pieces

    def _goes_on(self, path: list[Item], count: int) -> bool:
        """Whether the message that ends the first `count` items of a path goes on behind them."""
        if count >= len(path):
            return count > len(path)
        made_by = self._state.made_by.get(path[count].id)
        same = made_by == self._state.made_by.get(path[count - 1].id)
        return same and (made_by is not None or isinstance(path[count], FunctionCall))

    @property
    def _settings(self) -> _Settings:
        info = self._state.info
        assert info is not None
        return _Settings(info.instructions, info.memories or (), info.tools)

    async def _open(self) -> _Opening:
        return await self._opening_of(self._settings)

    async def _opening_of(self, settings: _Settings, *, keep: bool = True) -> _Opening:
        if self._opening is not None and self._opening[0] == settings:
            return self._opening[1]
        (instructions, memories, tools), opening = settings, self._tokenizer.opening
        tokens = array("I", await opening(with_memories(instructions, memories), tools))
        shared = shared_length(tokens, await opening(instructions, tools)) if memories else len(tokens)
        made = _Opening(tokens, shared)
        if keep:
            self._opening = (settings, made)
        return made

    async def _message(self, item: Item) -> Packed:
        stored = self._state.item_tokens.get(item.id)
        if stored is not None and stored[0] == self._tokenizer.fingerprint:
            return (stored[1],)
        made = self._kept((item,))
        if made is None:
            made = self._keep((item,), await self._tokenizer.message(self.rendered(item)))
        return made

    async def _render_group(self, items: tuple[Item, ...]) -> Packed:
        """What a client sent: a message, or an answer with calls that it brought along, rendered as a whole."""
        if not isinstance(items[-1], FunctionCall):
            return await self._message(items[0])
        made = self._kept(items)
        if made is None:
            made = self._keep(items, await self._tokenizer.message(_with_calls(items)))
        return made

    async def _answer(self, items: tuple[Item, ...]) -> Packed:
        made = self._kept(items)
        if made is not None:
            return made
        ids = tuple(item.id for item in items)  # a branch may begin in the middle of an answer
        answer = self._state.answers.get(self._state.made_by[ids[0]])
        if answer is not None and answer.fingerprint == self._tokenizer.fingerprint and answer.items == ids:
            if not answer.tail:
                return self._answer_opening, answer.tokens, self._answer_closing
            whole = unpack_tokens(answer.tokens)
            whole.extend(await self._tokenizer.text(answer.tail))
            return self._keep(items, [*self._tokenizer.answer_opening, *whole, *self._tokenizer.answer_closing])
        message = _with_calls(items)
        if message.calls:
            return self._keep(items, await self._tokenizer.message(message))
        text = await self._tokenizer.text(message.text)
        return self._keep(items, [*self._tokenizer.answer_opening, *text, *self._tokenizer.answer_closing])

    def _kept(self, items: tuple[Item, ...]) -> Packed | None:
        made = self._made.get(tuple(item.id for item in items))
        return made[1] if made is not None and made[0] == items else None

    def _keep(self, items: tuple[Item, ...], tokens: Tokens) -> Packed:
        packed = (pack_tokens(tokens),)
        self._made[tuple(item.id for item in items)] = (items, packed)
        return packed

    def rendered(self, item: Item, leaf: ItemId | None = None) -> ChatMessage:
        """An item that is not an answer of ours, as the template sees it. `leaf`: what it will stand below, where it
        does not yet."""
        match item:
            case Message():
                return ChatMessage(role=item.role, text=self._with_thoughts(item))
            case FunctionCallOutput():
                name = self.name_of(item.call_id, item.parent_id or leaf)
                return ChatMessage(role="tool", text=item.output, call_id=item.call_id, name=name)
            case FunctionCall():
                raise BadInput("invalid_request", "A call stands only inside an answer.")

    def role_of(self, item_id: ItemId) -> Role:
        """The role that a message has, and what replaces it will have."""
        item = self._state.items.get(item_id)
        return item.role if isinstance(item, Message) else "user"

    def goes_on_from(
        self, command: cm.MessageCreate | cm.MessageEdit | cm.ResponseSteer | cm.ToolOutput | cm.TurnCreate
    ) -> ItemId | None:
        """The item that what it brings will stand below, unless it is refused."""
        state = self._state
        match command:
            case cm.ToolOutput():
                return next((turn.last for turn in state.awaiting.values() if command.call_id in turn.missing), None)
            case cm.ResponseSteer():
                open_, awaiting = state.open.get(command.response_id), state.awaiting.get(command.response_id)
                return open_.last_item if open_ is not None else awaiting.last if awaiting is not None else None
            case cm.MessageEdit():
                edited = state.items.get(command.item_id)
                return edited.parent_id if edited is not None else None
            case cm.TurnCreate(after_response=str() as after):
                answer = state.answers.get(newest_of(state, after))
                if answer is None:
                    return None
                return answer.items[-1] if answer.items else answer.parent or None
        parent = state.newest if command.parent_id is UNSET else command.parent_id
        return parent if parent in state.items else None

    def texts_before(
        self,
        command: cm.MessageCreate | cm.MessageEdit | cm.ResponseSteer | cm.ToolOutput | cm.TurnCreate | None,
    ) -> list[PromptText]:
        """The end of what a prompt holds before what the command brings (None: before the next message), as much of it
        as the command's texts are judged together with, in its order."""
        leaf = self._state.newest if command is None else self.goes_on_from(command)
        texts = [prompt_text(waiting.item) for waiting in reversed(self._state.queue) if waiting.item is not None]
        if not isinstance(command, cm.MessageCreate) or command.parent_id is not UNSET:
            texts = []  # only what names no parent may come to stand behind those that wait
        room = {True: NEIGHBOURS_REACH, False: NEIGHBOURS_REACH}  # by author
        for item in item_tree.ancestors(self._state, leaf):
            texts.append(prompt_text(item))
            room[texts[-1].by_model] -= len(texts[-1].text)
            if max(room.values()) <= 0 or len(texts) >= NEIGHBOURS_REACH:
                break
        else:
            info = self._state.info
            written = with_memories(info.instructions, info.memories or ()) if info is not None else None
            if written:
                texts.append(PromptText(written, False))
        return texts[::-1]

    def name_of(self, call_id: CallId, leaf: ItemId | None) -> str | None:
        """The function that a call named: the nearest one on the branch that ends in `leaf`."""
        for item in item_tree.ancestors(self._state, leaf):
            if isinstance(item, FunctionCall) and item.call_id == call_id:
                return item.name
        return None


def _group_by_message(items: Iterable[Item]) -> Iterator[tuple[Item, ...]]:
    """What clients sent, message by message: calls belong to the answer that they stand behind."""
    sent: tuple[Item, ...] = ()
    for item in items:
        goes_on = sent and (isinstance(sent[-1], FunctionCall) or getattr(sent[-1], "role", "") == "assistant")
        if sent and not (goes_on and isinstance(item, FunctionCall)):
            yield sent
            sent = ()
        sent += (item,)
    if sent:
        yield sent


def _segment(items: Sequence[Item], length: int) -> Segment:
    first = items[0]
    return Segment(
        first.id,
        length,
        begins_turn=isinstance(first, Message) and first.role == "user",
        items=len(items),
        calls=tuple(item.call_id for item in items if isinstance(item, FunctionCall)),
        output=first.call_id if isinstance(first, FunctionCallOutput) else None,
    )


def _join(pieces: list[tuple[Segment, Packed]], call_id: CallId) -> None:
    """An output is coming behind `pieces`: no prompt begins between it and its call."""
    between: list[int] = []
    for index in range(len(pieces) - 1, -1, -1):
        segment = pieces[index][0]
        if call_id in segment.calls:
            for each in between:
                pieces[each] = (msgspec.structs.replace(pieces[each][0], begins_turn=False), pieces[each][1])
            return
        if segment.begins_turn:
            between.append(index)


def _index_behind(pieces: Pieces, count: int) -> int:
    """The piece behind the first `count` items; 0 where none begins there."""
    ends = accumulate(segment.items for segment, _ in pieces)
    return next((index for index, end in enumerate(ends, 1) if end == count), 0)


def pinned_pieces(path: Sequence[Item], pieces: Pieces, pinned: Collection[ItemId]) -> list[int]:
    """The pieces that these items stand in, in order; those with calls and those with their outputs together."""
    where: dict[ItemId, int] = {}
    at = 0
    for index, (segment, _) in enumerate(pieces):
        where.update((item.id, index) for item in path[at : at + segment.items])
        at += segment.items
    kept = {where[name] for name in pinned if name in where}
    for index in list(kept):
        segment = pieces[index][0]
        if segment.output is not None:
            calls = (each for each in range(index - 1, -1, -1) if segment.output in pieces[each][0].calls)
            kept.update((next(calls, index),))
    for index in list(kept):
        calls_made = pieces[index][0].calls
        if calls_made:
            kept.update(each for each in range(index + 1, len(pieces)) if pieces[each][0].output in calls_made)
    return sorted(kept)


def summary_message(text: str, model: str) -> ChatMessage:
    """A summary as prompts have it: the user's side, for it may repeat what users and tools have put in."""
    return ChatMessage(role="user", text=f"[Summary of our conversation so far, written by {model}]\n{text}")


def prompt_text(item: Item) -> PromptText:
    """Returns what an item says in prompts."""
    match item:
        case Message():
            return PromptText(item.text, item.role == "assistant")
        case FunctionCall():
            return PromptText(f"{item.name} {item.arguments}", True)
        case FunctionCallOutput():
            return PromptText(item.output, False)


def _with_calls(items: Sequence[Item]) -> ChatMessage:
    text = "".join(item.text for item in items if isinstance(item, Message))
    calls = tuple((item.call_id, item.name, item.arguments) for item in items if isinstance(item, FunctionCall))
    return ChatMessage(role="assistant", text=text, calls=calls)
