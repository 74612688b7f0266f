"""Responses, items and events in the shapes of the Responses API."""

from __future__ import annotations

from msgspec.structs import replace

from sessions.model import events as ev
from sessions.model.types import UnixMs
from tests.support.doors.transport import begun
from transport.openai import responses_render


def created() -> ev.ResponseCreated:
    event = begun()[0]
    assert isinstance(event, ev.ResponseCreated)
    return event


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
