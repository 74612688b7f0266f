"""What the session machine does about review cases: opens those of messages, takes appeals, tells outcomes.

The part of `sessions.machine.machine` that is about `sessions.model.reviews`. An appeal is decided here, so that it can
be made once: the log remembers it. Whether a message is one that filters refuse was asked of them just before
(`sessions.actor.input_pipeline`).
"""

from __future__ import annotations

from sessions.machine.inputs_effects import Command
from sessions.machine.responses import Responses
from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.errors import BadInput, Conflict, Limited, NotFound
from sessions.model.reviews import APPEALS_MAX, Case, Subject, appealable, case_of, cases_to_open
from sessions.model.types import CommandId, ItemId, Principal, ResponseId
from sessions.model.verdicts import Finding


class Appeals(Responses):
    """Reviews of one session."""

    def _review_message(self, input: Command, item_id: ItemId | None) -> None:
        """Opens the cases that findings of a command's texts ask for. `item_id` None: it was refused, or made none."""
        if isinstance(input.command, cm.ReviewAppeal) or not any(each.review for each in input.findings):
            return
        state = self.state
        message = Subject(
            key=state.key,
            name=f"{input.principal.id}\0{input.command.id}",
            direction="input",
            user=state.user if state.info is not None else input.principal.user,
            offset=state.top,
            now=self._now,
            item_id=item_id,
        )
        self._out.reviews += cases_to_open(input.findings, message)

    def _appeal(self, command: cm.ReviewAppeal, input: Command) -> cm.Ok:
        state = self.state
        if (command.response_id is None) == (command.content is None):
            raise BadInput("invalid_request", "An appeal names a response, or says what was refused.", param="content")
        finding = self._withheld(command.response_id) if command.response_id is not None else _refused(input)
        if finding is None:
            raise Conflict("not_withheld", "Nothing of this was withheld, so there is nothing to appeal against.")
        case = self._appealed(command, input, finding)
        review = state.reviews.get(case.id)
        if review is not None and review.appealed:
            raise Conflict("appealed_already", "There was an appeal in this case; there is one in each.")
        if sum(each.appealed for each in state.reviews.values()) >= APPEALS_MAX:
            raise Limited("quota_exceeded", f"A session has {APPEALS_MAX} appeals at most.", retryable=False)
        self._put(ev.ReviewAppealed(review_id=case.id, category=finding.about, response_id=command.response_id))
        self._out.reviews.append(case)
        return cm.Ok(id=command.id, session=state.key.session, offset=state.top, review_id=case.id)

    def _withheld(self, response_id: ResponseId) -> Finding | None:
        answer = self.state.answers.get(response_id)
        if answer is not None:
            return appealable(answer.findings)
        if response_id in self.state.open:
            raise Conflict("response_in_progress", "Wait until the response has ended.", retryable=True)
        raise NotFound("response_not_found", f"There is no response {response_id!r} here.", param="response_id")

    def _appealed(self, command: cm.ReviewAppeal, input: Command, finding: Finding) -> Case:
        text = Subject(
            key=self.state.key,
            name=command.response_id or f"{input.principal.id}\0{command.id}",
            direction="output" if command.response_id is not None else "input",
            user=self.state.user,
            offset=self.state.top,
            now=self._now,
            response_id=command.response_id,
        )
        return case_of(finding, text, appeal=command.note)

    def _record_decision(self, command: cm.ReviewNotify) -> cm.Ok:
        """Told once, however often it is asked for."""
        state = self.state
        review = state.reviews.get(command.review_id)
        known = review is not None and review.decision >= command.decision
        if not known:
            self._put(
                ev.ReviewDecided(
                    review_id=command.review_id,
                    category=command.category,
                    outcome=command.outcome,
                    decision=command.decision,
                    response_id=command.response_id,
                )
            )
        return cm.Ok(id=command.id, session=state.key.session, offset=state.top, noop=known)


def _refused(input: Command) -> Finding | None:
    return appealable(input.findings) if input.blocked else None


def decision_notice(case: Case) -> tuple[Principal, cm.ReviewNotify]:
    """The command that has a session's log say what was decided, and who gives it."""
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
