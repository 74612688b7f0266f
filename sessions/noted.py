"""What filters found, for those who run the server: counted, and logged by place, rule and score; never the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sessions.commands import ReviewAppeal
from sessions.measures import Measures
from sessions.reviews import Case
from sessions.steps import Broke, Command, Finished, Input, Left, Output


def note_findings(input: Input, measures: Measures, log: Any) -> None:
    """Of a message that came in or an answer that goes out; other inputs have none. `log` knows the session. What an
    appeal says was counted when it was refused."""
    if not isinstance(input, Command | Output | Finished | Broke | Left) or not input.findings:
        return
    if isinstance(input, Command):
        if isinstance(input.command, ReviewAppeal):
            return
        direction, about = "input", {"principal": input.principal.id, "command": input.command.id}
    else:
        direction, about = "output", {"response": str(input.response_id)}
    for each in input.findings:
        measures.verdicts.add(direction, each.action, each.about)
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


def note_cases(cases: Sequence[Case], measures: Measures, log: Any) -> None:
    """Review cases that have become durable."""
    for case in cases:
        measures.reviews_opened.add(case.cause, case.direction, case.action, case.about)
        log.info("review_opened", review=case.id, cause=case.cause, category=case.category, action=case.action)
