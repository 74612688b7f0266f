"""Appeals, ratings, summaries and passages: what is written about a conversation, and taken back with it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from sessions.machine import compaction, event_writer, inputs_and_effects, item_tree
from sessions.machine.appeals import decision_notice
from sessions.machine.client_state import client_state
from sessions.machine.feedback import RATERS_MAX
from sessions.machine.state import State, apply, empty
from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.errors import BadInput, Internal, SessileError
from sessions.model.events import DOCUMENT_DELETED, ContentRetracted, FeedbackUpdated
from sessions.model.reviews import APPEALS_MAX, Case, Rating
from sessions.model.types import LOCAL_PRINCIPAL, InputPassage, ItemId, Message, Principal, ResponseId, Usage
from sessions.model.verdicts import Finding
from tests.support.machine.machine_fixture import FINGERPRINT, KEY, SESSION, Ground
from transport.protocol.retraction import BLOT, Scrubber

BLOCKED = Finding(category="weapons/keyword", action="block", start=0, end=5, review=True)


@pytest.fixture
def ground() -> Ground:
    made = Ground()
    made.create()
    return made


def step(ground: Ground, command: cm.ActorCommand, **more: object) -> inputs_and_effects.Step:
    input = inputs_and_effects.Command(LOCAL_PRINCIPAL, command, cm.command_digest(command), **more)  # type: ignore[arg-type]
    return ground.input(input)


def withheld_answer(ground: Ground) -> ResponseId:
    response_id = ground.say().response_id
    assert response_id is not None
    generation, usage = ground.running.pop(response_id), Usage(1, 1)
    ended = inputs_and_effects.GenerationFinished(response_id, generation, "content_filter", usage, findings=(BLOCKED,))
    ground.input(ended)
    return response_id


def appeal(ground: Ground, **about: object) -> cm.ReviewAppeal:
    return cm.ReviewAppeal(id=ground.name(), session=SESSION, note="why", **about)  # type: ignore[arg-type]


def test_a_refused_message_opens_its_case_though_nothing_is_written(ground: Ground) -> None:
    command = cm.MessageCreate(id=ground.name(), session=SESSION, content="a gun")
    refused = BadInput("content_filter", "no")
    made = step(ground, command, refused=refused, findings=(BLOCKED,))
    assert made.records == [] and made.answer is refused
    (case,) = made.reviews
    assert (case.direction, case.cause, case.item_id) == ("input", "policy", None)


def test_a_case_of_a_message_that_went_on_names_its_item(ground: Ground) -> None:
    command = cm.MessageCreate(id=ground.name(), session=SESSION, content="a gun")
    flagged = msgspec.structs.replace(BLOCKED, action="flag")
    made = step(ground, command, findings=(flagged, msgspec.structs.replace(flagged, review=False)))
    assert isinstance(made.answer, cm.Ok)
    assert [case.item_id for case in made.reviews] == [made.answer.item_id]


def test_there_is_one_appeal_in_each_case(ground: Ground) -> None:
    response_id = withheld_answer(ground)
    made = step(ground, appeal(ground, response_id=response_id))
    assert isinstance(made.answer, cm.Ok) and made.answer.review_id == made.reviews[0].id
    assert made.reviews[0].note == "why" and ground.state.reviews[made.reviews[0].id].appealed
    again = step(ground, appeal(ground, response_id=response_id)).answer
    assert isinstance(again, SessileError) and again.code == "appealed_already"


def test_a_note_that_no_store_can_hold_is_refused_before_anything_is_written(ground: Ground) -> None:
    """It ended the session's actor, with every answer that was being written."""
    response_id = withheld_answer(ground)
    command = cm.ReviewAppeal(id=ground.name(), session=SESSION, note="a\0b", response_id=response_id)
    made = step(ground, command)
    assert isinstance(made.answer, BadInput) and made.answer.code == "invalid_text"
    assert made.records == [] and made.reviews == []


