"""Frames of a Responses socket: what each asks of the HTTP application, and what its answers become."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from sessions.model.errors import BadInput, SessileError
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
