"""A replay never shows what was taken back, and ends in the text that everybody sees."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from sessions.machine.state import apply, begin
from sessions.model import events as ev
from sessions.model.journal_types import Head
from sessions.model.types import (
    Epoch,
    InputText,
    ItemId,
    OutputText,
    Refusal,
    UnixMs,
)
from tests.support.doors.transport import (
    ITEM,
    RESPONSE,
    begun,
    created,
    delta,
    function_call,
    function_output,
    key_of,
    message,
    private_of,
    retracted,
)
from transport.protocol.retraction import BLOT, OutOfSight, Scrubber


def log_of(*events: ev.AnyEvent) -> list[ev.Record]:
    return [ev.Record(offset, UnixMs(offset), event, private_of(event)) for offset, event in enumerate(events, 1)]


def replayed(records: list[ev.Record], after: int = 0) -> list[ev.Record]:
    retractions = [(r.offset, r.event) for r in records if isinstance(r.event, ev.ContentRetracted)]
    scrubber = Scrubber(one for one in retractions if one[0] > after)
    return [scrubber.scrub(record) for record in records if record.offset > after]


def deltas(records: list[ev.Record]) -> list[str]:
    return [record.event.delta for record in records if isinstance(record.event, ev.OutputTextDelta)]


@pytest.mark.parametrize("category", [ev.ITEM_DELETED, ev.ERASED, ev.DOCUMENT_DELETED])
def test_a_title_that_the_server_made_is_blotted_out_where_something_was_taken_back_behind_it(category: str) -> None:
    def titled(title: str | None, **made: Any) -> ev.SessionUpdated:
        return ev.SessionUpdated(info=ev.SessionInfo(model="m", title=title, created_at=UnixMs(1), **made))

    taken_back = replace(retracted(0, 4, ""), category=category)
    records = log_of(
        titled("My PIN", title_made=True),
        titled("given by a person"),
        titled("again", title_made=True),
        taken_back,
        titled(None),
        titled("made since", title_made=True),
        replace(taken_back, category="pii"),  # by a filter, of an answer that no title has read
    )
    titles = [record.event.info.title for record in replayed(records) if isinstance(record.event, ev.SessionUpdated)]
    assert titles == [BLOT * 6, "given by a person", BLOT * 5, None, "made since"]


def test_every_event_that_repeats_the_text_is_scrubbed() -> None:
    call = function_call("call", '{"k":"secret"}')
    said = replace(message("", "user"), role="user", content=(InputText(text="ok"), InputText(text="my secret")))
    refused = replace(message("", "no"), content=(Refusal(refusal="not secret"),))
    body = ev.ResponseBody(
        id=RESPONSE,
        created_at=UnixMs(1),
        status="completed",
        model="m",
        parent_id=None,
        output=(message("the secret"), call, refused),
    )
    common: dict[str, Any] = {"response_id": RESPONSE, "output_index": 0}
    records = log_of(
        ev.ItemCreated(item=said),
        ev.ItemCreated(item=function_output("out", "a secret")),
        ev.ResponseQueued(response_id=RESPONSE, sequence_number=0, response=body, item=said),
        *begun(),
        delta("the secret", 3),
        ev.OutputTextDone(sequence_number=4, item_id=ITEM, content_index=0, text="the secret", **common),
        ev.ContentPartDone(
            sequence_number=5, item_id=ITEM, content_index=0, part=OutputText(text="the secret"), **common
        ),
        ev.OutputItemDone(sequence_number=6, item=message("the secret"), **common),
        ev.OutputItemAdded(sequence_number=7, item=call, **common),
        ev.ArgumentsDelta(sequence_number=8, item_id=ItemId("call"), delta='{"k":"secret"}', **common),
        ev.ArgumentsDone(sequence_number=9, item_id=ItemId("call"), name="f", arguments='{"k":"secret"}', **common),
        ev.OutputItemAdded(sequence_number=10, item=refused, **common),
        ev.RefusalDelta(sequence_number=11, item_id=ItemId("no"), content_index=0, delta="not secret", **common),
        ev.RefusalDone(sequence_number=12, item_id=ItemId("no"), content_index=0, refusal="not secret", **common),
        ev.ResponseCompleted(response_id=RESPONSE, sequence_number=13, response=body),
        retracted(4, 10),
        retracted(6, 12, item="call"),
        retracted(4, 10, item="no"),
        retracted(2, 8, item="out"),
        ev.ContentRetracted(
            response_id=RESPONSE, item_id=ItemId("user"), content_index=1, start=3, end=9, replacement="", category="t"
        ),
    )
    shown = replayed(records)
    assert "secret" not in str(shown)
    assert str(shown).count(BLOT * 6) == str(records).count("secret")


def test_a_part_that_began_behind_the_reader_is_out_of_sight() -> None:
    records = log_of(*begun(), delta("se", 3), delta("cret", 4), retracted(0, 6))
    with pytest.raises(OutOfSight):
        replayed(records, after=4)
    records = log_of(*begun(), delta("se", 3), retracted(0, 2), delta("after", 4))
    assert deltas(replayed(records, after=4)) == ["after"], "nothing of it is still to be shown"


HEAD = Head(
    key=key_of("s"), epoch=Epoch("e"), fence=1, incarnation="i", top=0, created_at=UnixMs(1), updated_at=UnixMs(1)
)
WORDS = st.lists(
    st.one_of(
        st.text(alphabet="abcdé日", min_size=0, max_size=8),
        st.tuples(st.floats(0, 1), st.floats(0, 1), st.text(alphabet="#*", max_size=3)),
    ),
    max_size=30,
)


@given(WORDS, st.integers(0, 40))
def test_a_replay_ends_where_the_fold_of_the_log_ends(script: list[object], after: int) -> None:
    """Against the fold that snapshots are made of: whatever was said and taken back, in whatever order."""
    events: list[ev.AnyEvent] = [created(), *begun()]
    text = ""
    for step in script:
        if isinstance(step, str):
            events.append(delta(step, len(events)))
            text += step
        elif isinstance(step, tuple) and text:
            start = int(step[0] * (len(text) - 1))
            end = start + max(1, int(step[1] * (len(text) - start)))
            events.append(retracted(start, end, step[2]))
            text = text[:start] + step[2] + text[end:]
    records = log_of(*events)
    state = begin(HEAD, None)
    for record in records:
        apply(state, record)
    assert "".join(state.open[RESPONSE].drafts[0].text) == text
    # A reader from the start, and one that has the text up to `after` as it was then, end alike or are told.
    for position in (0, min(after, len(records))):
        seen = fold(records[:position])
        try:
            assert fold(replayed(records, position), seen) == text
        except OutOfSight:
            assert position >= 4, "the part began where the reader had been already"


def fold(records: list[ev.Record], text: str = "") -> str:
    for record in records:
        if isinstance(record.event, ev.OutputTextDelta):
            text += record.event.delta
        elif isinstance(record.event, ev.ContentRetracted):
            text = text[: record.event.start] + record.event.replacement + text[record.event.end :]
    return text
