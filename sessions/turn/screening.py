"""Judges whole texts that the server has its model write for itself, titles and summaries, by the output filters."""

from __future__ import annotations

from typing import Final

from sessions.model.types import Principal
from sessions.ports import FilterSet, LateFilter

REDACTIONS_MAX: Final = 16


async def screened(filters: FilterSet, principal: Principal, text: str) -> str:
    """A whole text as the output filters let it through, redacted where they say so; "" for what they withhold."""
    for _ in range(REDACTIONS_MAX):
        for each in filters.output_filters(principal):
            _, verdict = each.feed(text)
            if isinstance(each, LateFilter):
                await each.settle()
            if verdict.action in ("pass", "flag"):
                _, verdict = each.finish()
            if verdict.action == "redact":
                text = text[: verdict.start] + verdict.replacement + text[verdict.end :]
                break
            if verdict.action not in ("pass", "flag"):
                return ""
        else:
            return text
    return ""
