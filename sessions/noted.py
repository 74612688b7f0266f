"""What filters found, for those who run the server: counted, and logged by place, rule and score; never the text."""

from __future__ import annotations

from typing import Any

from sessions.measures import Measures
from sessions.steps import Command, Finished, Input, Output


def note_findings(input: Input, measures: Measures, log: Any) -> None:
    """Of a message that came in or an answer that goes out; other inputs have none. `log` knows the session."""
    if not isinstance(input, Command | Output | Finished) or not input.findings:
        return
    if isinstance(input, Command):
        direction, about = "input", {"principal": input.principal.id, "command": input.command.id}
    else:
        direction, about = "output", {"response": str(input.response_id)}
    for each in input.findings:
        measures.verdicts.add(direction, each.action, each.category.partition("/")[0])
        log.info(
            "filter_found",
            direction=direction,
            action=each.action,
            category=each.category,
            start=each.start,
            end=each.end,
            score=each.score,
            model=each.model,
            policy=each.policy,
            **about,
        )
