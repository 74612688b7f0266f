"""Counts, logs and audits what happens in a step. Findings of filters are recorded by place, rule and score, never by
text; findings, deletions and retractions go into the audit log, with the step's own append.

A delta without findings costs two comparisons here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sessions.actor.actor_context import ActorContext
from sessions.machine.inputs_and_effects import (
    Command,
    GenerationFailed,
    GenerationFinished,
    GenerationStopped,
    Input,
    Output,
    Step,
    ToolAnswered,
    ToolProgressed,
    ToolStarting,
)
from sessions.machine.machine import Machine
from sessions.metrics import Metrics
from sessions.model import commands as cm
from sessions.model.audit import Action, Audited
from sessions.model.events import ContentRetracted, SessionDeleted, ToolApprovalDecided, ToolCallStarted
from sessions.model.reviews import Case
from sessions.model.types import Json, Principal, UnixMs
from sessions.model.verdicts import Finding

_WITH_FINDINGS = (
    Command | ToolAnswered | ToolProgressed | Output | GenerationFinished | GenerationFailed | GenerationStopped
)


def observed_step(input: Input, machine: Machine, context: ActorContext, log: Any, now: UnixMs) -> Step:
    """Steps the machine and returns the step, with the audit rows that it causes. Counts and logs findings."""
    if isinstance(input, Command):
        record_findings(input, context.metrics, log)
        step = machine.step(input, now)
        findings = () if isinstance(input.command, cm.ReviewAppeal) else input.findings
        _audit(step, machine, input.principal, findings, now, user=input.principal.user)
        return step
    if type(input) is Output and not input.findings and not input.retracted:
        return machine.step(input, now)
    if isinstance(input, Output | GenerationFinished | GenerationFailed | GenerationStopped) and (
        input.findings or (isinstance(input, Output) and input.retracted)
    ):
        record_findings(input, context.metrics, log)
        open_ = machine.state.open.get(input.response_id)
        step = machine.step(input, now)
        principal = None if open_ is None else open_.principal
        _audit(
            step, machine, None, input.findings, now, user=None if principal is None else principal.user, answer=input
        )
        return step
    if isinstance(input, ToolStarting | ToolAnswered | ToolProgressed):
        findings = () if isinstance(input, ToolStarting) else input.findings
        record_findings(input, context.metrics, log)
        step = machine.step(input, now)
        _audit(step, machine, None, findings, now, user=None)
        return step
    return machine.step(input, now)


def _audit(
    step: Step,
    machine: Machine,
    by: Principal | None,
    findings: tuple[Finding, ...],
    now: UnixMs,
    *,
    user: str | None,
    answer: Output | GenerationFinished | GenerationFailed | GenerationStopped | None = None,
) -> None:
    """Adds audit rows to a step. `by` is who sent the command; None if the step is about `answer`, which an engine
    wrote for `user`."""
    state = machine.state
    about = state.user if state.user is not None else user

    def row(action: Action, response: str = "", found: tuple[Finding, ...] = (), **detail: Json) -> None:
        step.audit.append(
            Audited(
                action=action,
                at=now,
                by=by,
                user=about,
                session=state.key.session,
                response=response,
                detail=detail,
                findings=found,
            )
        )

    if findings and answer is not None:
        row("verdict", answer.response_id, findings, direction="output")
    elif findings:
        outcome = "accepted" if isinstance(step.answer, cm.Ok | None) else getattr(step.answer, "code", "")
        row("verdict", "", findings, direction="input", outcome=outcome)
    for record in step.records:
        match record.event:
            case ContentRetracted() as taken:
                span = {name: getattr(taken, name) for name in ("item_id", "content_index", "start", "end", "category")}
                row("content.retracted", taken.response_id, offset=record.offset, **span)
            case ToolCallStarted() as call:
                row("tool.called", call.response_id, call_id=call.call_id, name=call.name, execution=call.execution_id)
            case ToolApprovalDecided() as decided:
                row("tool.decided", decided.response_id, call_id=decided.call_id, approved=decided.approved)
            case SessionDeleted():
                row("session.deleted", offset=record.offset)


def record_findings(input: Input, metrics: Metrics, log: Any) -> None:
    """Counts and logs the findings in a message, a tool's output or an answer; other inputs have none. `log` is bound
    to the session. Findings of an appeal are skipped, because they were counted when its message was refused."""
    if not isinstance(input, _WITH_FINDINGS) or not input.findings:
        return
    if isinstance(input, Command):
        if isinstance(input.command, cm.ReviewAppeal):
            return
        direction, about = "input", {"principal": input.principal.id, "command": input.command.id}
    elif isinstance(input, ToolAnswered | ToolProgressed):
        direction, about = "input", {"response": str(input.response_id), "call": str(input.call_id)}
    else:
        direction, about = "output", {"response": str(input.response_id)}
    for finding in input.findings:
        metrics.verdicts.add(direction, finding.action, finding.about)
        log.info(
            "filter_matched",
            direction=direction,
            action=finding.action,
            category=finding.category,
            start=finding.start,
            end=finding.end,
            score=finding.score,
            model=finding.model,
            policy=finding.policy,
            **about,
        )


def record_cases(cases: Sequence[Case], metrics: Metrics, log: Any) -> None:
    """Counts and logs review cases that have become durable."""
    for case in cases:
        metrics.reviews_opened.add(case.cause, case.direction, case.action, case.about)
        log.info("review_opened", review=case.id, cause=case.cause, category=case.category, action=case.action)
