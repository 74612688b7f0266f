"""Replaying what was later retracted (I3): the event keeps its offset, the span is blotted out.

A `content.retracted` names code points [start, end) of a part as it stood when it was written. Every record before
it that carries some of that text is replayed with those code points replaced, one for one, by `BLOT`. The length
stays, so that the retraction itself, which the reader meets later in the log, still fits, as does all after it.

A title that the server made may quote people and documents: where a client had something deleted or erased behind it,
the whole title is blotted out, whatever it was made of. What a filter takes back is of an answer that no title has
read.

Several retractions of one part: a later one counts in the text that the earlier one left, so a span is
carried back through the retractions between it and the record.

Does not know where retractions come from: the caller gives all that lie after the records to be replayed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from sessions.machine.scrubbing import with_output
from sessions.model import events as ev
from sessions.model.types import (
    ContentPart,
    FunctionCall,
    FunctionCallOutput,
    InputFile,
    InputImage,
    InputPassage,
    InputText,
    Item,
    ItemId,
    Message,
    OutputText,
    Reasoning,
    Refusal,
)

BLOT: Final = "\N{FULL BLOCK}"

Retraction = tuple[int, ev.ContentRetracted]  # with its offset
_BY_CLIENTS: Final = (ev.ERASED, ev.ITEM_DELETED, ev.DOCUMENT_DELETED)
_Part = tuple[ItemId, int]
_Partial = ev.Delta


class OutOfSight(Exception):
    """Raised where reading began in the middle of a part, so that a delta's place in it is unknown: show a snapshot."""


