"""Prepares a command for the machine: size limits, input filters, tokens.

Everything that a person or a tool sends passes here once, whichever door it came through. A refusal touches neither
the log nor the engine.
"""

from __future__ import annotations

import asyncio
from itertools import zip_longest
from typing import TypeVar

import msgspec
import structlog

from sessions.actor.actor_context import ActorContext
from sessions.machine.inputs_and_effects import Command, Prepared
from sessions.metrics import Histogram
from sessions.model import commands as cm
from sessions.model.errors import BadInput, Internal, Overloaded, SessileError, TooLarge
from sessions.model.types import CallId, InputText, Principal
from sessions.model.verdicts import Finding, quoted
from sessions.ports import ChatMessage, FilterSet
from sessions.turn.ledger import Ledger

log = structlog.get_logger(__name__)

Preparable = cm.MessageCreate | cm.MessageEdit | cm.ToolOutput
Named = TypeVar("Named", cm.SessionCreate, cm.SessionUpdate, cm.SessionSettings)


async def prepare_input(input: Command, *, ledger: Ledger, world: ActorContext) -> Command:
    """The command as it is to be applied, with its tokens, or with what is wrong with it (`refused`): what `prepare`
    raises, and Overloaded when it took too long."""
    command, principal = input.command, input.principal
    replace = msgspec.structs.replace
    preparation = InputPreparation(
        principal, ledger, world.filters, world.limits.content_bytes, world.metrics.filter_s.of("input")
    )
    found = preparation.findings
    try:
        async with asyncio.timeout(world.limits.prepare_s):
            if isinstance(command, cm.TurnCreate):
                changed, items = await preparation.turn(command)
                return replace(input, command=changed, prepared_items=items, findings=tuple(found))
            if isinstance(command, Preparable):
                one, prepared = await preparation.one(command)
                return replace(input, command=one, prepared=prepared, findings=tuple(found))
            if isinstance(command, cm.ReviewAppeal):
                blocked = command.content is not None and await preparation.blocks(command.content)
                return replace(input, blocked=blocked, findings=tuple(found))
            if isinstance(command, cm.SessionCreate | cm.SessionUpdate):
                return replace(input, command=await preparation.about(command), findings=tuple(found))
            return input
    except SessileError as error:
        return replace(input, refused=error, findings=tuple(found))
    except TimeoutError:
        refused = Overloaded("overloaded", "Preparing this message took too long.", retry_after_ms=1_000)
        return replace(input, refused=refused, findings=tuple(found))
    except Exception:  # a filter's or tokenizer's bug refuses this message and spares the session
        log.exception("preparation_failed", command=command.id)
        return replace(input, refused=Internal("internal_error", "Preparing this message failed on our side."))


class InputPreparation:
    """Filters and tokenises one command's texts. Raises TooLarge `content_too_large`, BadInput `content_filter` or
    `context_length_exceeded`."""

    def __init__(
        self, principal: Principal, ledger: Ledger, filters: FilterSet, bytes_max: int, filters_s: Histogram
    ) -> None:
        self._principal = principal
        self._ledger = ledger
        self._filters = filters.input_filters(principal)
        self._bytes_max = bytes_max
        self._filters_s = filters_s
        self.findings: list[Finding] = []

    async def about(self, settings: Named) -> Named:
        """A session's title and instructions: texts like any other."""
        for name in ("title", "instructions"):
            given = getattr(settings, name)
            if isinstance(given, str) and self._filters and (text := await self._filtered(given)) != given:
                settings = msgspec.structs.replace(settings, **{name: text})
        return settings

    async def one(self, command: Preparable) -> tuple[Preparable, Prepared]:
        ledger = self._ledger
        if isinstance(command, cm.ToolOutput):
            output = await self._filtered(command.output)
            if output != command.output:
                command = msgspec.structs.replace(command, output=output)
            name = ledger.name_of(command.call_id, ledger.goes_on_from(command))
            return command, await self._output(command.call_id, output, name)
        role = command.role if isinstance(command, cm.MessageCreate) else ledger.role_of(command.item_id)
        given = _text(command.content)
        text = await self._filtered(given)
        if text != given:
            command = msgspec.structs.replace(command, content=(InputText(text=text),))
        return command, await ledger.prepare(ChatMessage(role=role, text=text))

    async def turn(self, command: cm.TurnCreate) -> tuple[cm.TurnCreate, tuple[Prepared | None, ...]]:
        """Every item of a turn. Answers' text is taken as it is; an answer with calls is rendered as a whole, when
        it is needed (None)."""
        items: list[cm.NewItem] = []
        prepared: list[Prepared | None] = []
        leaf = self._ledger.goes_on_from(command)
        names: dict[CallId, str] = {}  # of the calls above an item
        for item, follower in zip_longest(command.items, command.items[1:]):
            tokens: Prepared | None = None
            match item:
                case cm.NewMessage(role="assistant"):
                    self._within(_text(item.content))
                    if not isinstance(follower, cm.NewCall):
                        tokens = await self._ledger.prepare(ChatMessage(role="assistant", text=_text(item.content)))
                case cm.NewMessage():
                    given = _text(item.content)
                    text = await self._filtered(given)
                    if text != given:
                        item = msgspec.structs.replace(item, content=(InputText(text=text),))
                    tokens = await self._ledger.prepare(ChatMessage(role=item.role, text=text))
                case cm.NewOutput():
                    output = await self._filtered(item.output)
                    if output != item.output:
                        item = msgspec.structs.replace(item, output=output)
                    name = names.get(item.call_id) or self._ledger.name_of(item.call_id, leaf)
                    tokens = await self._output(item.call_id, output, name)
                case cm.NewCall():
                    self._within(item.arguments)
                    names[item.call_id] = item.name
            items.append(item)
            prepared.append(tokens)
        if command.create is not None:
            command = msgspec.structs.replace(command, create=await self.about(command.create))
        if isinstance(command.instructions, str) and self._filters:
            command = msgspec.structs.replace(command, instructions=await self._filtered(command.instructions))
        return msgspec.structs.replace(command, items=tuple(items)), tuple(prepared)

    async def _output(self, call_id: CallId, output: str, name: str | None) -> Prepared:
        return await self._ledger.prepare(ChatMessage(role="tool", text=output, call_id=call_id, name=name))

    def _within(self, text: str) -> str:
        if len(text) > self._bytes_max or len(text.encode("utf-8", "surrogatepass")) > self._bytes_max:
            raise TooLarge("content_too_large", f"A message may take {self._bytes_max} bytes at most.", param="content")
        return text

    async def blocks(self, text: str) -> bool:
        """Whether filters refuse a text; what they find is in `findings`."""
        try:
            await self._filtered(text)
        except BadInput as error:
            if error.code != "content_filter":
                raise
            return True
        return False

    async def _filtered(self, text: str) -> str:
        text = self._within(text)
        if not self._filters:
            return text
        clock = asyncio.get_running_loop().time
        begun_at = clock()
        try:
            for each in self._filters:
                verdict = await each.check(self._principal, text)
                self.findings += quoted(verdict.findings, text)
                if verdict.action == "block":
                    raise BadInput("content_filter", verdict.message or "This message was refused.", param="content")
                if verdict.action == "redact":
                    text = text[: verdict.start] + verdict.replacement + text[verdict.end :]
        finally:
            self._filters_s.observe(clock() - begun_at)
        return text


def _text(content: cm.Content) -> str:
    return "".join(part.text for part in cm.content_parts(content))
