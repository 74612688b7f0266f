"""Applies the commands that are about a session as a whole: create, update, delete, and erasing an answer's text.

Functions over a `StepBuilder`. Each checks everything before it writes anything, so a refused command writes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from sessions.machine import compaction
from sessions.machine.inputs_and_effects import Command, Erase, TitleWritten
from sessions.machine.item_tree import busy_conflict
from sessions.machine.responses import end_incomplete, end_queued, response_not_found
from sessions.machine.server_tools import continuations_of, outputs_of
from sessions.machine.step_builder import StepBuilder
from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.errors import BadInput, Conflict, NotFound
from sessions.model.generation import unsupported_tools
from sessions.model.types import (
    FunctionCall,
    FunctionCallOutput,
    InputPassage,
    Item,
    ItemId,
    Message,
    ResponseId,
    Tool,
    derived_session_id,
    is_derived_session_id,
    words_of,
)

# The settings of a session that are absent until they are set.
_SETTINGS: Final = ("temperature", "max_output_tokens", "context_policy", "compact_threshold", "knowledge")


def check_tools(build: StepBuilder, tools: Sequence[Tool] | None | UnsetType) -> None:
    """Raises BadInput for tools if the model cannot call them; else they would be ignored silently."""
    if tools and not build.config.takes_tools:
        raise unsupported_tools(build.config.default_model)


def create_session(build: StepBuilder, input: Command, command: cm.SessionCreate) -> cm.Ok:
    state = build.state
    if state.info is not None:
        raise Conflict("session_exists", f"The session {state.key.session!r} exists already.", param="session")
    check_tools(build, command.tools)
    make_session(build, input, command)
    return cm.Ok(id=command.id, session=state.key.session, offset=state.top)


def make_session(build: StepBuilder, input: Command, settings: cm.SessionCreate | cm.SessionSettings) -> None:
    """Writes the session's first event. Raises BadInput for a session id that is derived from another command."""
    named, principal = build.state.key.session, input.principal
    if is_derived_session_id(named) and named != derived_session_id(principal, input.command.id):
        raise BadInput(
            "invalid_request",
            "Names of `ses_` and 26 letters are given by the server: choose another, or none.",
            param="session",
        )
    build.state.user = principal.user
    build.state.listed = settings.listed if isinstance(settings, cm.SessionSettings) else True
    info = ev.SessionInfo(
        memories=input.memories or UNSET,
        model=(settings.model if not input.alias else "") or build.config.default_model,
        routing=ev.SessionRouting(alias=input.alias) if input.alias else UNSET,
        instructions=settings.instructions,
        tools=settings.tools,
        metadata=settings.metadata,
        title=settings.title,
        created_at=build.now,
        **{name: _unset_if_none(getattr(settings, name, None)) for name in _SETTINGS},
    )
    build.put(ev.SessionCreated(info=info))


def update_session(build: StepBuilder, command: cm.SessionUpdate) -> cm.Ok:
    state = build.state
    assert state.info is not None
    check_tools(build, command.tools)
    changes = {
        name: value
        for name in ("title", "metadata", "instructions", "tools", *_SETTINGS)
        if (value := getattr(command, name)) is not UNSET
    }
    for name, nothing in (("metadata", {}), ("tools", ()), *((option, UNSET) for option in _SETTINGS)):
        if changes.get(name, UNSET) is None:
            changes[name] = nothing
    if "title" in changes:
        changes["title_made"] = UNSET
    build.put(ev.SessionUpdated(info=msgspec.structs.replace(state.info, **changes)))
    return cm.Ok(id=command.id, session=state.key.session, offset=state.top)


def set_title(build: StepBuilder, input: TitleWritten) -> None:
    """Sets a title that the server wrote. Does nothing if the session has one by now, or text was retracted after the
    title was made."""
    state, info = build.state, build.state.info
    if info is not None and info.title is None and not state.deleted and state.retracted_at <= input.at:
        build.put(ev.SessionUpdated(info=msgspec.structs.replace(info, title=input.title, title_made=True)))


def _unset_if_none(value: Any) -> Any:
    return UNSET if value is None else value


