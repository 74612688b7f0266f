"""The ledger: the token ids that stand for a branch, put together piece by piece, each tokenised once.

A message's ids are journaled with it, an answer's ids are the ones that the engine made; only what carries another
tokenizer's fingerprint, or was rewritten (a retraction, a text cut inside a token), is tokenised again, and then kept.
So the work for a turn is its own tokens, plus joining arrays.

Does not know engines or KV: these compare ids and reuse what matches (I6).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, dropwhile, groupby
from operator import is_
from typing import Final, NamedTuple

import msgspec
from msgspec import UNSET

from sessions.machine import item_tree
from sessions.machine.inputs_and_effects import Prepared
from sessions.machine.state import Open, State, cut_of
from sessions.model import commands as cm
from sessions.model.errors import BadInput
from sessions.model.events import SessionInfo
from sessions.model.generation import RAW_PROMPT, EngineInfo
from sessions.model.memories import with_memories
from sessions.model.types import (
    CallId,
    FunctionCall,
    FunctionCallOutput,
    Item,
    ItemId,
    Message,
    Role,
    Tokens,
    Tool,
    pack_tokens,
    unpack_tokens,
)
from sessions.ports import ChatMessage, Tokenizer
from sessions.turn.context_fitting import Segment, fit, too_long

NEIGHBOURS_REACH: Final = 512  # code points of what stands before a text that it is judged together with


Packed = tuple[bytes, ...]
"""Token ids of a piece, packed, in parts that the state holds as well."""


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


class PromptText(NamedTuple):
    """A text of a prompt, and whether it is the model's, as far as the prompt says."""

    text: str
    by_model: bool


