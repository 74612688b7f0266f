"""Log probabilities are collected by item, and go with what is taken back."""

from __future__ import annotations

from msgspec.structs import replace

from tests.support.doors.transport import delta, retracted
from transport.openai.output_logprobs import OutputLogprobs

ENTRY = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}


def test_they_are_those_of_all_deltas_of_the_item() -> None:
    collected, event = OutputLogprobs(), replace(delta("a", 3), logprobs=(ENTRY,))
    for each in (event, delta("b", 4), event):
        collected.take(each)
    assert collected.of(event.item_id) == [ENTRY, ENTRY]


def test_a_text_that_was_taken_back_has_none_not_even_later_ones() -> None:
    collected, event = OutputLogprobs(), replace(delta("a", 3), logprobs=(ENTRY,))
    for each in (event, replace(retracted(0, 1), item_id=event.item_id), event):
        collected.take(each)
    assert list(collected.of(event.item_id)) == []