def delete_session(build: StepBuilder, command: cm.SessionDelete) -> cm.Ok:
    """Ends every response and deletes the session; `session.deleted` is its last record."""
    state = build.state
    for waiting in list(state.queue):
        end_queued(build, waiting, "session_deleted")
    for open_ in list(state.open.values()):
        end_incomplete(build, open_, "session_deleted", go_on=False)
    build.put(ev.SessionDeleted())
    build.out.effects.append(Erase())
    return cm.Ok(id=command.id, session=state.key.session, offset=state.top)


def erase_response(build: StepBuilder, command: cm.ResponseErase) -> cm.Ok:
    """Retracts all text of an ended answer, and of the responses that continued it after server tools; its items stay
    in the tree, empty. Raises Conflict, NotFound."""
    state, response_id = build.state, command.response_id
    parts = [response_id, *continuations_of(state, response_id)]
    if parts[-1] in state.open:
        raise busy_conflict("response_in_progress")
    waiting = state.awaiting.get(parts[-1])
    if waiting is not None and waiting.server is not None:
        raise busy_conflict("tools_pending")
    if response_id not in state.answers:
        raise response_not_found(response_id)
    for name in parts:
        answer = state.answers[name]
        items = [*answer.items, *outputs_of(state, answer)]
        spans = [span for item_id in items for span in _spans(state.items[item_id])]
        of_none = ItemId(answer.items[0] if answer.items else name)
        _take_back(build, name, spans or [(of_none, 0, 0, "")], ev.ERASED)
    return cm.Ok(id=command.id, response_id=response_id, offset=state.top)


def delete_item(build: StepBuilder, command: cm.ItemDelete) -> cm.Ok:
    """Takes an item out of the tree. Raises NotFound, and Conflict while an answer is under way."""
    state = build.state
    item = state.items.get(command.item_id)
    if item is None:
        raise NotFound("item_not_found", f"There is no item {command.item_id!r} in this session.", param="item_id")
    if state.busy:
        raise busy_conflict("response_in_progress" if state.open or state.queue else "tools_pending")
    made_by = state.made_by.get(item.id, ResponseId(""))
    _take_back(build, made_by, _spans(item) or [(item.id, 0, 0, "")], ev.ITEM_DELETED)
    return cm.Ok(id=command.id, session=state.key.session, offset=state.top)


def take_back_passages(build: StepBuilder, documents: Sequence[str]) -> None:
    """Retracts all passages of documents that were deleted, so that no later prompt has them."""
    state, spans = build.state, list[_Span]()
    for item_id in dict.fromkeys(item_id for file_id in documents for item_id in state.quoting.get(file_id, ())):
        item = state.items.get(item_id)
        for index, part in enumerate(item.content if isinstance(item, Message) else ()):
            if isinstance(part, InputPassage) and part.file_id in documents and part.text:
                spans.append((item_id, index, len(part.text), ""))
    if spans:
        _take_back(build, ResponseId(""), spans, ev.DOCUMENT_DELETED)


_Span = tuple[ItemId, int, int, str]  # item, part, length, what stays


def _spans(item: Item) -> list[_Span]:
    """Returns the spans that cover all text of an item."""
    match item:
        case Message():
            texts = [words_of(part) for part in item.content]
            return [(item.id, index, len(text), "") for index, text in enumerate(texts)]
        case FunctionCall():
            return [(item.id, 0, len(item.arguments), "{}")]  # still JSON, for templates and for clients
        case FunctionCallOutput():
            return [(item.id, 0, len(item.output), "")]


def _take_back(build: StepBuilder, response_id: ResponseId, spans: list[_Span], category: str) -> None:
    """Retracts texts, and the session's title if the server has made it, because it may quote them; the next answer
    brings another title."""
    compaction.void(build, [item_id for item_id, *_ in spans])
    for item_id, index, length, left in spans:
        build.put(
            ev.ContentRetracted(
                response_id=response_id,
                item_id=item_id,
                content_index=index,
                start=0,
                end=length,
                replacement=left,
                category=category,
            )
        )
    info = build.state.info
    if info is not None and info.title_made is True:
        build.put(ev.SessionUpdated(info=msgspec.structs.replace(info, title=None, title_made=UNSET)))
