"""Prepares a command for the machine: size limits, input filters, tokens.

Everything that a person or a tool sends passes here once, whichever door it came through. A refusal touches neither
the log nor the engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cache
from itertools import zip_longest
from typing import TypeGuard

import msgspec
import structlog
from msgspec import UNSET

from sessions.actor.actor_context import ActorContext
from sessions.actor.prompt_filter import Named, PromptFilter
from sessions.actor.tool_naming import with_listings, with_server_tools
from sessions.actor.turn_knowledge import TurnKnowledge, check_knowledge
from sessions.governance.memory_reader import MemoryReader
from sessions.machine.inputs_and_effects import Command, Prepared
from sessions.metrics import Histogram
from sessions.model import commands as cm
from sessions.model.errors import BadInput, Internal, Overloaded, SessileError
from sessions.model.generation import (
    ITEMS_LEFT_OUT,
    RETRIEVAL_SKIPPED,
    unhonoured_fields,
    unhonoured_thoughts,
    unseen_image,
    unsupported_field,
)
from sessions.model.types import CallId, InputImage, InputPassage, InputText, Json, Principal, Role
from sessions.ports import ChatMessage, ChecksSampling, Engine, FilterSet
from sessions.turn.images import prompt_text, without_names
from sessions.turn.ledger import Ledger
from sessions.turn.past_texts import PromptText, goes_on_from, name_of, role_of, texts_before

log = structlog.get_logger(__name__)

Preparable = cm.MessageCreate | cm.MessageEdit | cm.ResponseSteer | cm.ToolOutput


async def prepare_input(input: Command, *, ledger: Ledger, context: ActorContext) -> Command:
    """Returns the command as it is to be applied, filtered and with its tokens; or with its error in `refused`, which
    is what `InputPreparation` raises, or Overloaded if the preparation took too long."""
    command, principal = input.command, input.principal
    replace = msgspec.structs.replace
    preparation = InputPreparation.of(principal, ledger, context)
    findings = preparation.filter.findings
    try:
        takes_tools = context.tools is None or context.engine.info.takes_tools
        async with asyncio.timeout(context.limits.prepare_s):
            command = await with_server_tools(command, context.tools, principal, takes_tools=takes_tools)
            if isinstance(command, cm.TurnCommand):
                _check_sampling(command, context.engine)
                await preparation.filter.format(command.text)
                return await _prepare_turn(input, command, preparation, ledger, context)
            if isinstance(command, Preparable):
                one, prepared = await preparation.one(command)
                return replace(input, command=one, prepared=prepared, findings=tuple(findings))
            if isinstance(command, cm.ReviewAppeal):
                blocked = command.content is not None and await preparation.blocks(command.content)
                return replace(input, blocked=blocked, findings=tuple(findings))
            if (
                isinstance(command, cm.ItemPin)
                and command.pinned
                and await ledger.messages.pinned_too_long(command.item_id)
            ):
                raise BadInput(
                    "too_many_pins", "The pinned messages would take more than a quarter of the context window."
                )
            if isinstance(command, cm.SessionCreate | cm.SessionUpdate):
                await check_knowledge(command.knowledge, context.knowledge, principal)
                memories = await preparation.memories(context.memories, command)
                return replace(
                    input, command=await preparation.about(command), memories=memories, findings=tuple(findings)
                )
            return input
    except SessileError as error:
        return replace(input, refused=error, findings=tuple(findings))
    except TimeoutError:
        refused = Overloaded("overloaded", "Preparing this message took too long.", retry_after_ms=1_000)
        return replace(input, refused=refused, findings=tuple(findings))
    except Exception:  # a filter's or tokenizer's bug refuses this message and spares the session
        log.exception("preparation_failed", command=command.id)
        return replace(input, refused=Internal("internal_error", "Preparing this message failed on our side."))


async def _prepare_turn(
    input: Command, command: cm.TurnCommand, preparation: InputPreparation, ledger: Ledger, context: ActorContext
) -> Command:
    """Prepares a command that may begin an answer. The response's `service` says what is missing in its prompt."""
    replace = msgspec.structs.replace
    missing: dict[str, Json] = {}
    if isinstance(command, cm.TurnCreate):
        memories = await preparation.memories(context.memories, command)
        changed, items = await preparation.turn(command)
        changed = with_listings(changed, tuple(ledger.tools))
        if command.respond:
            items, left_out = await preparation.fit(changed, items, memories)
            if left_out:
                missing[ITEMS_LEFT_OUT] = left_out
        input = replace(input, command=changed, prepared_items=items, memories=memories)
    elif isinstance(command, Preparable):
        one, prepared = await preparation.one(command)
        if isinstance(one, cm.MessageTurn) and prepared.passages:
            prepared = await preparation.fit_message(one, prepared)
        input = replace(input, command=one, prepared=prepared)
    if preparation.knowledge is not None and preparation.knowledge.skipped:
        missing[RETRIEVAL_SKIPPED] = preparation.knowledge.skipped
    service = {**(input.service or {}), **missing} if missing else input.service
    return replace(input, findings=tuple(preparation.filter.findings), service=service)


