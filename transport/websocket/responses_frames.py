"""The frames of OpenAI's Responses over WebSocket: reads a client's, writes the events that HTTP has no word for.

    response.create    a turn: the body of POST /v1/responses, with `generate: false` to prepare only
    response.steer     words for an answer that is being written
    response.cancel    ends it (ours)
    response.retrieve  its events once more, behind `starting_after` (ours)

Pure. A frame that cannot be read is answered with an `error` event and costs nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from sessions.model.errors import BadInput, NotFound, SessileError
from sessions.model.types import INTEGER_MAX, Json
from transport import errors
from transport.websocket.inner_requests import Headers, InnerRequest, SocketTurn

RESPONSES: Final = "/v1/responses"
COMMANDS: Final = ("response.steer", "response.cancel")
TURNS: Final = ("response.create", "response.retrieve")
_RESPONSE_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")
_KEY: Final = re.compile(r"[!-~]{1,255}")
_LEFT_OUT: Final = ("type", "stream", "background", "generate", "idempotency_key")  # not in the body
_encode = msgspec.json.Encoder().encode

T = TypeVar("T")


class ResponsesFrame(msgspec.Struct, frozen=True):
    """A frame of a known type, undecoded: text takes up to 30 times less memory while it waits."""

    type: str
    data: bytes

    @property
    def fields(self) -> dict[str, Any]:
        """The decoded fields. Raises BadInput."""
        return _decoded(self.data, dict[str, Any])


class _Head(msgspec.Struct):
    type: str = ""
    stream_id: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


def read_frame(data: bytes | bytearray) -> ResponsesFrame:
    """Returns a message as a frame, with its type checked. Raises BadInput."""
    head = _decoded(data, _Head)
    if head.type not in (*TURNS, *COMMANDS):
        known = ", ".join((*TURNS, *COMMANDS))
        shown = repr(head.type[:64]) if head.type else "none"
        raise BadInput("unknown_type", f"The type of this message is {shown}; known are: {known}.", param="type")
    if head.stream_id is not msgspec.UNSET:
        raise BadInput(
            "unsupported_parameter",
            "One connection writes one response at a time: leave 'stream_id' out, and open another connection for"
            " what is to run beside it.",
            param="stream_id",
        )
    return ResponsesFrame(head.type, bytes(data))


def _decoded(data: bytes | bytearray, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as exc:
        raise BadInput("invalid_request", "A message is a JSON object with a 'type'.") from exc
    except (RecursionError, ValueError, msgspec.MsgspecError) as exc:
        raise BadInput("invalid_request", "This message is not valid JSON.") from exc


def turn_request(frame: ResponsesFrame) -> InnerRequest:
    """Returns the HTTP request that carries out a turn's frame. Raises BadInput, NotFound."""
    fields = frame.fields
    if frame.type == "response.retrieve":
        _known(fields, "type", "response_id", "starting_after")
        after = fields.get("starting_after")
        if after is not None and (not isinstance(after, int) or not 0 <= after <= INTEGER_MAX or after is True):
            raise BadInput("invalid_request", "'starting_after' is a sequence number.", param="starting_after")
        return retrieve_request(response_id_of(fields, "response_id"), after)
    generate, key = fields.get("generate"), fields.get("idempotency_key")
    if generate is not None and not isinstance(generate, bool):
        raise BadInput("invalid_request", "'generate' is true or false.", param="generate")
    headers: Headers = ()
    if key is not None:
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            raise BadInput(
                "invalid_request", "An 'idempotency_key' is 1 to 255 visible ASCII characters.", param="idempotency_key"
            )
        headers = ((b"idempotency-key", key.encode()),)
    body = {name: value for name, value in fields.items() if name not in _LEFT_OUT}
    return InnerRequest(
        "POST",
        RESPONSES,
        body=_encode({**body, "stream": True}),
        headers=headers,
        turn=SocketTurn(generate=generate is not False),
    )


def retrieve_request(response_id: str, after: int | None = None) -> InnerRequest:
    query = b"stream=true" if after is None else b"stream=true&starting_after=%d" % after
    return InnerRequest("GET", f"{RESPONSES}/{response_id}", query)


def cancel_request(frame: ResponsesFrame, current: str | None) -> InnerRequest:
    """Returns the HTTP request of a cancel; without an id it is for `current`, the response that is being written.
    Raises BadInput, NotFound."""
    fields = frame.fields
    _known(fields, "type", "response_id")
    response_id = current if fields.get("response_id") is None else response_id_of(fields, "response_id")
    if response_id is None:
        raise NotFound("response_not_found", "No response is being written on this connection.", param="response_id")
    return InnerRequest("POST", f"{RESPONSES}/{response_id}/cancel")


def steer_request(frame: ResponsesFrame) -> InnerRequest:
    """Returns the HTTP request of a steer. Raises BadInput, NotFound."""
    fields = frame.fields
    _known(fields, "type", "previous_response_id", "input")
    response_id = response_id_of(fields, "previous_response_id")
    body = _encode({"input": fields.get("input")})
    return InnerRequest("POST", f"{RESPONSES}/{response_id}/steer", body=body)


