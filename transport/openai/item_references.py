"""Resolves `item_reference`: items of stored answers that a client names instead of sending them again.

An output item's id has its response's in it, so the journal knows where it is, whichever gateway is called. What is
not stored, was erased, or is somebody else's is not found. A history that some session holds already, up to the last
item that it names, goes on there: histories that name their answers cost no more than `previous_response_id`.

A `reasoning` item is a part of its message here, and none of an input: a reference to one adds nothing.

Pure but for `find` and `load`. Input items have no response in their ids: they are found in the session that the
request goes on from, and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple

from sessions.model.errors import BadInput, NotFound, TooLarge
from sessions.model.types import (
    ContentPart,
    FunctionCall,
    FunctionCallOutput,
    InputImage,
    InputPassage,
    Item,
    ItemId,
    Json,
    Message,
    ResponseId,
    SessionId,
    SessionKey,
    words_of,
)
from transport.history_index import compared_arguments
from transport.openai.conversations import branch_items
from transport.openai.request_models import ContentPart as PartParam
from transport.openai.request_models import InputItem

LOOKUPS_MAX: Final = 256  # answers of one request, each in the journal
TEXT_MAX: Final = 4 * 1024 * 1024  # characters of all items that one request names: a body has no more either
_OUTPUT_ID: Final = re.compile(r"^(?:msg|fc|rs)_([a-z0-9]+)_\d{1,6}$")
_REASONING: Final = InputItem(type="reasoning")

State = dict[str, Json]
Find = Callable[[ResponseId], Awaitable[SessionKey]]
Load = Callable[[SessionKey], Awaitable[State]]


class ResolvedInput(NamedTuple):
    """A request's input without references. If `session` is set, everything before `items` is there already, up to
    `leaf`."""

    items: str | Sequence[InputItem] | None
    session: SessionId | None = None
    leaf: ItemId | None = None


def is_reference(item: InputItem) -> bool:
    """Returns whether an input item is a reference. An item without `type` is one if it has an id and no role."""
    return item.type == "item_reference" or (item.type is None and item.id is not None and item.role is None)


def has_references(given: str | Sequence[InputItem] | None) -> bool:
    return isinstance(given, list) and any(map(is_reference, given))


async def resolve_references(
    given: Sequence[InputItem], *, find: Find, load: Load, within: SessionKey | None = None, leaf: ItemId | None = None
) -> ResolvedInput:
    """Returns an input with each `item_reference` replaced by the item that it names.

    `within` and `leaf` are the session and the item that the request continues from: references to items up to there
    are left out. Raises NotFound, BadInput, TooLarge, and what `find` and `load` raise."""
    known, states = _Items(find), _States(load)
    if within is not None:
        state = await states.of(within)
        known.add(state)
        above = {item.id for item in branch_items(state["items"], leaf or state["head"])}
        return ResolvedInput(
            [
                await known.resolved(item, at, states) if is_reference(item) else item
                for at, item in enumerate(given)
                if not (is_reference(item) and stored_id(item) in above)
            ]
        )
    last = max(at for at, item in enumerate(given) if is_reference(item))
    key = await known.place(given[last], last)
    state = await states.of(key)
    known.add(state)
    items = [await known.resolved(item, at, states) if is_reference(item) else item for at, item in enumerate(given)]
    branch = branch_items(state["items"], ItemId(stored_id(given[last])))
    sent = [item for item in items[: last + 1] if item is not _REASONING]
    stored = [as_input(item) for item in branch if not _is_thought(item)]
    if len(sent) == len(stored) and all(map(is_same_input, sent, stored)):
        return ResolvedInput(*_behind_calls(state, key.session, branch[-1].id, items[last + 1 :]))
    return ResolvedInput(items)


def _behind_calls(
    state: State, session: SessionId, leaf: ItemId, rest: Sequence[InputItem]
) -> tuple[Sequence[InputItem], SessionId, ItemId]:
    """Leaves out the calls at the beginning of `rest` that the session has behind `leaf`: clients that name thoughts
    and texts may send the calls behind them."""
    calls = {item.parent_id: item for item in state["items"] if isinstance(item, FunctionCall)}
    at = 0
    while at < len(rest) and (call := calls.get(leaf)) and is_same_input(rest[at], as_input(call)):
        leaf, at = call.id, at + 1
    return rest[at:], session, leaf


class _States:
    def __init__(self, load: Load) -> None:
        self._load = load
        self._loaded: dict[SessionKey, State] = {}

    async def of(self, key: SessionKey) -> State:
        if key not in self._loaded:
            self._loaded[key] = await self._load(key)
        return self._loaded[key]


class _Items:
    """The items, by id, of all session states that were loaded for one request."""

    def __init__(self, find: Find) -> None:
        self._find = find
        self._items: dict[str, Item] = {}
        self._lookups = self._text = 0

    def add(self, state: State) -> None:
        self._items |= {item.id: item for item in state["items"]}

    async def resolved(self, reference: InputItem, at: int, states: _States) -> InputItem:
        name = stored_id(reference)
        if name not in self._items:
            self.add(await states.of(await self.place(reference, at)))
        item = self._items.get(name)
        of_thought = name != reference.id
        if item is None or (of_thought and not (isinstance(item, Message) and item.reasoning)):
            raise _not_found(reference.id or "", at)
        if of_thought:
            return _REASONING
        resolved = as_input(item)
        self._text += sum(len(text) for text in (*_fields(resolved), resolved.arguments) if text is not None)
        if self._text > TEXT_MAX:
            raise TooLarge(
                "too_large",
                f"The items that this request names have more than {TEXT_MAX} characters: use previous_response_id.",
                param=f"input[{at}].id",
            )
        return resolved

    async def place(self, reference: InputItem, at: int) -> SessionKey:
        """Returns the session that holds the output item which `input[at]` names. Raises NotFound, BadInput."""
        name = reference.id or ""
        match = _OUTPUT_ID.match(name)
        if match is None:
            raise _not_found(name, at)
        self._lookups += 1
        if self._lookups > LOOKUPS_MAX:
            message = f"Items of more than {LOOKUPS_MAX} answers are referenced: use previous_response_id."
            raise BadInput("invalid_request", message, param=f"input[{at}].id")
        try:
            return await self._find(ResponseId(f"resp_{match[1]}"))
        except NotFound as error:
            raise _not_found(name, at) from error


def stored_id(reference: InputItem) -> str:
    """Returns the id of the stored item that a reference names; for a `reasoning` item that of its message."""
    name = reference.id or ""
    return name.replace("rs_", "msg_", 1) if name.startswith("rs_") else name


def _is_thought(item: Item) -> bool:
    """Returns whether a stored item is shown as a `reasoning` item alone."""
    return isinstance(item, Message) and bool(item.reasoning) and not item.text


def as_input(item: Item) -> InputItem:
    """Returns a stored item as a client would send it."""
    match item:
        case Message():
            role: Any = "user" if item.role == "tool" else item.role
            if not item.images:
                return InputItem(type="message", role=role, content=item.sent_text)
            content = [_part(part) for part in item.content if not isinstance(part, InputPassage) and words_of(part)]
            return InputItem(type="message", role=role, content=content)
        case FunctionCall():
            return InputItem(type="function_call", call_id=item.call_id, name=item.name, arguments=item.arguments)
        case FunctionCallOutput():
            return InputItem(type="function_call_output", call_id=item.call_id, output=item.output)


def _part(part: ContentPart) -> PartParam:
    if isinstance(part, InputImage):
        return PartParam(type="input_image", image_url=part.image_url, file_id=part.file_id, detail=part.detail)
    return PartParam(type="input_text", text=words_of(part))


def is_same_input(left: InputItem, right: InputItem) -> bool:
    """Returns whether two items are the same to a model. Arguments are read as JSON only if their texts differ: a
    branch may hold megabytes of them."""
    if _fields(left) != _fields(right):
        return False
    if left.arguments is None or right.arguments is None or left.arguments == right.arguments:
        return left.arguments == right.arguments
    return compared_arguments(left.arguments) == compared_arguments(right.arguments)


def _fields(item: InputItem) -> list[str | None]:
    """Returns the fields of an item that a model reads, but for its arguments."""
    texts = [
        text if isinstance(text, str) or text is None else "".join(map(_words, text))
        for text in (item.content, item.output)
    ]
    return [item.type or "message", item.role, item.call_id, item.name, *texts]


def _words(part: PartParam) -> str:
    """Returns what a model reads of a part; of an image, its name."""
    image = part.image_url if isinstance(part.image_url, str) else ""
    return part.text or part.refusal or part.file_id or image


def _not_found(name: str, at: int) -> NotFound:
    message = f"Item with id {name!r} not found. Items are kept for stored responses only; send the item itself."
    return NotFound("item_not_found", message, param=f"input[{at}].id")
