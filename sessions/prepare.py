"""What happens to a message before the machine sees it: limits, input filters, tokens.

Everything that a person or a tool sends passes here once, whichever door it came through. A refusal touches neither
the log nor the engine.
"""

from __future__ import annotations

import msgspec

from sessions import commands as cm
from sessions.errors import BadInput, TooLarge
from sessions.ledger import Ledger
from sessions.ports import ChatMessage, FilterSet
from sessions.steps import Prepared
from sessions.types import InputText, Principal

Preparable = cm.MessageCreate | cm.MessageEdit | cm.ToolOutput


async def prepare(
    principal: Principal,
    command: Preparable,
    *,
    ledger: Ledger,
    filters: FilterSet,
    content_bytes_max: int,
) -> tuple[Preparable, Prepared]:
    """The command as it is to be applied, with its tokens.

    Raises TooLarge `content_too_large`, BadInput `content_filter` or `context_length_exceeded`.
    """
    if isinstance(command, cm.ToolOutput):
        output = await _filtered(principal, _within(command.output, content_bytes_max), filters)
        if output != command.output:
            command = msgspec.structs.replace(command, output=output)
        message = ChatMessage(role="tool", text=output, call_id=command.call_id, name=ledger.name_of(command.call_id))
        return command, await ledger.prepare(message)
    role = command.role if isinstance(command, cm.MessageCreate) else ledger.role_of(command.item_id)
    given = "".join(part.text for part in cm.content_parts(command.content))
    text = await _filtered(principal, _within(given, content_bytes_max), filters)
    if text != given:
        command = msgspec.structs.replace(command, content=(InputText(text=text),))
    return command, await ledger.prepare(ChatMessage(role=role, text=text))


def _within(text: str, bytes_max: int) -> str:
    if len(text) > bytes_max or len(text.encode("utf-8", "surrogatepass")) > bytes_max:
        raise TooLarge("content_too_large", f"A message may take {bytes_max} bytes at most.", param="content")
    return text


async def _filtered(principal: Principal, text: str, filters: FilterSet) -> str:
    for each in filters.input_filters(principal):
        verdict = await each.check(principal, text)
        if verdict.action == "block":
            raise BadInput("content_filter", verdict.message or "This message was refused.", param="content")
        if verdict.action == "redact":
            text = text[: verdict.start] + verdict.replacement + text[verdict.end :]
    return text
