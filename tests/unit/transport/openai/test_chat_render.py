"""One response's events as the chunks of a chat completion, and as a whole one."""

from __future__ import annotations

from msgspec.structs import replace

from sessions.model import events as ev
from sessions.model.errors import BadInput, Internal, Limited
from sessions.model.types import CallId, FunctionCall, ItemId, UnixMs
from tests.support.doors.transport import RESPONSE, begun, delta, message
from transport.openai.chat_render import ChoiceBuilder, as_error, error_of, resendable_answer, usage_of

CALL = FunctionCall(
    id=ItemId("i"),
    parent_id=None,
    call_id=CallId("c"),
    name="add",
    arguments="{}",
    status="completed",
    created_at=UnixMs(1),
)


def body(**fields: object) -> ev.ResponseBody:
    created = begun()[0]
    assert isinstance(created, ev.ResponseCreated)
    return replace(created.response, **{"status": "completed", "output": (message("hello"),), **fields})


def completed(of: ev.ResponseBody) -> ev.ResponseCompleted:
    return ev.ResponseCompleted(response_id=RESPONSE, sequence_number=9, response=of)


def test_text_comes_as_a_role_then_deltas_then_a_reason() -> None:
    choice = ChoiceBuilder(0, RESPONSE, logprobs=False)
    created, *_ = begun()
    assert isinstance(created, ev.ResponseCreated)
    first = choice.take(created)
    assert [entry["delta"] for entry in first] == [{"role": "assistant", "content": "", "refusal": None}]
    assert choice.model == "m", "the role comes as soon as the answer is accepted: proxies cut what is silent"
    assert [entry["delta"] for entry in choice.take(delta("hel", 3))] == [{"content": "hel"}]
    assert [entry["delta"] for entry in choice.take(delta("lo", 4))] == [{"content": "lo"}]
    assert [entry["finish_reason"] for entry in choice.take(completed(body()))] == ["stop"]
    assert choice.whole()["message"]["content"] == "hello"


def test_calls_are_numbered_as_they_come() -> None:
    choice = ChoiceBuilder(0, RESPONSE, logprobs=False)
    added = ev.OutputItemAdded(response_id=RESPONSE, sequence_number=1, output_index=2, item=CALL)
    (_, entry) = choice.take(added)
    assert entry["delta"]["tool_calls"][0]["index"] == 0
    arguments = ev.ArgumentsDelta(response_id=RESPONSE, sequence_number=2, item_id=CALL.id, output_index=2, delta="{}")
    assert choice.take(arguments)[0]["delta"]["tool_calls"][0]["function"] == {"arguments": "{}"}
    choice.take(completed(body(output=(CALL,))))
    assert choice.finish_reason == "tool_calls" and choice.whole()["message"]["content"] is None


def test_log_probabilities_of_what_was_retracted_are_not_shown() -> None:
    choice = ChoiceBuilder(0, RESPONSE, logprobs=True)
    choice.take(replace(delta("x", 3), logprobs=({"token": "x"},)))
    choice.retract()
    choice.take(completed(body()))
    assert choice.whole()["logprobs"] is None


def test_an_answer_that_failed_is_an_error_and_one_cut_to_length_is_not() -> None:
    failed = body(status="failed", error={"code": "content_filter", "message": "no"})
    assert isinstance(error_of(failed), BadInput)
    assert error_of(body(status="incomplete", incomplete_details={"reason": "max_output_tokens"})) is None
    odd = error_of(body(status="incomplete", incomplete_details={"reason": "session_deleted"}))
    assert odd is not None and odd.code == "session_deleted" and not odd.retryable
    for reason in ("cancelled", "steered", "orphaned", "quarantined"):
        ended = error_of(body(status="incomplete", incomplete_details={"reason": reason}))
        assert ended is not None and ended.code == "response_cancelled" and not ended.retryable
    late = error_of(body(status="incomplete", incomplete_details={"reason": "tool_timeout"}))
    assert late is not None and late.retryable
    assert isinstance(as_error("rate_limited", "x"), Limited) and isinstance(as_error("internal_error", "x"), Internal)


def test_what_a_client_resends_and_what_it_used() -> None:
    assert resendable_answer(body(output=())) is None
    found = resendable_answer(body(output=(message("hi"), CALL)))
    assert found is not None and found[0] == CALL.id
    (unit,) = found[1]
    assert len(unit.items) == 2
    usages = [body(usage={"input_tokens": 5, "output_tokens": n}) for n in (1, 2)]
    total = usage_of(usages)
    assert (total["prompt_tokens"], total["completion_tokens"], total["total_tokens"]) == (5, 3, 8)
