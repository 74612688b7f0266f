"""Findings without their texts, and with what they found."""

from __future__ import annotations

from sessions.model.verdicts import Finding, quoted, without_text

FOUND = Finding(category="pii/email", action="redact", start=4, end=7)


def test_texts_are_left_out_of_logs() -> None:
    kept = Finding(category="c", action="flag", start=0, end=1, kept="k", text="t")
    assert without_text((FOUND, kept)) == (FOUND, Finding(category="c", action="flag", start=0, end=1))
    assert without_text(()) == ()
    assert "t'" not in repr(kept) and FOUND.about == "pii"


def test_a_finding_is_quoted_from_where_the_text_begins() -> None:
    assert [each.text for each in quoted((FOUND,), "0123456789")] == ["456"]
    assert [each.text for each in quoted((FOUND,), "23456789", start=2)] == ["456"]
    assert quoted((FOUND,), "56789", start=5) == (FOUND,), "it began before the text"
    backwards = Finding(category="c", action="flag", start=4, end=2)
    assert quoted((backwards,), "0123456789")[0].text == ""
