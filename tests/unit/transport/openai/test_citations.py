"""Which numbers in an answer cite a passage."""

from __future__ import annotations

from typing import Any

import pytest

from transport.openai.citations import CITATIONS_MAX, Citations


def passages(file: str, count: int) -> list[dict[str, Any]]:
    place = {"file_id": file, "filename": f"{file}.md", "start": 0, "end": 5}
    return [{**place, "number": number, "start": number} for number in range(1, count + 1)]


@pytest.mark.parametrize(
    ("text", "cited"),
    [
        ("As [1] says.", [(3, 1)]),
        ("Both[1] say so [1][2].", [(4, 1), (15, 1), (18, 2)]),
        ("It fell [2], not [3].", [(8, 2)]),
        ("[a link][1], [1](https://example.com)", []),
        ("[01] and [1000] and [1, 2]", [(0, 1)]),
    ],
)
def test_numbers_of_passages_are_citations(text: str, cited: list[tuple[int, int]]) -> None:
    citations = Citations()
    citations.take_passages(passages("a", 2))
    assert [(each["index"], each["start"]) for each in citations.annotations_of(text)] == cited


def test_a_number_of_different_passages_cites_neither() -> None:
    citations = Citations()
    citations.take_passages(passages("a", 2))
    citations.take_passages(passages("b", 1))
    assert [each["filename"] for each in citations.annotations_of("[1] [2]")] == ["a.md"]


def test_what_another_tool_of_that_name_puts_out_is_no_passage() -> None:
    citations = Citations()
    citations.take_passages([{**passages("a", 1)[0], "number": [1]}, {"number": 1}])
    assert citations.annotations_of("[1]") == []


def test_a_text_has_a_bounded_number_of_annotations() -> None:
    citations = Citations()
    citations.take_passages(passages("a", 1))
    assert len(citations.annotations_of("[1] " * (CITATIONS_MAX + 1))) == CITATIONS_MAX
