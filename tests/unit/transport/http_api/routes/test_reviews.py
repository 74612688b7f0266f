"""`/v1/reviews`: who sees which cases, and what is shown of one."""

from __future__ import annotations

import pytest

from sessions.model.errors import BadInput
from transport.http_api.routes.reviews import parse_place


def test_places_are_read_as_they_are_written() -> None:
    assert parse_place("12.rev_a") == (12, "rev_a")
    for wrong in ("", "12", ".a", "x.a", "٣.a", "1" * 17 + ".a"):
        with pytest.raises(BadInput):
            parse_place(wrong)
