"""Frames to bytes and back, in both encodings of the protocol.

A frame is one object or an array of objects; integers stay below 2**53 so that every client can read them.
This module decides only what is well formed; what a frame means is the core's business.
"""

from __future__ import annotations

import json
from typing import Any, Literal, cast

import msgpack

from .errors import WireError

Encoding = Literal["json", "msgpack"]
Frame = dict[str, Any]

INTEGER_MAX = (1 << 53) - 1
SUBPROTOCOLS: dict[str, str] = {"json": "sessile.v1+json", "msgpack": "sessile.v1+msgpack"}
_DEPTH_MAX = 64


def encode(frames: list[Frame], encoding: Encoding) -> str | bytes:
    """One WebSocket message: a text for JSON, bytes for msgpack; a single frame travels bare."""
    body: object = frames[0] if len(frames) == 1 else frames
    check_integers(body)
    try:
        if encoding == "json":
            return json.dumps(body, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return cast(bytes, msgpack.packb(body, use_bin_type=True))
    except (TypeError, ValueError, OverflowError) as exc:
        raise WireError(f"a frame cannot be encoded: {exc}") from exc


def decode(data: str | bytes, encoding: Encoding) -> list[Frame]:
    """The frames of one WebSocket message, in order; WireError where one is malformed."""
    if isinstance(data, str) is not (encoding == "json"):
        raise WireError(f"a {'text' if isinstance(data, str) else 'binary'} message on {encoding}", 1003)
    try:
        body = json.loads(data) if encoding == "json" else msgpack.unpackb(data, raw=False)
    except (ValueError, RecursionError, msgpack.UnpackException) as exc:
        raise WireError(f"a message that is not {encoding}: {exc}", 1007) from exc
    frames = body if isinstance(body, list) else [body]
    for frame in frames:
        if not isinstance(frame, dict) or not isinstance(frame.get("type"), str):
            raise WireError("a frame that is not an object with a type")
    return cast("list[Frame]", frames)


def check_integers(value: object, depth: int = 0) -> None:
    """Refuse what a JavaScript reader would silently change, and nesting that a server would refuse."""
    if depth > _DEPTH_MAX:
        raise WireError(f"nested deeper than {_DEPTH_MAX}")
    if isinstance(value, bool):
        return
    if isinstance(value, int):
        if abs(value) > INTEGER_MAX:
            raise WireError(f"the integer {value} is beyond 2**53 - 1")
    elif isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise WireError(f"a key that is not a string: {key!r}")
            check_integers(inner, depth + 1)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            check_integers(inner, depth + 1)


def integer(frame: Frame, name: str, *, least: int = 0, default: int | None = None) -> int:
    """A field that must be an integer of the protocol, where it is there or has no default."""
    value = frame.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= INTEGER_MAX:
        raise WireError(f"{frame.get('type')}: {name} must be an integer from {least}, got {value!r}")
    return value


def string(frame: Frame, name: str) -> str:
    """A field that must be a string with something in it."""
    value = frame.get(name)
    if not isinstance(value, str) or not value:
        raise WireError(f"{frame.get('type')}: {name} must be a string, got {value!r}")
    return value
