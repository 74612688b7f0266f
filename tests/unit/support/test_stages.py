"""`make test-all`: which stages run, what their runners say, and the table at the end."""

from __future__ import annotations

import pytest

from tests.stages import STAGES, Result, chosen, count_passed, table


def test_stages_run_in_their_order_alone_or_where_they_failed() -> None:
    assert chosen([], False, {}) == list(STAGES)
    assert chosen(["vllm", "browser"], False, {}) == ["browser", "vllm"]
    last = dict.fromkeys(STAGES, 0) | {"chaos": 1}
    assert chosen([], True, last) == ["chaos"]
    assert chosen([], True, dict.fromkeys(STAGES, 0)) == []
    with pytest.raises(ValueError, match="no stage named browsers; there are: locks"):
        chosen(["browsers"], False, {})


def test_the_table_has_what_the_runners_say() -> None:
    assert count_passed("...\n3 failed, 12 passed in 2.0s\n# tests 4\n# pass 4\n") == 16
    lines = table([Result("browser", 12, 3.25, 0), Result("chaos", 0, 1.0, 2)]).splitlines()
    assert [line.split()[0] for line in lines] == ["stage", "browser", "chaos"]
    assert "green" in lines[1] and "FAILED (2)" in lines[2]
