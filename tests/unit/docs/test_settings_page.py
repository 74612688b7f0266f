"""docs/settings.md says what the program says."""

from __future__ import annotations

from deploy import settings_page
from transport.cli.settings import FIELDS


def test_the_page_is_the_programs() -> None:
    text = settings_page.PAGE.read_text()
    assert text == settings_page.page_text(), "run `python deploy/settings_page.py` and commit docs/settings.md"
    assert all(f"\n| `{name}` |" in text for name in FIELDS)
