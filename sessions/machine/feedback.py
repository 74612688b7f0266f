"""Takes people's ratings of answers, and opens a review case for a bad one.

Everybody has one rating for each answer, which they can change. A person's first thumbs-down opens a case; later ones
change its note until somebody has decided the case.
"""

from __future__ import annotations

from typing import Final

from sessions.machine.responses import response_not_found
from sessions.machine.step_builder import StepBuilder
from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.errors import Conflict, Limited
from sessions.model.reviews import Subject, check_note, feedback_case
from sessions.model.types import Principal

RATERS_MAX: Final = 16  # of one answer


def set_feedback(build: StepBuilder, principal: Principal, command: cm.FeedbackSet) -> cm.Ok:
    """Writes a rating if it differs from the rater's one before. Raises Conflict, NotFound, Limited."""
    state, response_id = build.state, command.response_id
    check_note(command.reason, "reason")
    if response_id in state.open:
        raise Conflict("response_in_progress", "Wait until the response has ended.", retryable=True)
    answer = state.answers.get(response_id)
    if answer is None:
        raise response_not_found(response_id)
    by = principal.user or principal.key_id
    ratings = state.feedback.get(response_id, {})
    before = ratings.get(by)
    if command.rating is None:
        known = before is None
    else:
        known = before is not None and (before.rating, before.reason) == (command.rating, command.reason)
        if before is None and len(ratings) >= RATERS_MAX:
            raise Limited("quota_exceeded", f"A response is rated by {RATERS_MAX} at most.", retryable=False)
    if not known:
        reason = "" if command.rating is None else command.reason
        build.put(ev.FeedbackUpdated(response_id=response_id, by=by, rating=command.rating, reason=reason))
    review_id = None
    if command.rating == "down":
        subject = Subject(
            key=state.key,
            name=f"{response_id}\0{by}",
            direction="output",
            user=state.user,
            offset=state.top,
            now=build.now,
            response_id=response_id,
        )
        case = feedback_case(subject, command.reason, model=answer.model)
        review_id = case.id
        if not known:
            build.out.reviews.append(case)
    return cm.Ok(
        id=command.id,
        session=state.key.session,
        response_id=response_id,
        offset=state.top,
        review_id=review_id,
        noop=known,
    )
