"""Merged events say exactly what the records said."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sessions.model import events as ev
from sessions.model.types import CallId, FunctionCall, ItemId, UnixMs
from tests.support.doors.transport import ITEM, RESPONSE, delta
from transport.protocol.delta_merge import MERGED_CHARS_MAX, merged


def arguments(text: str, number: int, item: str = ITEM) -> ev.ArgumentsDelta:
    return ev.ArgumentsDelta(
        response_id=RESPONSE, sequence_number=number, item_id=ItemId(item), output_index=0, delta=text
    )


def refusal(text: str, number: int, content_index: int = 0) -> ev.RefusalDelta:
    return ev.RefusalDelta(
        response_id=RESPONSE,
        sequence_number=number,
        item_id=ITEM,
        output_index=0,
        content_index=content_index,
        delta=text,
    )


def records(*events: ev.AnyEvent, start: int = 1) -> list[ev.Record]:
    return [ev.Record(offset, UnixMs(100 + offset), event) for offset, event in enumerate(events, start)]


def test_a_merged_event_is_bounded_and_one_long_delta_passes() -> None:
    spans = list(merged(records(*(delta("x" * 3000, n) for n in range(1, 6)), delta("y" * (MERGED_CHARS_MAX + 1), 6))))
    lengths = [len(span.record.event.delta) for span in spans if isinstance(span.record.event, ev.OutputTextDelta)]
    assert lengths == [6000, 6000, 3000, MERGED_CHARS_MAX + 1]


CALL = FunctionCall(
    id=ItemId("i"),
    parent_id=None,
    call_id=CallId("c"),
    name="f",
    arguments="",
    status="completed",
    created_at=UnixMs(1),
)
EVENTS = st.lists(
    st.one_of(
        st.builds(delta, st.text(max_size=6), st.just(1), st.sampled_from(["a", "b"])),
        st.builds(arguments, st.text(max_size=6), st.just(1)),
        st.builds(refusal, st.text(max_size=6), st.just(1), st.integers(0, 1)),
        st.just(ev.ItemCreated(item=CALL)),
        st.just(ev.SessionMigrated(replica="r", cause="handoff")),
    ),
    max_size=40,
)


@given(EVENTS, st.integers(1, 1000))
def test_every_offset_is_covered_once_and_every_text_is_the_same(events: list[ev.AnyEvent], start: int) -> None:
    spans = list(merged(records(*events, start=start)))
    covered = [n for span in spans for n in range(span.first_offset or span.record.offset, span.record.offset + 1)]
    assert covered == list(range(start, start + len(events)))
    assert texts([span.record.event for span in spans]) == texts(events)


def texts(events: list[ev.AnyEvent]) -> list[str]:
    """The stream as a reader accumulates it: runs of one text laid together."""
    out: list[tuple[object, str]] = []
    for event in events:
        if isinstance(event, ev.OutputTextDelta | ev.RefusalDelta | ev.ArgumentsDelta):
            place = (type(event), event.item_id, getattr(event, "content_index", 0))
            if out and out[-1][0] == place:
                out[-1] = (place, out[-1][1] + event.delta)
            else:
                out.append((place, event.delta))
        else:
            out.append((event, ""))
    return [f"{place}{text}" for place, text in out]
