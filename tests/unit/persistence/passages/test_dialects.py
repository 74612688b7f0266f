"""What the databases say differently: vectors as they store them, and filters as conditions with nothing in them."""

from __future__ import annotations

from array import array

import pytest

from persistence.passages.dialects import Dialect, PostgresDialect, SqliteDialect, condition, halved, signs
from persistence.sql.script import Parameters
from sessions.retrieval.filters import parse_filter

VECTOR = array("f", [0.5, -0.25, 0.0, 1.0]).tobytes()


def test_vectors_as_they_are_stored() -> None:
    assert signs(VECTOR) == bytes([0b10010000])
    assert array("H", halved(VECTOR))[0] == 0x3800
    assert PostgresDialect().vector(VECTOR) == "[0.5,-0.25,0,1]"
    assert "BIT[8]" in SqliteDialect().vector_tables(3)[0] and "halfvec(384)" in PostgresDialect().vector_tables(384)[0]
    assert PostgresDialect().vector_tables(8_000) == []


@pytest.mark.parametrize("dialect", [SqliteDialect(), PostgresDialect()])
def test_no_word_of_a_filter_stands_in_its_condition(dialect: Dialect) -> None:
    statement = Parameters()
    inner = [{"type": op, "key": "k'\"", "value": "v'\""} for op in ("eq", "ne", "gt", "lte")]
    numbers = [{"type": "in", "key": "n", "value": [1, 2.5, True]}, {"type": "lt", "key": "n", "value": 3}]
    text = condition(dialect, statement, parse_filter({"type": "or", "filters": [*inner, *numbers]}))
    assert "k'" not in text and "v'" not in text and text.count("EXISTS") == 6 and text.count("NOT EXISTS") == 1
    assert text.count(" OR ") >= 5 and "k'\"" in statement.values
