"""Judges whole texts that the server has its model write for itself (titles and summaries) by the output filters."""

from __future__ import annotations

from typing import Final

from sessions.model.types import Principal
from sessions.ports import FilterSet, LateFilter

REDACTIONS_MAX: Final = 16


async def screened(filters: FilterSet, principal: Principal, text: str) -> str:
    """Returns a whole text as the output filters let it through, redacted if they say so; "" if they withhold it."""
    for _ in range(REDACTIONS_MAX):
        for filter_ in filters.output_filters(principal):
            _, verdict = filter_.feed(text)
            if isinstance(filter_, LateFilter):
                await filter_.settle()
            if verdict.action in ("pass", "flag"):
                _, verdict = filter_.finish()
            if verdict.action == "redact":
                text = text[: verdict.start] + verdict.replacement + text[verdict.end :]
                break
            if verdict.action not in ("pass", "flag"):
                return ""
        else:
            return text
    return ""
