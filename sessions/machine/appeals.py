"""Opens review cases of messages, takes appeals, and records what reviewers decided.

The part of the session machine that is about `sessions.model.reviews`. Whether an appeal is allowed is decided here,
since the log records it and each case has only one. Whether filters refuse its text was checked just before
(`sessions.actor.input_pipeline`).
"""

from __future__ import annotations

from sessions.machine.inputs_and_effects import Command
from sessions.machine.responses import response_not_found
from sessions.machine.state import State
from sessions.machine.step_builder import StepBuilder
from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.errors import BadInput, Conflict, Limited
from sessions.model.reviews import APPEALS_MAX, Case, Subject, appealable, case_of, cases_to_open, check_note
from sessions.model.types import CommandId, ItemId, Principal, ResponseId
from sessions.model.verdicts import Finding


def open_message_cases(build: StepBuilder, input: Command, item_id: ItemId | None) -> None:
    """Opens the review cases that findings in a command's texts require. `item_id` is the message's item; None if the
    command was refused, or added no item."""
    if isinstance(input.command, cm.ReviewAppeal) or not any(finding.review for finding in input.findings):
        return
    state = build.state
    message = Subject(
        key=state.key,
        name=f"{input.principal.id}\0{input.command.id}",
        direction="input",
        user=state.user if state.info is not None else input.principal.user,
        offset=state.top,
        now=build.now,
        item_id=item_id,
    )
    build.out.reviews += cases_to_open(input.findings, message)


def appeal(build: StepBuilder, input: Command, command: cm.ReviewAppeal) -> cm.Ok:
    """Opens a review case against the withholding of an answer, or against a message's refusal. Each case has at most
    one appeal. Raises BadInput, Conflict, Limited."""
    state = build.state
    if (command.response_id is None) == (command.content is None):
        raise BadInput("invalid_request", "An appeal names a response, or says what was refused.", param="content")
    check_note(command.note, "note")
    if command.response_id is not None:
        finding = _withheld(state, command.response_id)
    else:
        finding = appealable(input.findings) if input.blocked else None
    if finding is None:
        raise Conflict("not_withheld", "Nothing of this was withheld, so there is nothing to appeal against.")
    subject = Subject(
        key=state.key,
        name=command.response_id or f"{input.principal.id}\0{command.id}",
        direction="output" if command.response_id is not None else "input",
        user=state.user,
        offset=state.top,
        now=build.now,
        response_id=command.response_id,
    )
    case = case_of(finding, subject, appeal=command.note)
    review = state.reviews.get(case.id)
    if review is not None and review.appealed:
        raise Conflict("appealed_already", "There was an appeal in this case; there is one in each.")
    if sum(other.appealed for other in state.reviews.values()) >= APPEALS_MAX:
        raise Limited("quota_exceeded", f"A session has {APPEALS_MAX} appeals at most.", retryable=False)
    build.put(ev.ReviewAppealed(review_id=case.id, category=finding.about, response_id=command.response_id))
    build.out.reviews.append(case)
    return cm.Ok(id=command.id, session=state.key.session, offset=state.top, review_id=case.id)


def _withheld(state: State, response_id: ResponseId) -> Finding | None:
    answer = state.answers.get(response_id)
    if answer is not None:
        return appealable(answer.findings)
    if response_id in state.open:
        raise Conflict("response_in_progress", "Wait until the response has ended.", retryable=True)
    raise response_not_found(response_id)


def record_decision(build: StepBuilder, command: cm.ReviewNotify) -> cm.Ok:
    """Writes a review case's decision into the log. A decision that is sent again is not written again."""
    state = build.state
    review = state.reviews.get(command.review_id)
    known = review is not None and review.decision >= command.decision
    if not known:
        build.put(
            ev.ReviewDecided(
                review_id=command.review_id,
                category=command.category,
                outcome=command.outcome,
                decision=command.decision,
                response_id=command.response_id,
            )
        )
    return cm.Ok(id=command.id, session=state.key.session, offset=state.top, noop=known)


def decision_notice(case: Case) -> tuple[Principal, cm.ReviewNotify]:
    """Returns the command that writes a review case's decision into its session's log, and the principal that sends
    it."""
    assert case.outcome is not None
    command = cm.ReviewNotify(
        id=CommandId(f"{case.id}.{case.decisions}"),
        session=case.key.session,
        review_id=case.id,
        category=case.about,
        outcome=case.outcome,
        decision=case.decisions,
        response_id=case.response_id,
    )
    return Principal(tenant=case.key.tenant, key_id="reviews", role="service", scopes=("chat",)), command
