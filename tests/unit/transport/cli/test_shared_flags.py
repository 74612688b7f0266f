"""Tables stand in columns."""

from __future__ import annotations

from transport.cli.shared_flags import table


def test_columns_stand_under_each_other_without_trailing_blanks() -> None:
    assert table([("A", "LONG", "B"), ("wide", "x", ""), ("", "yy", "z")]).splitlines() == [
        "A     LONG  B",
        "wide  x",
        "      yy    z",
    ]
