"""Everything that this package raises.

::

    SessileError
     ├─ ServerError                 the server refused a command; carries its code, retryable, retry_after_ms
     │   ├─ InvalidRequest          invalid_request, unknown_type, ...
     │   ├─ Unauthorized            unauthorized, token_expired
     │   ├─ Forbidden               forbidden
     │   ├─ NotFound                *_not_found
     │   │   └─ SessionGone         the session is unknown, forbidden or deleted: reading it has ended
     │   ├─ Conflict                idempotency_conflict, session_exists, call_answered, session_full
     │   ├─ Busy                    response_in_progress, tools_pending, queue_full
     │   ├─ RateLimited             rate_limited, quota_exceeded
     │   └─ Unavailable             overloaded, draining, engine_unavailable, ...: try later
     ├─ ResponseFailed              the response ended as ``response.failed``
     ├─ CommandTimeout              no answer in time: the outcome is UNKNOWN; the id may be sent again
     ├─ TooManyCommands             more unanswered commands than the client holds
     ├─ Lost                        the program let go of the session, or closed the client
     ├─ ConnectionStopped           the client will not reconnect (fatal close code, refused handshake)
     └─ WireError                   bytes that are not the protocol, on either side

A code that this version does not know becomes the class of its OpenAI ``type``, so a newer server's codes
still land in the right branch.
"""

from __future__ import annotations

from typing import Any

from ._values import mapping_of, number_or_none, text_of, text_or_none


class SessileError(Exception):
    """Base of everything raised here."""


class WireError(SessileError):
    """A frame that cannot be encoded or decoded, or that breaks the protocol's types."""

    def __init__(self, message: str, close_code: int = 1002) -> None:
        super().__init__(message)
        self.close_code = close_code


class ServerError(SessileError):
    """An ``error`` object of the protocol."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        type: str = "server_error",
        param: str | None = None,
        retryable: bool = False,
        retry_after_ms: int | None = None,
    ) -> None:
        super().__init__(f"{code}: {message}" if message else code)
        self.code = code
        self.message = message
        self.type = type
        self.param = param
        self.retryable = retryable
        self.retry_after_ms = retry_after_ms

    def to_dict(self) -> dict[str, Any]:
        """The object as it stood in the frame, absent fields left out."""
        names = ("type", "code", "message", "param", "retryable", "retry_after_ms")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


class InvalidRequest(ServerError):
    """The command itself is wrong; sending it again will not help."""


class Unauthorized(ServerError):
    """No, a wrong or an expired credential."""


class Forbidden(ServerError):
    """The credential does not allow this."""


class NotFound(ServerError):
    """No such session, item, response or call."""


class SessionGone(NotFound):
    """Reading this session has ended: it is unknown, forbidden or deleted."""


class Conflict(ServerError):
    """The command contradicts what the session already holds."""


class Busy(ServerError):
    """The branch has an open response or waits for tools; ``queue=True`` waits instead."""


class RateLimited(ServerError):
    """A limit of the principal; ``retry_after_ms`` says when to come back."""


class Unavailable(ServerError):
    """The server cannot do this now; nothing was done."""


class ResponseFailed(SessileError):
    """A response ended as ``response.failed``. The text until then stays readable in ``text``."""

    def __init__(self, response_id: str, code: str, message: str, text: str) -> None:
        super().__init__(f"{response_id} failed: {code}: {message}")
        self.response_id = response_id
        self.code = code
        self.message = message
        self.text = text


class CommandTimeout(SessileError):
    """No answer within the time allowed. The command may or may not have been applied."""

    def __init__(self, command_id: str, seconds: float) -> None:
        super().__init__(f"no answer to {command_id} within {seconds:g} s; its outcome is unknown")
        self.command_id = command_id


class TooManyCommands(SessileError):
    """The table of unanswered commands is full."""


class Lost(SessileError):
    """The program closed the client, or detached the session, while this was under way."""


class ConnectionStopped(SessileError):
    """The client has stopped for good and says why."""

    def __init__(self, message: str, *, close_code: int | None = None, http_status: int | None = None) -> None:
        super().__init__(message)
        self.close_code = close_code
        self.http_status = http_status


_CODES: dict[type[ServerError], str] = {
    Unauthorized: "unauthorized token_expired",
    Forbidden: "forbidden",
    SessionGone: "session_deleted",
    Conflict: (
        "idempotency_conflict session_exists session_full call_answered not_withheld appealed_already "
        "review_decided review_claimed review_not_claimed response_already_completed response_not_active"
    ),
    Busy: "response_in_progress tools_pending queue_full",
    RateLimited: "rate_limited quota_exceeded too_many_subscriptions",
    Unavailable: (
        "overloaded draining unavailable engine_unavailable journal_unavailable directory_unavailable "
        "outcome_unknown fenced"
    ),
}
_BY_CODE = {code: cls for cls, codes in _CODES.items() for code in codes.split()}

_BY_TYPE: dict[str, type[ServerError]] = {
    "invalid_request_error": InvalidRequest,
    "authentication_error": Unauthorized,
    "permission_error": Forbidden,
    "not_found_error": NotFound,
    "conflict_error": Conflict,
    "rate_limit_error": RateLimited,
    "rate_limit_exceeded": RateLimited,
    "overloaded_error": Unavailable,
    "service_unavailable_error": Unavailable,
}


def server_error(raw: object) -> ServerError:
    """The exception for an ``error`` object as it came; anything odd in it becomes a plain ServerError."""
    fields = mapping_of(raw)
    code = text_of(fields.get("code")) or "unknown"
    type_ = text_or_none(fields.get("type"))
    cls = _BY_CODE.get(code)
    if cls is None:
        cls = NotFound if code.endswith("_not_found") else _BY_TYPE.get(type_ or "", ServerError)
    return cls(
        code,
        text_of(fields.get("message")),
        type="server_error" if type_ is None else type_,
        param=text_or_none(fields.get("param")),
        retryable=fields.get("retryable") is True,
        retry_after_ms=number_or_none(fields.get("retry_after_ms")),
    )