class Ledger:
    """The token ids of one session's branches. Belongs to its actor."""

    def __init__(self, state: State, tokenizer: Tokenizer, engine: EngineInfo) -> None:
        self._state = state
        self._tokenizer = tokenizer
        self._engine = engine
        # Tokenised here because the log's ids do not fit; good for the items as they were (one may be taken back).
        self._made: dict[tuple[ItemId, ...], tuple[tuple[Item, ...], Packed]] = {}
        self._opening: tuple[SessionInfo, array[int]] | None = None
        self._answer_opening, self._answer_closing = map(
            pack_tokens, (tokenizer.answer_opening, tokenizer.answer_closing)
        )
        self._settled: tuple[list[Item], list[tuple[Segment, Packed]]] = ([], [])  # items whose pieces stay, and these

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The functions that the model may call."""
        info = self._state.info
        return info.tools if info is not None else ()

    @property
    def begun(self) -> bool:
        """The session is there."""
        return self._state.info is not None

    async def prepare(self, message: ChatMessage) -> Prepared:
        """The ids of a new message. Raises BadInput when it could never fit the window."""
        tokens = await self._tokenizer.message(message)
        room = self._engine.context_window - len(self._tokenizer.answer_opening) - 1
        if len(tokens) > room:
            raise too_long(len(tokens), room)
        return Prepared(pack_tokens(tokens), self._tokenizer.fingerprint)

    async def plan(self, open_: Open) -> PromptPlan:
        """The prompt of a response: opening + kept items + answer opening + what it has written already.

        Raises BadInput `context_length_exceeded` when it does not fit.
        """
        if isinstance(open_.body.request, dict) and open_.body.request.get(RAW_PROMPT):
            return await self._plan_raw(open_)
        opening = await self._open()
        pieces = await self._pieces(item_tree.branch(self._state, open_.body.parent_id))
        emitted = unpack_tokens(bytes(open_.tokens))
        if open_.tail:
            emitted.extend(await self._tokenizer.text(open_.tail))
        answer_opening = self._tokenizer.answer_opening
        window, answer_max = self._engine.context_window, open_.sampling.max_output_tokens
        fitted = fit(
            [segment for segment, _ in pieces],
            opening=len(opening),
            closing=len(answer_opening),
            window=window,
            answer=answer_max,
            cut=self._state.cuts.get(open_.id),
        )
        prompt = array("I", opening)
        prompt.frombytes(b"".join(chain.from_iterable(packed for _, packed in pieces[fitted.first :])))
        prompt.extend(answer_opening)
        prompt.extend(emitted)
        room = window - len(prompt)
        left = min(room, answer_max - len(emitted)) if answer_max is not None else room
        return PromptPlan(
            prompt=prompt,
            emitted=emitted,
            shared_prefix=len(opening),
            max_tokens=left,
            dropped=fitted.dropped,
            cut=pieces[fitted.first][0].item_id if fitted.moved else None,
        )

    async def _plan_raw(self, open_: Open) -> PromptPlan:
        """The prompt of a completion: its question's text, behind what every prompt begins with."""
        assert open_.body.parent_id is not None
        question = self._state.items[open_.body.parent_id]
        prompt = array("I", self._tokenizer.starts)
        prompt.extend(await self._tokenizer.text(question.text if isinstance(question, Message) else ""))
        emitted = unpack_tokens(bytes(open_.tokens))
        if open_.tail:
            emitted.extend(await self._tokenizer.text(open_.tail))
        window, answer_max = self._engine.context_window, open_.sampling.max_output_tokens
        if len(prompt) >= window:
            raise too_long(len(prompt), window - 1)
        prompt.extend(emitted)
        room = window - len(prompt)
        left = min(room, answer_max - len(emitted)) if answer_max is not None else room
        return PromptPlan(prompt=prompt, emitted=emitted, shared_prefix=0, max_tokens=left, dropped=0, cut=None)

    async def whole(self, leaf: ItemId | None) -> array[int]:
        """The ids of a branch as the next prompt would begin with them, up to an answer that is being written: what KV
        is warmed for."""
        prompt = array("I", await self._open())
        path = item_tree.branch(self._state, leaf)
        cut = cut_of(self._state, leaf)
        kept = path if cut is None else dropwhile(lambda item: item.id != cut, path)
        for made_by, group in groupby(kept, key=lambda item: self._state.made_by.get(item.id)):
            if made_by in self._state.open:
                break
            if made_by is not None:
                prompt.frombytes(b"".join(await self._answer(tuple(group))))
            else:
                for sent in _group_by_message(group):
                    prompt.frombytes(b"".join(await self._render_group(sent)))
        return prompt

    async def _pieces(self, path: list[Item]) -> list[tuple[Segment, Packed]]:
        """The pieces of a branch, message by message. Those of the branch before it, up to where the two part, are
        taken over: a turn costs its own items. Nothing stands behind an answer that has not ended."""
        settled, pieces = self._settled
        count = len(settled)
        if count and all(map(is_, settled, path)) and not self._goes_on(path, count):
            pieces = pieces.copy()
        else:
            count, pieces = 0, []
        for made_by, group in groupby(path[count:], key=lambda item: self._state.made_by.get(item.id)):
            if made_by is None:
                groups = [(sent, await self._render_group(sent)) for sent in _group_by_message(group)]
            else:
                items = tuple(group)
                groups = [(items, await self._answer(items))]
            for items, packed in groups:
                first = items[0]
                begins_turn = isinstance(first, Message) and first.role == "user"
                pieces.append((Segment(first.id, sum(map(len, packed)) // 4, begins_turn, len(items)), packed))
        self._settled = (path, pieces)
        return pieces

    def _goes_on(self, path: list[Item], count: int) -> bool:
        """Whether the message that ends the first `count` items of a path goes on behind them."""
        if count >= len(path):
            return count > len(path)
        made_by = self._state.made_by.get(path[count].id)
        same = made_by == self._state.made_by.get(path[count - 1].id)
        return same and (made_by is not None or isinstance(path[count], FunctionCall))

    async def _open(self) -> array[int]:
        info = self._state.info
        assert info is not None
        if self._opening is None or self._opening[0] is not info:
            written = with_memories(info.instructions, info.memories or ())
            self._opening = (info, array("I", await self._tokenizer.opening(written, info.tools)))
        return self._opening[1]

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

    def rendered(self, item: Item) -> ChatMessage:
        """An item that is not an answer of ours, as the template sees it."""
        match item:
            case Message():
                return ChatMessage(role=item.role, text=item.text)
            case FunctionCallOutput():
                name = self.name_of(item.call_id, item.parent_id)
                return ChatMessage(role="tool", text=item.output, call_id=item.call_id, name=name)
            case FunctionCall():
                raise BadInput("invalid_request", "A call stands only inside an answer.")

    def role_of(self, item_id: ItemId) -> Role:
        """The role that a message has, and what replaces it will have."""
        item = self._state.items.get(item_id)
        return item.role if isinstance(item, Message) else "user"

    def goes_on_from(self, command: cm.MessageCreate | cm.MessageEdit | cm.ToolOutput | cm.TurnCreate) -> ItemId | None:
        """The item that what it brings will stand below, unless it is refused."""
        state = self._state
        match command:
            case cm.ToolOutput():
                return next((turn.last for turn in state.awaiting.values() if command.call_id in turn.missing), None)
            case cm.MessageEdit():
                edited = state.items.get(command.item_id)
                return edited.parent_id if edited is not None else None
            case cm.TurnCreate(after_response=str() as after):
                answer = state.answers.get(after)
                return answer.items[-1] if answer is not None and answer.items else None
        parent = state.newest if command.parent_id is UNSET else command.parent_id
        return parent if parent in state.items else None

    def texts_before(
        self, command: cm.MessageCreate | cm.MessageEdit | cm.ToolOutput | cm.TurnCreate | None
    ) -> list[PromptText]:
        """The end of what a prompt holds before what the command brings (None: before the next message), as much of it
        as the command's texts are judged together with, in its order."""
        leaf = self._state.newest if command is None else self.goes_on_from(command)
        texts = [_prompt_text(waiting.item) for waiting in reversed(self._state.queue) if waiting.item is not None]
        if not isinstance(command, cm.MessageCreate) or command.parent_id is not UNSET:
            texts = []  # only what names no parent may come to stand behind those that wait
        room = {True: NEIGHBOURS_REACH, False: NEIGHBOURS_REACH}  # by author
        for item in item_tree.ancestors(self._state, leaf):
            texts.append(_prompt_text(item))
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


def _prompt_text(item: Item) -> PromptText:
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
