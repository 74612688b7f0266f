"""Responses, items and events in the shapes of the Responses API."""

from __future__ import annotations

from msgspec.structs import replace

from sessions.model import events as ev
from sessions.model.types import CallId, FunctionCallOutput, ItemId, Refusal, Sampling, Tool, UnixMs
from tests.support.doors.transport import begun, delta, message
from transport.openai import responses_render
from transport.openai.output_logprobs import OutputLogprobs


def created() -> ev.ResponseCreated:
    event = begun()[0]
    assert isinstance(event, ev.ResponseCreated)
    return event


def test_only_what_is_not_the_default_is_journaled_and_all_of_it_is_shown() -> None:
    asked = responses_render.requested(Sampling(temperature=0.5, top_p=1.0), [Tool(name="f")], user=None)
    assert asked["temperature"] == 0.5 and asked["tools"][0]["parameters"] == {} and "top_p" not in asked
    shown = responses_render.response(replace(created().response, request=asked))
    assert (shown["temperature"], shown["top_p"], shown["store"], shown["created_at"]) == (0.5, 1.0, True, 0)


def test_a_cancelled_response_is_cancelled_and_not_incomplete() -> None:
    body = replace(created().response, status="incomplete", incomplete_details={"reason": "cancelled"})
    assert (
        responses_render.response(body)["status"] == "cancelled"
        and responses_render.response(body)["incomplete_details"] is None
    )


def test_a_response_has_every_field_that_open_responses_demands() -> None:
    """`required` of its ResponseResource; times are integers."""
    shown = responses_render.response(created().response)
    required = (
        "id object created_at completed_at status incomplete_details model previous_response_id instructions output"
        " error tools tool_choice truncation parallel_tool_calls text top_p presence_penalty frequency_penalty"
        " top_logprobs temperature reasoning user usage max_output_tokens max_tool_calls store background service_tier"
        " metadata safety_identifier prompt_cache_key"
    )
    assert set(required.split()) <= shown.keys()
    assert type(shown["created_at"]) is int and shown["completed_at"] is None
    ended = replace(created().response, status="completed")
    assert responses_render.response(ended, ended_at=UnixMs(5999))["completed_at"] == 5
    broken = replace(ended, status="failed")
    assert responses_render.response(broken, ended_at=UnixMs(5999))["completed_at"] is None


def test_the_parameters_of_a_request_are_echoed() -> None:
    given = {"max_tool_calls": 3, "prompt_cache_key": "k", "safety_identifier": "s"}
    asked = responses_render.requested(Sampling(presence_penalty=0.5, frequency_penalty=-1), (), **given)
    shown = responses_render.response(replace(created().response, request=asked))
    assert given.items() <= shown.items()
    assert (shown["presence_penalty"], shown["frequency_penalty"]) == (0.5, -1)


def test_usage_has_the_field_that_clients_expect() -> None:
    usage = {"input_tokens": 1, "input_tokens_details": {"cached_tokens": 1}}
    details = responses_render.response(replace(created().response, usage=usage))["usage"]["input_tokens_details"]
    assert details == {"cache_write_tokens": 0, "cached_tokens": 1}


def test_items_and_parts() -> None:
    assert responses_render.item(message("hi"))["content"][0]["annotations"] == []
    output = FunctionCallOutput(
        id=ItemId("o"),
        parent_id=None,
        call_id=CallId("c"),
        output="2",
        created_at=UnixMs(1),
    )
    assert responses_render.item(output)["type"] == "function_call_output"
    assert responses_render.part(Refusal(refusal="no")) == {"type": "refusal", "refusal": "no"}


def test_events_carry_what_openai_has_in_them() -> None:
    none = OutputLogprobs()
    assert responses_render.event(delta("x", 3), UnixMs(1), none)["logprobs"] == []
    assert responses_render.event(created(), UnixMs(1), none)["response"]["object"] == "response"
    added = begun()[1]
    assert isinstance(added, ev.OutputItemAdded)
    assert responses_render.event(added, UnixMs(1), none)["item"]["content"] == []
