"""Passages in front of messages: which of them the state knows, and taking those of deleted documents back."""

from __future__ import annotations

from typing import Any

from sessions.machine import inputs_and_effects
from sessions.model import commands as cm
from sessions.model.events import DOCUMENT_DELETED, ContentRetracted
from sessions.model.types import LOCAL_PRINCIPAL, InputPassage, ItemId, Message
from tests.support.machine.machine_fixture import FINGERPRINT, SESSION, Ground


def passage(number: int, file_id: str) -> InputPassage:
    about: dict[str, Any] = {"filename": f"{file_id}.md", "start": 0, "end": 4, "score": 1.0}
    return InputPassage(number=number, file_id=file_id, text=f"{file_id}!", **about)


def say(ground: Ground, *passages: InputPassage) -> ItemId:
    """Sends a message for which these passages were found."""
    command = cm.MessageCreate(id=ground.name(), session=SESSION, content="words", respond=False)
    prepared = inputs_and_effects.Prepared(b"\x01\0\0\0", FINGERPRINT, passages)
    digest = cm.command_digest(command)
    step = ground.input(inputs_and_effects.Command(LOCAL_PRINCIPAL, command, digest, prepared))
    assert isinstance(step.answer, cm.Ok) and step.answer.item_id is not None
    return step.answer.item_id


def test_only_passages_of_deleted_documents_are_taken_back() -> None:
    ground = Ground()
    ground.create()
    first = say(ground, passage(1, "a"), passage(2, "b"), passage(3, "a"))
    second = say(ground, passage(1, "b"))
    assert ground.state.quoting == {"a": [first], "b": [first, second]}
    before = len(ground.records)
    ground.input(inputs_and_effects.DocumentsDeleted(("a", "c")))
    events = [record.event for record in ground.records[before:]]
    taken = [event for event in events if isinstance(event, ContentRetracted)]
    assert [(event.item_id, event.content_index, event.category) for event in taken] == [
        (first, 0, DOCUMENT_DELETED),
        (first, 2, DOCUMENT_DELETED),
    ]
    item = ground.state.items[first]
    assert isinstance(item, Message) and item.text == "b!words" and item.words == item.sent_text == "words"
    assert first not in ground.state.item_tokens, "its tokens are made again"
    assert ground.state.quoting == {"b": [first, second]}
    assert ground.folded() == ground.folded(snapshot_at=before) == ground.state


def test_a_deleted_message_has_no_passages_to_take_back() -> None:
    ground = Ground()
    ground.create()
    item = say(ground, passage(1, "a"), passage(2, "b"))
    ground.ok(cm.ItemDelete(id=ground.name(), session=SESSION, item_id=item))
    assert ground.state.quoting == {} and ground.folded() == ground.state
    before = len(ground.records)
    ground.input(inputs_and_effects.DocumentsDeleted(("a",)))
    assert len(ground.records) == before
