"""Which numbers in an answer cite a passage, and where it names a file."""

from __future__ import annotations

from typing import Any

import pytest

from sessions.model.types import RunFile
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


@pytest.mark.parametrize(
    ("text", "paths", "named"),
    [
        ("p/x.csv, then q/x.csv.", ["p/x.csv", "q/x.csv"], ["p/x.csv", "q/x.csv"]),
        ("[one](sandbox:/mnt/data/q/x.csv)", ["p/x.csv", "q/x.csv"], ["", "sandbox:/mnt/data/q/x.csv"]),
        ("max.csv, x.csv.gz, p/x.csv and x.csv", ["x.csv", "p/x.csv"], ["x.csv", "p/x.csv"]),
        ("max.csv and x.csv.gz", ["x.csv"], [""]),
        ("See x.csv.", ["plots/x.csv"], ["x.csv"]),
    ],
)
def test_a_file_is_cited_where_its_own_name_stands(text: str, paths: list[str], named: list[str]) -> None:
    citations = Citations()
    citations.take_files("c", [RunFile(file_id=path, path=path, size=1) for path in paths])
    cited: list[Any] = citations.annotations_of(text)
    assert [text[each["start_index"] : each["end_index"]] for each in cited] == named
    assert [each["filename"] for each in cited] == [path.rpartition("/")[2] for path in paths]
    last = [each for each, name in zip(cited, named, strict=True) if name == "x.csv" and "p/x.csv" in paths]
    assert all(each["end_index"] == len(text) for each in last)
