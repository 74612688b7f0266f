"""The texts of a prompt together with which the input policy judges a new one, and the item below which a command
continues."""

from __future__ import annotations

from typing import Final, NamedTuple

from msgspec import UNSET

from sessions.machine import item_tree
from sessions.machine.server_tools import newest_of
from sessions.machine.state import State
from sessions.model import commands as cm
from sessions.model.memories import with_memories
from sessions.model.types import CallId, FunctionCall, FunctionCallOutput, Item, ItemId, Message, Role

NEIGHBOURS_REACH: Final = 512  # code points of the text before that a new text is judged together with

Continuing = cm.MessageCreate | cm.MessageEdit | cm.ResponseSteer | cm.ToolOutput | cm.TurnCreate
"""Commands whose items will stand below an item that exists."""


class PromptText(NamedTuple):
    """A text of a prompt, and whether the prompt shows it as the model's."""

    text: str
    by_model: bool


def prompt_text(item: Item) -> PromptText:
    """Returns an item's text as it is in prompts, with its author."""
    match item:
        case Message():
            return PromptText(item.text, item.role == "assistant")
        case FunctionCall():
            return PromptText(f"{item.name} {item.arguments}", True)
        case FunctionCallOutput():
            return PromptText(item.output, False)


def role_of(state: State, item_id: ItemId) -> Role:
    """Returns the role of a message, which its edited version keeps; "user" if there is no such message."""
    item = state.items.get(item_id)
    return item.role if isinstance(item, Message) else "user"


def goes_on_from(state: State, command: Continuing) -> ItemId | None:
    """Returns the item below which a command's own items will be; None if there is none."""
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


def texts_before(state: State, command: Continuing | None) -> list[PromptText]:
    """Returns the last texts of the prompt before a command's items, in order: as many as moderation looks at together
    with the command's texts. `command` None means the next message."""
    leaf = state.newest if command is None else goes_on_from(state, command)
    texts = [prompt_text(waiting.item) for waiting in reversed(state.queue) if waiting.item is not None]
    if not isinstance(command, cm.MessageCreate) or command.parent_id is not UNSET:
        texts = []  # only what names no parent may come to stand behind those that wait
    room = {True: NEIGHBOURS_REACH, False: NEIGHBOURS_REACH}  # by author
    for item in item_tree.ancestors(state, leaf):
        texts.append(prompt_text(item))
        room[texts[-1].by_model] -= len(texts[-1].text)
        if max(room.values()) <= 0 or len(texts) >= NEIGHBOURS_REACH:
            break
    else:
        info = state.info
        written = with_memories(info.instructions, info.memories or ()) if info is not None else None
        if written:
            texts.append(PromptText(written, False))
    return texts[::-1]


def name_of(state: State, call_id: CallId, leaf: ItemId | None) -> str | None:
    """Returns the name of the function that a call calls. If several calls have the id, the nearest one on the branch
    ending in `leaf` is meant; None if there is none."""
    for item in item_tree.ancestors(state, leaf):
        if isinstance(item, FunctionCall) and item.call_id == call_id:
            return item.name
    return None