@pytest.mark.parametrize(
    ("about", "code"),
    [
        ({}, "invalid_request"),
        ({"response_id": ResponseId("r"), "content": "a gun"}, "invalid_request"),
        ({"response_id": ResponseId("r")}, "response_not_found"),
        ({"content": "a rose"}, "not_withheld"),
    ],
)
def test_appeals_against_nothing(ground: Ground, about: dict[str, object], code: str) -> None:
    answer = step(ground, appeal(ground, **about)).answer
    assert isinstance(answer, SessileError) and answer.code == code


def test_an_appeal_waits_for_the_end_of_the_answer(ground: Ground) -> None:
    response_id = ground.say().response_id
    answer = step(ground, appeal(ground, response_id=response_id)).answer
    assert isinstance(answer, SessileError) and (answer.code, answer.retryable) == ("response_in_progress", True)


def test_a_session_has_a_limit_of_appeals(ground: Ground) -> None:
    for _ in range(APPEALS_MAX):
        answer = step(ground, appeal(ground, content="a gun"), blocked=True, findings=(BLOCKED,)).answer
        assert isinstance(answer, cm.Ok)
    answer = step(ground, appeal(ground, content="a gun"), blocked=True, findings=(BLOCKED,)).answer
    assert isinstance(answer, SessileError) and answer.code == "quota_exceeded"


def test_a_decision_is_written_once(ground: Ground) -> None:
    response_id = withheld_answer(ground)
    (case,) = step(ground, appeal(ground, response_id=response_id)).reviews
    decided: Case = msgspec.structs.replace(case, state="decided", outcome="overturned", decisions=1)
    principal, notice = decision_notice(decided)
    assert not ground.ok(notice, principal).noop
    assert ground.state.reviews[case.id].outcome == "overturned"
    repeat = msgspec.structs.replace(notice, id=ground.name())
    assert ground.ok(repeat, principal).noop


def answered(ground: Ground) -> ResponseId:
    response_id = ground.say().response_id
    assert response_id is not None
    ground.finish(response_id)
    return response_id


def rate(
    ground: Ground, response_id: ResponseId, rating: Rating | None, reason: str = "", by: Principal = LOCAL_PRINCIPAL
) -> inputs_and_effects.Step:
    command = cm.FeedbackSet(id=ground.name(), session=SESSION, response_id=response_id, rating=rating, reason=reason)
    return ground.input(inputs_and_effects.Command(by, command, cm.command_digest(command)))


def shown(ground: Ground) -> list[tuple[str, str, str]]:
    return [(each["by"], each["rating"], each["reason"]) for each in client_state(ground.state).get("feedback", [])]


def test_a_rating_is_changed_and_taken_back(ground: Ground) -> None:
    response_id = answered(ground)
    assert rate(ground, response_id, "up").reviews == []
    assert shown(ground) == [("local", "up", "")]
    (case,) = rate(ground, response_id, "down", "wrong year").reviews
    assert (case.cause, case.action, case.category, case.note) == ("feedback", "flag", "feedback", "wrong year")
    assert (case.response_id, case.appealed_at) == (response_id, None)
    assert shown(ground) == [("local", "down", "wrong year")]
    rate(ground, response_id, None)
    assert shown(ground) == [] and "feedback" not in client_state(ground.state)


def test_the_same_again_writes_nothing_and_opens_nothing(ground: Ground) -> None:
    response_id = answered(ground)
    rate(ground, response_id, "down", "why")
    again = rate(ground, response_id, "down", "why")
    assert again.records == [] and again.reviews == []
    assert isinstance(again.answer, cm.Ok) and again.answer.noop and again.answer.review_id is not None
    assert rate(ground, response_id, "down", "better said").reviews[0].id == again.answer.review_id


