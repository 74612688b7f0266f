"""Decodes the bytes of one message into typed client frames, or reports what is wrong with them.

Two kinds of wrong. `BadFrame` means that nothing after it can be trusted: not the encoding, no object, nested too
deep, too many in one array; the connection is closed with its code. `RefusedFrame` is one frame that is well formed and
not acceptable: it is answered, with the frame's `id` where one could be read, and the connection goes on.

Unknown fields are ignored, integers beyond 2**53 - 1 and values that JSON cannot say are refused.
"""

from __future__ import annotations

import math
import re
from itertools import chain
from typing import Any, Final, TypeAlias, get_args

import msgspec

from sessions.model.commands import ClientCommand
from sessions.model.errors import BadInput
from sessions.model.types import INTEGER_MAX
from transport import errors
from transport.protocol.frames import JSON, Ack, ClientFrame, Encoding, Hello, Ping, Pong, Query, Subscribe, Unsubscribe

DEPTH_MAX: Final = 64
FRAMES_MAX: Final = 256
VALUES_MAX: Final = 32_768  # in one message, in equal shares: looking at more would hold up everybody else
ID_LENGTH_MAX: Final = 64
NAME_LENGTH_MAX: Final = 64  # of a key in an error

_TYPES: Final[dict[str, type[msgspec.Struct]]] = {
    str(cls.__struct_config__.tag): cls
    for cls in (Hello, Subscribe, Unsubscribe, Ack, Ping, Pong, *get_args(Query), *get_args(ClientCommand))
}
_AT: Final = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<path>.*)`)?$", re.DOTALL)
_WORDS: Final = {
    "id": "1 to 64 printable ASCII characters without spaces",
    "session": "1 to 64 of A-Z, a-z, 0-9, _ and -",
    "after": "1 to 64 of A-Z, a-z, 0-9, _ and -",
}
_TEXT: Final = frozenset({str})
_CONTAINERS: Final[frozenset[type]] = frozenset({dict, list})
_KINDS: Final[frozenset[type]] = _CONTAINERS | {str, bool, type(None), int, float}
_FIELD: Final = re.compile(r"required field `(?P<name>\w+)`")


_Path: TypeAlias = "tuple[_Path, object] | None"
"""The path of a value in a frame: its container's path, and its name there. Made into text only for errors."""


class BadFrame(Exception):
    """Raised for a message after which the connection must close, with code `close`; `reason` is for the client."""

    def __init__(self, reason: str, close: int = errors.BAD_FRAME) -> None:
        super().__init__(reason)
        self.reason = reason
        self.close = close


class RefusedFrame(msgspec.Struct, frozen=True):
    """A well-formed frame that is not acceptable: it is answered with `error`, and the connection continues."""

    error: BadInput
    id: str | None


def decode(data: bytes | bytearray, encoding: Encoding) -> list[ClientFrame | RefusedFrame]:
    """Returns the frames of one message in order; unacceptable ones as `RefusedFrame`. Raises BadFrame."""
    if encoding is JSON:
        # msgspec looks at the inside of strings only; RFC 6455 wants all of a text message to be UTF-8.
        try:
            data.decode()
        except UnicodeDecodeError as exc:
            raise BadFrame("text that is not UTF-8", errors.INVALID_DATA) from exc
    try:
        body = encoding.decode(data)
    except RecursionError as exc:
        raise BadFrame(f"nested deeper than {DEPTH_MAX}") from exc
    except (ValueError, TypeError, msgspec.MsgspecError) as exc:
        raise BadFrame(f"not {encoding.name}: {exc}") from exc
    frames = body if isinstance(body, list) else [body]
    if len(frames) > FRAMES_MAX:
        raise BadFrame(f"more than {FRAMES_MAX} frames in one message")
    values_max = VALUES_MAX // max(1, len(frames))
    return [_read(frame, values_max) for frame in frames]


class _Credential(msgspec.Struct):
    auth: str | None = None


def hello_credential(data: bytes | bytearray, encoding: Encoding) -> str | None:
    """Returns the `auth` of a message that should begin with hello, decoding nothing else of it; None if there is none.
    For connections whose handshake had no credential."""
    try:
        decode_as = msgspec.msgpack.decode if encoding.binary else msgspec.json.decode
        given = decode_as(data, type=_Credential | list[msgspec.Raw])
        if isinstance(given, list):
            given = decode_as(given[0], type=_Credential) if given else None
    except (ValueError, TypeError, RecursionError, msgspec.MsgspecError):
        return None
    return None if given is None else given.auth


def _read(frame: object, values_max: int) -> ClientFrame | RefusedFrame:
    if not isinstance(frame, dict):
        raise BadFrame("a frame is an object or an array of objects")
    problem = unacceptable(frame, values_max)
    given = frame.get("id")
    command_id = given if isinstance(given, str) and len(given) <= ID_LENGTH_MAX else None
    kind = frame.get("type")
    if not isinstance(kind, str):
        raise BadFrame("a frame without a type")
    if problem is not None:
        path, what = problem
        return RefusedFrame(BadInput("invalid_request", f"{path}: {what}", param=path), command_id)
    frame_type = _TYPES.get(kind)
    if frame_type is None:
        return RefusedFrame(
            BadInput("unknown_type", f"{kind[:64]!r} is no message of this protocol.", param="type"), command_id
        )
    try:
        return msgspec.convert(frame, frame_type)  # type: ignore[return-value]
    except msgspec.ValidationError as exc:
        return RefusedFrame(invalid(exc), command_id)


def invalid(error: msgspec.ValidationError) -> BadInput:
    """Returns msgspec's error as an answer: `param` is the field's path, the message says what would be right."""
    match = _AT.match(str(error))
    assert match is not None
    what, path = match["what"], match["path"] or ""
    missing = _FIELD.search(what)
    if "matching regex" in what:
        what = f"Expected {_WORDS.get(path.rpartition('.')[2], what)}"
    if missing is not None:
        path = f"{path}.{missing['name']}" if path else missing["name"]
        return BadInput("invalid_request", f"{path} is missing.", param=path)
    return BadInput("invalid_request", f"{path}: {what}." if path else f"{what}.", param=path or None)


def unacceptable(frame: dict[object, object], values_max: int = VALUES_MAX) -> tuple[str, str] | None:
    """Returns the path of the first value that no client may send, and what is wrong with it; None if there is none.

    Raises BadFrame where it is nested too deep, holds too many values, or has a key that is no text.
    """
    return None if _is_acceptable(frame, values_max) else _first_unacceptable(frame, values_max)


def _is_acceptable(frame: dict[object, object], values_max: int) -> bool:
    """Returns whether every value may be sent. It checks all values of one depth together, in C, because nearly all
    frames are acceptable and the event loop waits meanwhile."""
    level: list[Any] = [frame]
    values = 0
    for _ in range(DEPTH_MAX):
        values += sum(map(len, level))
        if values > values_max:
            return False
        dicts = [container for container in level if type(container) is dict]
        if not _TEXT.issuperset(map(type, chain.from_iterable(dicts))):
            return False
        inside = [*chain.from_iterable(map(dict.values, dicts))]
        inside += chain.from_iterable(container for container in level if type(container) is list)
        kinds = set(map(type, inside))
        if not kinds <= _KINDS:
            return False
        if int in kinds:
            integers = [value for value in inside if type(value) is int]
            if max(integers) > INTEGER_MAX or min(integers) < -INTEGER_MAX:
                return False
        if float in kinds and not all(math.isfinite(value) for value in inside if type(value) is float):
            return False
        if not kinds & _CONTAINERS:
            return True
        level = [value for value in inside if type(value) in _CONTAINERS]
    return False


def _first_unacceptable(frame: dict[object, object], values_max: int) -> tuple[str, str] | None:
    """Checks one value after the other and returns the first wrong one as `unacceptable` does. Raises BadFrame."""
    # An explicit stack: a frame may be nested as deep as the decoder lets it, and that is deeper than our own calls.
    stack: list[tuple[list[object] | dict[object, object], _Path, int]] = [(frame, None, 1)]
    values = 0
    while stack:
        container, path, depth = stack.pop()
        values += len(container)
        if depth > DEPTH_MAX:
            raise BadFrame(f"nested deeper than {DEPTH_MAX}")
        if values > values_max:
            raise BadFrame(f"more than {values_max} values in one frame")
        named = isinstance(container, dict)
        for name, value in container.items() if isinstance(container, dict) else enumerate(container):
            if named and not isinstance(name, str):
                raise BadFrame("a key that is not a string")
            if isinstance(value, str | bool) or value is None:
                continue
            if isinstance(value, list | dict):
                stack.append((value, (path, name), depth + 1))
            elif isinstance(value, int):
                if abs(value) > INTEGER_MAX:
                    return _written((path, name)), "integers stay below 2**53."
            elif isinstance(value, float):
                if not math.isfinite(value):
                    return _written((path, name)), "a number must be finite."
            else:
                return _written((path, name)), f"{type(value).__name__} is not a value of this protocol."
    return None


def _written(path: _Path) -> str:
    """Returns a path as errors name it, its long names clipped."""
    parts: list[str] = []
    while path is not None:
        path, name = path
        parts.append(f"[{name}]" if isinstance(name, int) else f".{clipped(str(name))}")
    return "".join(reversed(parts)).removeprefix(".")


def clipped(name: str) -> str:
    """Returns a name that a client made up, short enough for an error."""
    return name if len(name) <= NAME_LENGTH_MAX else f"{name[:NAME_LENGTH_MAX]}..."
