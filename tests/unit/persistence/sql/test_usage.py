"""Usage in SQL: statements that grow with a query, and money in two halves."""

from __future__ import annotations

from persistence.sql.usage import HALF, total_of


def test_halves_of_money_meet_again() -> None:
    total = total_of((-1, "", "", "USD", 2, 1, 2, 3, 4, 5, 6, 7, 18 * HALF, 5))
    assert (total.cost, total.input_tokens, total.withheld_tokens) == (18 * HALF**2 + 5, 1, 7)
