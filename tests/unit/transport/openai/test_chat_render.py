"""One response's events as the chunks of a chat completion, and as a whole one."""

from __future__ import annotations

from msgspec.structs import replace

from sessions.model import events as ev
from sessions.model.errors import BadInput, Internal, Limited
from tests.support.doors.transport import RESPONSE, begun, message
from transport.openai.chat_render import as_error, error_of


def body(**fields: object) -> ev.ResponseBody:
    created = begun()[0]
    assert isinstance(created, ev.ResponseCreated)
    return replace(created.response, **{"status": "completed", "output": (message("hello"),), **fields})


def completed(of: ev.ResponseBody) -> ev.ResponseCompleted:
    return ev.ResponseCompleted(response_id=RESPONSE, sequence_number=9, response=of)


def test_an_answer_that_failed_is_an_error_and_one_cut_to_length_is_not() -> None:
    failed = body(status="failed", error={"code": "content_filter", "message": "no"})
    assert isinstance(error_of(failed), BadInput)
    assert error_of(body(status="incomplete", incomplete_details={"reason": "max_output_tokens"})) is None
    odd = error_of(body(status="incomplete", incomplete_details={"reason": "session_deleted"}))
    assert odd is not None and odd.code == "session_deleted" and not odd.retryable
    for reason in ("cancelled", "steered", "orphaned"):
        ended = error_of(body(status="incomplete", incomplete_details={"reason": reason}))
        assert ended is not None and ended.code == "response_cancelled" and not ended.retryable
    late = error_of(body(status="incomplete", incomplete_details={"reason": "of_another_version"}))
    assert late is not None and late.retryable
    assert isinstance(as_error("rate_limited", "x"), Limited) and isinstance(as_error("internal_error", "x"), Internal)
