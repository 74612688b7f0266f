"""When a PostgreSQL store counts as restored."""

from __future__ import annotations

import pytest

from persistence.postgres.incarnation import KnownPosition, incarnation_number, was_restored


@pytest.mark.parametrize(
    ("incarnation", "commits", "back"),
    [
        ("2-mine", 10, False),
        ("2-mine", 11, False),  # the last batch got no answer, and stands
        ("2-mine", 9, True),
        ("2-mine", None, True),
        ("1-older", 10, True),  # from before an incident that we know of
        ("2-other", 10, True),  # the same incident, found out twice: two histories
        ("3-newer", None, False),  # somebody else has seen to it
    ],
)
def test_what_proves_that_a_store_went_back(incarnation: str, commits: int | None, back: bool) -> None:
    known = KnownPosition(writer="w", incarnation="2-mine", acknowledged=10)
    found = {"identity": "x", "now": "x", "incarnation": incarnation, "commits": commits}
    assert was_restored(found, known) is back
    assert was_restored({**found, "now": "y"}, known)


def test_a_process_that_knows_nothing_yet_believes_the_store() -> None:
    found = {"identity": "x", "now": "x", "incarnation": "7-other", "commits": None}
    assert not was_restored(found, KnownPosition(writer="w"))
    assert was_restored({**found, "identity": ""}, KnownPosition(writer="w")), "a new store has no identity"


@pytest.mark.parametrize(("incarnation", "number"), [("", 0), ("3-abc", 3), ("12-a-b", 12)])
def test_an_incarnation_begins_with_its_number(incarnation: str, number: int) -> None:
    assert incarnation_number(incarnation) == number
