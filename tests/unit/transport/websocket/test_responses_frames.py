"""Frames of a Responses socket: what each asks of the HTTP application, and what its answers become."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from sessions.model.errors import BadInput, Limited, SessileError
from transport.websocket import responses_frames
from transport.websocket.responses_frames import read_frame


def frame(**fields: Any) -> responses_frames.ResponsesFrame:
    return read_frame(json.dumps(fields).encode())


def test_what_waits_takes_no_more_than_its_text() -> None:
    given = read_frame(b'{"type": "response.create", "input": [' + b"[]," * 100_000 + b"[]]}")
    tracemalloc.start()
    kept = read_frame(given.data)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept == given and size < 100_000


@pytest.mark.parametrize(
    "data", [b"[]", b"x", b'{"type": "response.cancel"', b'{"type": 7}', b'{"type": "response.cancel", "a": \xff"}']
)
def test_what_is_no_frame_is_bad_input(data: bytes) -> None:
    with pytest.raises(BadInput):
        read_frame(data)


def test_text_that_is_no_text_is_bad_input_when_its_turn_comes() -> None:
    with pytest.raises(BadInput):
        responses_frames.turn_request(read_frame(b'{"type": "response.create", "input": "\xff"}'))


def test_a_turn_is_the_request_over_http_as_a_stream() -> None:
    given = frame(
        type="response.create",
        input="x",
        store=False,
        stream=False,
        background=True,
        generate=False,
        idempotency_key="k",
    )
    request = responses_frames.turn_request(given)
    assert (request.method, request.path) == ("POST", "/v1/responses")
    assert json.loads(request.body) == {"input": "x", "store": False, "stream": True}
    assert request.headers == ((b"idempotency-key", b"k"),) and not request.turn.generate
    assert responses_frames.turn_request(frame(type="response.create", input="x")).turn.generate


def test_what_was_written_is_read_again() -> None:
    request = responses_frames.turn_request(frame(type="response.retrieve", response_id="resp_1", starting_after=7))
    assert (request.method, request.path, request.query) == (
        "GET",
        "/v1/responses/resp_1",
        b"stream=true&starting_after=7",
    )


def test_cancel_is_of_what_is_written_unless_it_names_another() -> None:
    cancel = responses_frames.cancel_request
    assert cancel(frame(type="response.cancel"), "resp_1").path == "/v1/responses/resp_1/cancel"
    assert cancel(frame(type="response.cancel", response_id="resp_2"), "resp_1").path == "/v1/responses/resp_2/cancel"
    with pytest.raises(SessileError):
        cancel(frame(type="response.cancel"), None)


@pytest.mark.parametrize("name", ["", "a/b", "../x", "é", "x" * 129, 7, None])
def test_a_name_never_leads_elsewhere(name: Any) -> None:
    with pytest.raises(SessileError):
        responses_frames.steer_request(frame(type="response.steer", previous_response_id=name, input="x"))
    with pytest.raises(SessileError):
        responses_frames.turn_request(frame(type="response.retrieve", response_id=name))


def test_commands_take_no_more_than_they_know() -> None:
    for given in (
        frame(type="response.steer", previous_response_id="r", input="x", temperature=1),
        frame(type="response.cancel", stream=True),
    ):
        with pytest.raises(BadInput) as refused:
            if given.type == "response.steer":
                responses_frames.steer_request(given)
            else:
                responses_frames.cancel_request(given, "r")
        assert refused.value.code == "unknown_parameter"


def test_an_error_has_openais_code_where_a_chain_breaks() -> None:
    error = {
        "type": "invalid_request_error",
        "code": "response_not_found",
        "message": "m",
        "param": "previous_response_id",
    }
    event = responses_frames.failed_event(404, json.dumps({"error": error}).encode())
    assert (event["status"], event["error"]["code"], event["code"]) == (400, *["previous_response_not_found"] * 2)
    other = responses_frames.failed_event(404, json.dumps({"error": {**error, "param": "response_id"}}).encode())
    assert (other["status"], other["code"]) == (404, "response_not_found")


@pytest.mark.parametrize("body", [b"", b"no json", b"[]", b'{"error": 1}'])
def test_an_answer_that_is_none_is_an_error_all_the_same(body: bytes) -> None:
    assert responses_frames.failed_event(500, body)["error"]["code"] == "internal_error"


def test_an_error_inside_a_stream_gets_a_status() -> None:
    shown = b'{"type":"error","code":"unauthorized","message":"m","param":null,"sequence_number":4}'
    event = json.loads(responses_frames.stream_error(shown))
    assert (event["status"], event["error"]["code"], event["sequence_number"]) == (401, "unauthorized", 4)


def test_only_data_leaves_a_chunk() -> None:
    assert responses_frames.payload_of(b'id: 3\nevent: x\ndata: {"a": 1}\n\n') == b'{"a": 1}'
    assert responses_frames.payload_of(b": still here\n\n") is None
    assert responses_frames.payload_of(b"data: [DONE]\n\n") is None


def test_steering_that_fails_brings_its_words_back() -> None:
    given = frame(type="response.steer", previous_response_id="resp_1", input="x")
    error = Limited("queue_full", "m").public()
    failed = responses_frames.steer_failed(given, error, 3)
    assert failed["steer"] == {"previous_response_id": "resp_1", "input": "x"}
    assert failed["error"]["code"] == "too_many_pending_steers"
    gone = {"type": "invalid_request_error", "code": "previous_response_not_found", "message": "m"}
    assert responses_frames.steer_failed(given, gone, 3)["error"]["code"] == "response_not_found"
    wrong = {"type": "invalid_request_error", "code": "unknown_parameter", "message": "m"}
    assert responses_frames.steer_failed(given, wrong, 3)["error"]["code"] == "invalid_input"


def test_what_waits_for_outputs_names_them() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    response = {"status": "completed", "output": [{"type": "message"}, call]}
    assert responses_frames.required_input(json.dumps({"response": response}).encode()) == [
        {"type": "function_call_output", "call_id": "c", "name": "look"}
    ]
    cut = {**response, "status": "incomplete"}
    assert responses_frames.required_input(json.dumps({"response": cut}).encode()) == []