def _check_sampling(command: cm.TurnCommand, engine: Engine) -> None:
    """Raises BadInput for a field that the engine would ignore. For `turn.create`, which OpenAI's endpoints send,
    ignored fields about thoughts are no error: those endpoints name them in a `Warning` header."""
    sampling, info = cm.sampling_of(command), engine.info
    names = unhonoured_fields(sampling, info.sampling)
    if not isinstance(command, cm.TurnCreate):
        names += unhonoured_thoughts(sampling, info.thoughts)
    if names:
        raise unsupported_field(info.model, names[0])
    if _checks_sampling(engine):
        engine.check_sampling(sampling)


def _checks_sampling(engine: Engine) -> TypeGuard[ChecksSampling]:
    return _has_check(type(engine))


@cache
def _has_check(kind: type[Engine]) -> bool:
    return issubclass(kind, ChecksSampling)  # a protocol's check compares names one by one


class InputPreparation:
    """Filters and tokenises one command's texts. Its methods raise TooLarge `content_too_large`, BadInput
    `content_filter` or `context_length_exceeded`."""

    def __init__(
        self,
        principal: Principal,
        ledger: Ledger,
        filters: FilterSet,
        bytes_max: int,
        filters_s: Histogram,
        knowledge: TurnKnowledge | None = None,
        *,
        sees: bool = False,
    ) -> None:
        """`sees`: whether the model sees images."""
        self._principal = principal
        self._ledger = ledger
        self._sees = sees
        self.filter = PromptFilter(principal, filters, bytes_max, filters_s)
        self.knowledge = knowledge

    @classmethod
    def of(cls, principal: Principal, ledger: Ledger, context: ActorContext) -> InputPreparation:
        """Returns the preparation of a command that may bring a turn."""
        bytes_max, filters_s = context.limits.content_bytes, context.metrics.filter_s.of("input")

        def passage_filter() -> PromptFilter:
            return PromptFilter(principal, context.filters, bytes_max, filters_s)

        window = context.engine.info.context_window
        knowledge = TurnKnowledge(principal, ledger.state, context.knowledge, passage_filter, window)
        images = context.engine.info.images
        return cls(principal, ledger, context.filters, bytes_max, filters_s, knowledge, sees=images)

    async def one(self, command: Preparable) -> tuple[Preparable, Prepared]:
        state = self._ledger.state
        if self.filter.active:
            self.filter.follow(texts_before(state, command))
        if isinstance(command, cm.ToolOutput):
            name = name_of(state, command.call_id, goes_on_from(state, command))
            output = await self.filter.output(command.output, "" if name is not None else command.call_id)
            if output != command.output:
                command = msgspec.structs.replace(command, output=output)
            return command, await self._output(command.call_id, output, name)
        role: Role
        match command:
            case cm.MessageCreate():
                role = command.role
            case cm.MessageEdit():
                role = role_of(state, command.item_id)
            case cm.ResponseSteer():
                role = "user"
        original = _text(command.content)
        text = await self.filter.text(original, by_model=role == "assistant")
        await self.filter.images(command.content)
        if text != original:
            command = msgspec.structs.replace(command, content=cm.filtered_content(command.content, text))
        return command, await self._message(command, role, command.content)

    async def turn(self, command: cm.TurnCreate) -> tuple[cm.TurnCreate, tuple[Prepared | None, ...]]:
        """Filters and tokenises every item of a turn. An answer with calls gets no tokens here (None), because it is
        rendered as a whole when it is needed."""
        command = await self._settings(command)
        if self.filter.active:
            self.filter.follow(self._before(command))
        items: list[cm.NewItem] = []
        prepared: list[Prepared | None] = []
        leaf = goes_on_from(self._ledger.state, command)
        bounded = not command.respond  # else the whole turn is fitted
        names: dict[CallId, str] = {}  # of the tools that are called above an item
        for item, follower in zip_longest(command.items, command.items[1:]):
            tokens: Prepared | None = None
            match item:
                case cm.NewMessage():
                    original = _text(item.content)
                    text = await self.filter.text(original, by_model=item.role == "assistant")
                    await self.filter.images(item.content)
                    if text != original:
                        item = msgspec.structs.replace(item, content=cm.filtered_content(item.content, text))
                    if item.role == "assistant" and not items and not isinstance(follower, cm.NewCall):
                        tokens = await self._ledger.prepare_answer(text, leaf, bounded=bounded)
                    elif follower is None and item.role == "user":
                        tokens = await self._message(command, item.role, item.content, bounded=bounded)
                    elif item.role != "assistant" or not isinstance(follower, cm.NewCall):
                        shown = self._shown(item.role, item.content)
                        tokens = await self._ledger.prepare(shown, bounded=bounded)
                case cm.NewOutput():
                    name = names.get(item.call_id) or name_of(self._ledger.state, item.call_id, leaf)
                    output = await self.filter.output(item.output, "" if name is not None else item.call_id)
                    if output != item.output:
                        item = msgspec.structs.replace(item, output=output)
                    tokens = await self._output(item.call_id, output, name, bounded=bounded)
                case cm.NewCall():
                    item = await self.filter.call(item)
                    names[item.call_id] = item.name
            items.append(item)
            prepared.append(tokens)
        return msgspec.structs.replace(command, items=tuple(items)), tuple(prepared)

    async def fit(
        self, command: cm.TurnCreate, items: tuple[Prepared | None, ...], memories: Sequence[str] = ()
    ) -> tuple[tuple[Prepared | None, ...], int]:
        """Fits a turn into the context window: returns its items, and how many items its prompt leaves out. Passages
        are left out of it if it would be refused for them, or would leave out more of the conversation. Raises BadInput
        `context_length_exceeded`."""
        fit, last = self._ledger.fit_turn, items[-1] if items else None
        if last is None or not last.passages:
            return items, await fit(command, items, memories)
        try:
            left_out: int | None = await fit(command, items, memories)
        except BadInput as error:
            if error.code != "context_length_exceeded":
                raise
            left_out = None
        if left_out == 0:
            return items, 0
        message = command.items[-1]
        assert isinstance(message, cm.NewMessage)
        alone = await self._ledger.prepare(self._shown(message.role, message.content), bounded=False)
        without = (*items[:-1], alone)
        fewest = await fit(command, without, memories)
        if left_out is not None and left_out <= fewest:
            return items, left_out
        assert self.knowledge is not None
        self.knowledge.skipped["passages"] = "too_long"
        return without, fewest

    async def fit_message(self, command: cm.MessageCreate | cm.MessageEdit, prepared: Prepared) -> Prepared:
        """Returns the tokens of a message with passages as `fit` leaves them. A message that does not fit without
        passages either stays as it is: its answer says so."""
        info = self._ledger.state.info
        answer_max = command.max_output_tokens
        if answer_max is None and info is not None and info.max_output_tokens is not UNSET:
            answer_max = info.max_output_tokens
        turn = cm.TurnCreate(
            id=command.id,
            session=command.session,
            items=(cm.NewMessage(content=command.content),),
            parent_id=goes_on_from(self._ledger.state, command),
            max_output_tokens=answer_max,
        )
        try:
            (fitted,), _ = await self.fit(turn, (prepared,))
        except BadInput as error:
            if error.code != "context_length_exceeded":
                raise
            return prepared
        return fitted or prepared

    def _shown(self, role: Role, content: cm.Content, in_front: str = "") -> ChatMessage:
        """Returns a message for its tokenizer, in which images are named, with the text `in_front` before it. Raises
        BadInput if the model sees no images."""
        parts = cm.content_parts(content)
        images = [place for place, part in enumerate(parts) if isinstance(part, InputImage)]
        if not images:
            return ChatMessage(role=role, text=in_front + _text(content))
        if not self._sees:
            raise unseen_image(f"content[{images[0]}].type")
        text = without_names(in_front) + prompt_text(parts, sees=True)
        return ChatMessage(role=role, text=text, names_images=True)

    async def about(self, settings: Named) -> Named:
        return await self.filter.about(settings, self._ledger.tools)

    async def memories(self, read: MemoryReader | None, command: cm.ActorCommand) -> tuple[str, ...]:
        """Returns the sender's memories, filtered, if the command creates a session for them; else none. Memories that
        filters refuse are left out. Raises Unavailable."""
        made = cm.session_settings_of(command)
        if read is None or self._principal.user is None or made is None or self._ledger.begun:
            return ()
        if isinstance(made, cm.SessionSettings) and not made.listed:  # its client keeps the conversation itself
            return ()
        kept = []
        for text in await read(self._principal.tenant, self._principal.user):
            try:
                kept.append(await self.filter.alone(text))
            except BadInput as error:
                if error.code != "content_filter":
                    raise
        return tuple(kept)

    async def blocks(self, text: str) -> bool:
        """Returns whether filters refuse a text, by itself or together with the messages before it. What they found is
        in `filter.findings`."""
        if self.filter.active:
            self.filter.follow(texts_before(self._ledger.state, None))
        try:
            await self.filter.text(text)
        except BadInput as error:
            if error.code != "content_filter":
                raise
            return True
        return False

    async def _settings(self, command: cm.TurnCreate) -> cm.TurnCreate:
        """Returns the turn with its instructions and tools filtered."""
        replace = msgspec.structs.replace
        made = command.create
        if made is not None:
            command = replace(command, create=await self.about(made))
        if isinstance(command.instructions, str):
            command = replace(command, instructions=await self.filter.alone(command.instructions))
        if (
            command.tools is not UNSET
            and command.create is not None
            and made is not None
            and command.tools == made.tools
        ):
            return replace(command, tools=command.create.tools)
        if command.tools is not UNSET:
            command = replace(command, tools=await self.filter.tools(command.tools, self._ledger.tools))
        return command

    def _before(self, command: cm.TurnCreate) -> list[PromptText]:
        texts = texts_before(self._ledger.state, command)
        new = command.instructions
        if new is UNSET and not texts and command.create is not None:
            new = command.create.instructions
        return [PromptText(new, False), *texts] if isinstance(new, str) and not texts else texts

    async def _message(
        self, command: cm.ActorCommand, role: Role, content: cm.Content, *, bounded: bool = True
    ) -> Prepared:
        """Returns the tokens of a filtered message, with the passages that are found for it in front. If it is too long
        for the window with them, it goes without."""
        prepare, shown, knowledge = self._ledger.prepare, self._shown(role, content), self.knowledge
        passages: tuple[InputPassage, ...] = ()
        if knowledge is not None:
            passages = await knowledge.passages(command, role, _words(content))
            self.filter.findings += knowledge.findings
        if knowledge is not None and passages:
            in_front = "".join(passage.text for passage in passages)
            try:
                prepared = await prepare(self._shown(role, content, in_front), bounded=bounded)
                return msgspec.structs.replace(prepared, passages=passages)
            except BadInput as error:
                if error.code != "context_length_exceeded":
                    raise
                knowledge.skipped["passages"] = "too_long"
        return await prepare(shown, bounded=bounded)

    async def _output(self, call_id: CallId, output: str, name: str | None, *, bounded: bool = True) -> Prepared:
        message = ChatMessage(role="tool", text=output, call_id=call_id, name=name)
        return await self._ledger.prepare(message, bounded=bounded)


def _words(content: cm.Content) -> str:
    return "".join(part.text for part in cm.content_parts(content) if isinstance(part, InputText))


def _text(content: cm.Content) -> str:
    return "".join(part.text for part in cm.content_parts(content))
