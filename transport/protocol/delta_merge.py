"""Laying adjacent deltas together for a reader that missed them (docs/protocol.md 3.2).

What is merged: neighbouring records that continue the same text, refusal or arguments of the same item. The merged
event carries the `sequence_number`, the offset and the time of its last part, and `first_offset`. Nothing else is
ever merged, and a merged event is bounded, so that one frame never outgrows a window.

Invariant: the events that come out say exactly what the records say, in order, each offset covered once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from msgspec.structs import replace

from sessions.model.events import AnyEvent, ArgumentsDelta, Delta, OutputTextDelta, ReasoningDelta, Record, RefusalDelta

MERGED_CHARS_MAX: Final = 8192
DELTAS: Final = (OutputTextDelta, RefusalDelta, ReasoningDelta, ArgumentsDelta)
_OF_PARTS: Final = (OutputTextDelta, RefusalDelta, ReasoningDelta)


class Span(NamedTuple):
    """One event to send. It stands for the records from `first_offset` on; for one record if that is None."""

    record: Record
    first_offset: int | None


def merged(records: Iterable[Record]) -> Iterator[Span]:
    """Yields the records as spans, as few as possible. The caller passes only records after the reader's position."""
    run: list[Record] = []
    chars = 0
    for record in records:
        event = record.event
        length = len(event.delta) if isinstance(event, DELTAS) else 0
        if run and not (chars + length <= MERGED_CHARS_MAX and _continues(run[-1].event, event)):
            yield _join(run)
            run, chars = [], 0
        run.append(record)
        chars += length
    if run:
        yield _join(run)


def _continues(last: AnyEvent, event: AnyEvent) -> bool:
    if isinstance(last, _OF_PARTS) and isinstance(event, _OF_PARTS):
        return (
            type(last) is type(event)
            and last.response_id == event.response_id
            and last.item_id == event.item_id
            and last.content_index == event.content_index
        )
    if isinstance(last, ArgumentsDelta) and isinstance(event, ArgumentsDelta):
        return last.response_id == event.response_id and last.item_id == event.item_id
    return False


def _join(run: list[Record]) -> Span:
    last = run[-1]
    if len(run) == 1:
        return Span(last, None)
    event = last.event
    assert isinstance(event, DELTAS)
    text = "".join(part.event.delta for part in run)  # type: ignore[union-attr]
    whole: Delta
    if isinstance(event, OutputTextDelta):
        logprobs = tuple(one for part in run for one in part.event.logprobs)  # type: ignore[union-attr]
        whole = replace(event, delta=text, logprobs=logprobs)
    else:
        whole = replace(event, delta=text)
    return Span(Record(last.offset, last.at, whole), run[0].offset)