def response_id_of(fields: Mapping[str, Any], name: str) -> str:
    given = fields.get(name)
    if not isinstance(given, str) or not given:
        raise BadInput("missing_required_parameter", f"Missing required parameter: '{name}'.", param=name)
    if not _RESPONSE_ID.fullmatch(given):
        raise NotFound("response_not_found", f"Response with id {given[:128]!r} not found.", param=name)
    return given


def _known(fields: Mapping[str, Any], *names: str) -> None:
    for name in fields:
        if name not in names:
            raise BadInput("unknown_parameter", f"Unknown parameter: '{name[:64]}'.", param=name[:64])


# -- events -----------------------------------------------------------------------------------------------------------


def error_event(error: Mapping[str, Json], status: int, sequence_number: int = 0) -> dict[str, Json]:
    """Returns an `error` event with the fields of OpenAI's sockets (`status`, `error`) and those of its streams."""
    body = dict(error)
    if body.get("code") == "response_not_found" and body.get("param") == "previous_response_id":
        body["code"], status = "previous_response_not_found", 400
    flat = {name: body.get(name) for name in ("code", "message", "param")}
    return {"type": "error", "status": status, "error": body, **flat, "sequence_number": sequence_number}


def refusal_event(error: SessileError) -> dict[str, Json]:
    return error_event(errors.openai_public(error), errors.row(error.code).http)


def failed_event(status: int, body: bytes) -> dict[str, Json]:
    """Returns the event for a refusal of the HTTP application."""
    try:
        error = msgspec.json.decode(body)["error"]
        return error_event(error, status)
    except (KeyError, TypeError, ValueError, msgspec.MsgspecError):
        return error_event({"type": "server_error", "code": "internal_error", "message": "The server failed."}, status)


def payload_of(chunk: bytes) -> bytes | None:
    """Returns the JSON of a server-sent event; None for a comment or the end."""
    for line in chunk.split(b"\n"):
        if line.startswith(b"data: {"):
            return line[6:]
    return None


def stream_error(payload: bytes) -> bytes:
    """Returns an `error` event of a stream as a socket's."""
    shown = msgspec.json.decode(payload)
    body = {name: value for name, value in shown.items() if name not in ("type", "sequence_number")}
    status = errors.CODES[body["code"]].http if body.get("code") in errors.CODES else 500
    return _encode(error_event(body, status, shown.get("sequence_number", 0)))


def steer_events(answer: bytes, sequence_number: int) -> list[dict[str, Json]]:
    """Returns the answer of `POST /v1/responses/{id}/steer` as events."""
    given = msgspec.json.decode(answer)
    steer = {"id": given["id"], "previous_response_id": given["previous_response_id"]}
    events: list[dict[str, Json]] = [
        {
            "type": "response.steer.accepted",
            "sequence_number": sequence_number,
            "steer": steer,
            "response_id": given["response_id"],
            "status": given["status"],
        }
    ]
    if given["required_input"]:
        events.append(pending_event(steer, given["required_input"], sequence_number + 1))
    return events


def pending_event(steer: Json, required: Sequence[Json], sequence_number: int) -> dict[str, Json]:
    return {
        "type": "response.steer.pending",
        "sequence_number": sequence_number,
        "steer": steer,
        "reason": "waiting_for_required_input",
        "required_input": required,
    }


def required_input(ended: bytes) -> list[Json]:
    """Returns the tool outputs that a response waits for, from its last event."""
    response = msgspec.json.decode(ended)["response"]
    output = response["output"] if response["status"] == "completed" else ()
    calls = [item for item in output if item["type"] == "function_call"]
    return [{"type": "function_call_output", "call_id": call["call_id"], "name": call["name"]} for call in calls]


_STEER_CODES: Final = {
    "previous_response_not_found": "response_not_found",
    "unsupported_parameter": "steering_not_supported",
    "queue_full": "too_many_pending_steers",
}
_STEER_OWN: Final = ("response_not_found", "response_already_completed", "response_not_active")


def steer_failed(frame: ResponsesFrame, error: Mapping[str, Json], sequence_number: int) -> dict[str, Json]:
    """Returns the event for a failed steer. Our error code is replaced by OpenAI's if there is one."""
    code = str(error.get("code"))
    invalid = error.get("type") == "invalid_request_error" and code not in _STEER_OWN
    shown = _STEER_CODES.get(code, "invalid_input" if invalid else code)
    fields = frame.fields
    previous = fields.get("previous_response_id")
    return {
        "type": "response.steer.failed",
        "sequence_number": sequence_number,
        "steer": {
            "previous_response_id": previous if isinstance(previous, str) else "",
            "input": fields.get("input"),
        },
        "error": {"type": "invalid_request_error", "code": shown, "message": error.get("message")},
    }