def test_each_person_has_one_rating_and_there_are_so_many_persons(ground: Ground) -> None:
    response_id = answered(ground)
    for number in range(RATERS_MAX):
        rate(ground, response_id, "up", by=msgspec.structs.replace(LOCAL_PRINCIPAL, key_id=f"k{number}"))
    assert len(shown(ground)) == RATERS_MAX
    refused = rate(ground, response_id, "up").answer
    assert not isinstance(refused, cm.Ok) and refused is not None and refused.code == "quota_exceeded"
    rate(ground, response_id, "down", by=msgspec.structs.replace(LOCAL_PRINCIPAL, key_id="k0"))
    assert [each for each in shown(ground) if each[1] == "down"] == [("k0", "down", "")]


@pytest.mark.parametrize("reason", ["a\0b", "a\ud800b"])
def test_a_reason_that_no_store_can_hold_is_refused_before_anything_is_written(ground: Ground, reason: str) -> None:
    response_id = answered(ground)
    command = cm.FeedbackSet(id=ground.name(), session=SESSION, response_id=response_id, rating="down", reason=reason)
    made = ground.input(inputs_and_effects.Command(LOCAL_PRINCIPAL, command, b""))
    assert not isinstance(made.answer, cm.Ok) and made.answer is not None and made.answer.code == "invalid_text"
    assert made.records == [] and made.reviews == []


def test_only_an_answer_that_has_ended_is_rated(ground: Ground) -> None:
    response_id = ground.say().response_id
    assert response_id is not None
    for rated, code in ((response_id, "response_in_progress"), (ResponseId("r"), "response_not_found")):
        command = cm.FeedbackSet(id=ground.name(), session=SESSION, response_id=rated, rating="up")
        ground.refused(command, code)
    assert not any(isinstance(record.event, FeedbackUpdated) for record in ground.records)


@pytest.fixture
def long_ground() -> Ground:
    made = Ground()
    made.create()
    for _ in range(3):
        answered_at_length(made)
    return made


def answered_at_length(ground: Ground) -> ResponseId:
    response_id = ground.say().response_id
    assert response_id is not None
    ground.write(response_id, event_writer.Text("an answer"))
    ground.finish(response_id)
    return response_id


def do(ground: Ground, kind: Any, **fields: Any) -> cm.Ok | SessileError:
    command = kind(id=ground.name(), session=SESSION, **fields)
    answer = ground.input(inputs_and_effects.Command(LOCAL_PRINCIPAL, command, cm.command_digest(command))).answer
    assert answer is not None
    return answer


def written(ground: Ground, *, items: int = 2, at: int | None = None, read: ItemId | None = None) -> ItemId | None:
    """Writes a summary; its id, if it came into force."""
    name = ItemId(f"cmp_{ground.state.top}")
    newest = read or ground.state.newest
    assert newest is not None
    ground.input(
        inputs_and_effects.CompactionWritten(
            compaction_id=name,
            at=ground.state.top if at is None else at,
            items=items,
            read=newest,
            text="a secret summary",
            model="m",
            prepared=inputs_and_effects.Prepared(b"", ""),
            tokens_before=100,
            tokens_after=40,
            usage=Usage(100, 10, 90),
            cause="limit",
        )
    )
    return name if name in ground.state.compactions else None


def test_one_that_comes_too_late_is_nothing(long_ground: Ground) -> None:
    top = long_ground.state.top
    first = item_tree.branch(long_ground.state, long_ground.state.newest)[0]
    long_ground.say()
    assert written(long_ground, at=top) is None  # an answer has begun
    long_ground.finish(next(iter(long_ground.state.open)))
    assert written(long_ground, at=top) is not None
    do(long_ground, cm.ItemDelete, item_id=first.id)
    assert written(long_ground, at=top) is None  # it has read what was taken back
    assert written(long_ground, items=99) is None and written(long_ground, items=0) is None