class Scrubber:
    """Replaces the text that `retractions` (in order of offsets) take back in a run of records, passed in order.

    It counts the length of every part that it has seen from its start.
    """

    def __init__(self, retractions: Iterable[Retraction]) -> None:
        self._retractions = list(retractions)
        self.newest = self._retractions[-1][0] if self._retractions else 0
        self._parts: set[_Part] = {(event.item_id, event.content_index) for _, event in self._retractions}
        self._lengths: dict[_Part, int] = {}
        self._taken_back_at = max((at for at, event in self._retractions if event.category in _BY_CLIENTS), default=0)

    def scrub(self, record: ev.Record) -> ev.Record:
        """Returns a record without retracted text. Raises OutOfSight."""
        event = record.event
        match event:
            case ev.OutputTextDelta() | ev.RefusalDelta() | ev.ReasoningDelta() | ev.ArgumentsDelta():
                shown: ev.AnyEvent = self._delta(event, record.offset)
            case ev.ContentRetracted():
                part = (event.item_id, event.content_index)
                if part in self._lengths:
                    self._lengths[part] += len(event.replacement) - (event.end - event.start)
                return record
            case ev.ContentPartAdded():
                self._lengths.setdefault((event.item_id, event.content_index), 0)
                return record
            case ev.SessionUpdated() if record.offset < self._taken_back_at:
                info = event.info
                if info.title is None or info.title_made is not True:
                    return record
                shown = replace(event, info=replace(info, title=BLOT * len(info.title)))
            case ev.ItemCreated():
                shown = replace(event, item=self._item(event.item, record.offset))
            case ev.OutputItemAdded() | ev.OutputItemDone():
                if isinstance(event, ev.OutputItemAdded):
                    self._begin(event.item.id)
                shown = replace(event, item=self._item(event.item, record.offset))
            case ev.OutputTextDone() | ev.ReasoningDone():
                text = self._blot(event.text, (event.item_id, event.content_index), record.offset)
                shown = replace(event, text=text)
            case ev.RefusalDone():
                text = self._blot(event.refusal, (event.item_id, event.content_index), record.offset)
                shown = replace(event, refusal=text)
            case ev.ArgumentsDone():
                shown = replace(event, arguments=self._blot(event.arguments, (event.item_id, 0), record.offset))
            case ev.ContentPartDone():
                shown = replace(
                    event, part=self._content(event.part, (event.item_id, event.content_index), record.offset)
                )
            case ev.ProgramCalled():
                whole = not self._spans((event.item_id, 0), record.offset)
                shown = event if whole else replace(event, arguments=BLOT)
            case ev.ContextCompacted():
                summary = self._item(event.summary, record.offset)
                assert isinstance(summary, Message)
                shown = replace(event, summary=summary)
            case ev.ResponseCreated() | ev.ResponseCompleted() | ev.ResponseIncomplete() | ev.ResponseFailed():
                shown = replace(event, response=self._response(event.response, record.offset))
            case ev.ResponseQueued():
                item = None if event.item is None else self._item(event.item, record.offset)
                shown = replace(event, response=self._response(event.response, record.offset), item=item)
            case _:
                return record
        return record if shown == event else replace(record, event=shown)

    # -- the pieces ---------------------------------------------------------------------------------------------

    def _begin(self, item_id: ItemId) -> None:
        for part in self._parts:
            if part[0] == item_id:
                self._lengths[part] = 0

    def _delta(self, event: _Partial, offset: int) -> _Partial:
        part = (event.item_id, 0 if isinstance(event, ev.ArgumentsDelta) else event.content_index)
        if part not in self._parts:
            return event
        start = self._lengths.get(part)
        if start is None:
            if self._spans(part, offset):
                raise OutOfSight
            return event
        self._lengths[part] = start + len(event.delta)
        text = _blotted(event.delta, self._spans(part, offset), start)
        if text == event.delta:
            return event
        if isinstance(event, ev.OutputTextDelta):
            return replace(event, delta=text, logprobs=())  # they spell the tokens out
        return replace(event, delta=text)

    def _blot(self, text: str, part: _Part, offset: int) -> str:
        return _blotted(text, self._spans(part, offset), 0) if part in self._parts else text

    def _content(self, content: ContentPart, part: _Part, offset: int) -> ContentPart:
        match content:
            case InputText() | InputFile() | InputPassage() | OutputText():
                return replace(content, text=self._blot(content.text, part, offset))
            case InputImage():
                return content if self._blot(content.text, part, offset) == content.text else InputImage()
            case Refusal():
                return replace(content, refusal=self._blot(content.refusal, part, offset))
            case Reasoning():
                return replace(content, reasoning=self._blot(content.reasoning, part, offset))

    def _item(self, item: Item, offset: int) -> Item:
        match item:
            case Message():
                content = tuple(
                    self._content(part, (item.id, index), offset) for index, part in enumerate(item.content)
                )
                return replace(item, content=content)
            case FunctionCall():
                return replace(item, arguments=self._blot(item.arguments, (item.id, 0), offset))
            case FunctionCallOutput():
                return with_output(item, self._blot(item.output, (item.id, 0), offset))

    def _response(self, body: ev.ResponseBody, offset: int) -> ev.ResponseBody:
        return replace(body, output=tuple(self._item(item, offset) for item in body.output))

    def _spans(self, part: _Part, offset: int) -> list[tuple[int, int]]:
        """Returns the spans of a part that later retractions take, in code points of the part as it is at `offset`."""
        later = [
            event for at, event in self._retractions if at > offset and (event.item_id, event.content_index) == part
        ]
        spans = []
        for index, event in enumerate(later):
            start, end = event.start, event.end
            for earlier in reversed(later[:index]):
                start, end = _before(earlier, start, earlier.start), _before(earlier, end, earlier.end)
            spans.append((start, end))
        return spans


def _before(retraction: ev.ContentRetracted, place: int, inside: int) -> int:
    """Returns where a place counted after a retraction was before it; `inside` for places in the replacement."""
    if place <= retraction.start:
        return place
    if place >= retraction.start + len(retraction.replacement):
        return place + (retraction.end - retraction.start) - len(retraction.replacement)
    return inside


def _blotted(text: str, spans: list[tuple[int, int]], start: int) -> str:
    """Returns a text that begins at `start` of its part, with each code point in the spans replaced by `BLOT`."""
    for first, last in spans:
        begin, end = max(first - start, 0), min(last - start, len(text))
        if begin < end:
            text = text[:begin] + BLOT * (end - begin) + text[end:]
    return text