@pytest.mark.parametrize("how", ["item", "answer", "read behind what it stands for", "undone before"])
def test_what_it_has_read_takes_it_back_words_and_all(long_ground: Ground, how: str) -> None:
    name = written(long_ground)
    if how == "undone before":
        do(long_ground, cm.CompactionUndo)
    path = item_tree.branch(long_ground.state, long_ground.state.newest)
    if how == "answer":
        do(long_ground, cm.ResponseErase, response_id=long_ground.state.made_by[path[1].id])
    else:
        do(long_ground, cm.ItemDelete, item_id=path[-1 if how.startswith("read") else 0].id)
    assert not long_ground.state.compactions and name is not None
    taken = [r for r in long_ground.records if isinstance(r.event, ev.ContentRetracted)]
    assert name in [record.event.item_id for record in taken]  # type: ignore[union-attr]
    scrubber = Scrubber([(record.offset, record.event) for record in taken])  # type: ignore[misc]
    shown = [scrubber.scrub(record).event for record in long_ground.records]
    (compacted,) = [event for event in shown if isinstance(event, ev.ContextCompacted)]
    assert set(compacted.summary.text) == {BLOT}
    state: State = empty(KEY, user=None)
    for record in long_ground.records:
        apply(state, record)
    assert state == long_ground.state


def test_undo_names_one_or_means_the_newest_in_force(long_ground: Ground) -> None:
    refused = do(long_ground, cm.CompactionUndo)
    assert isinstance(refused, SessileError) and refused.code == "compaction_not_found"
    name = written(long_ground)
    long_ground.say()
    busy = do(long_ground, cm.CompactionUndo)
    assert isinstance(busy, SessileError) and busy.code == "response_in_progress" and busy.retryable
    long_ground.finish(next(iter(long_ground.state.open)))
    done = do(long_ground, cm.CompactionUndo, compaction_id=name)
    assert isinstance(done, cm.Ok) and done.compaction_id == name and not long_ground.state.compactions


def test_a_request_has_an_effect_and_its_failure_is_in_the_log(long_ground: Ground) -> None:
    command = cm.SessionCompact(id=long_ground.name(), session=SESSION, keep_turns=2)
    step = long_ground.input(inputs_and_effects.Command(LOCAL_PRINCIPAL, command, cm.command_digest(command)))
    assert isinstance(step.answer, cm.Ok) and step.answer.compaction_id is not None
    name = step.answer.compaction_id
    assert step.effects == [inputs_and_effects.Compact(name, LOCAL_PRINCIPAL, 2, None)]
    long_ground.input(inputs_and_effects.CompactionGivenUp(name, Internal("compaction_failed", "Nothing came.")))
    event = long_ground.records[-1].event
    assert event == ev.CompactionFailed(
        compaction_id=name, error={"code": "compaction_failed", "message": "Nothing came."}
    )
    nowhere = do(long_ground, cm.SessionCompact, item_id=ItemId("msg_none"))
    assert isinstance(nowhere, SessileError) and nowhere.code == "item_not_found"


def test_items_are_pinned_and_let_go(long_ground: Ground) -> None:
    item = item_tree.branch(long_ground.state, long_ground.state.newest)[0]
    assert isinstance(do(long_ground, cm.ItemPin, item_id=item.id), cm.Ok)
    again = do(long_ground, cm.ItemPin, item_id=item.id)
    assert isinstance(again, cm.Ok) and again.noop
    assert long_ground.state.pinned == [item.id] == client_state(long_ground.state)["pinned"]
    do(long_ground, cm.ItemPin, item_id=item.id, pinned=False)
    assert long_ground.state.pinned == [] and "pinned" not in client_state(long_ground.state)
    do(long_ground, cm.ItemPin, item_id=item.id)
    do(long_ground, cm.ItemDelete, item_id=item.id)
    assert long_ground.state.pinned == []
    refused = do(long_ground, cm.ItemPin, item_id=item.id)
    assert isinstance(refused, SessileError) and refused.code == "item_not_found"


def test_pins_are_bounded(long_ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "PINNED_MAX", 1)
    first, second, *_ = item_tree.branch(long_ground.state, long_ground.state.newest)
    do(long_ground, cm.ItemPin, item_id=first.id)
    refused = do(long_ground, cm.ItemPin, item_id=second.id)
    assert isinstance(refused, SessileError) and refused.code == "too_many_pins"


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
