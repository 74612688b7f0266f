"""Every error that leaves a module, in one tree.

    SessileError
    ├── BadInput            the caller must change the request            400
    │   ├── TooLarge        a size or count limit                         413
    │   └── Conflict        true of the request, given what is stored     409
    ├── Unauthorized        who are you?                                  401
    ├── Forbidden           not yours                                     403
    ├── NotFound            unknown here (also: not yours to know of)     404
    ├── Gone                deleted                                       410
    ├── Limited             a quota; wait and come again                  429
    ├── CutShort            an answer broke off and cannot go on              502
    ├── Overloaded          shed; wait and come again                     503
    ├── Unavailable         something we need is away                     503
    │   └── OutcomeUnknown  it may have happened: read before anything    503
    ├── Fenced              another owner holds the session now           503 (inside: an ordinary answer)
    └── Internal            our fault                                     500

`code` is API: it is listed in docs/protocol.md and never parsed from a message. `public_message` may be
shown to anyone; causes travel as `__cause__` and into logs only. The transport maps codes to HTTP status,
close code and gRPC status in one table.
"""

from __future__ import annotations

from typing import Any


class SessileError(Exception):
    """Base of all errors that we raise on purpose."""

    type: str = "server_error"
    status: int = 500
    retryable: bool = False

    def __init__(
        self,
        code: str,
        public_message: str,
        *,
        param: str | None = None,
        retryable: bool | None = None,
        retry_after_ms: int | None = None,
    ) -> None:
        super().__init__(f"{code}: {public_message}")
        self.code = code
        self.public_message = public_message
        self.param = param
        if retryable is not None:
            self.retryable = retryable
        self.retry_after_ms = retry_after_ms

    def public(self) -> dict[str, Any]:
        """Returns the `error` object of PROTOCOL.md §4."""
        body: dict[str, Any] = {
            "type": self.type,
            "code": self.code,
            "message": self.public_message,
            "param": self.param,
            "retryable": self.retryable,
        }
        if self.retry_after_ms is not None:
            body["retry_after_ms"] = self.retry_after_ms
        return body


class BadInput(SessileError):
    type = "invalid_request_error"
    status = 400


class TooLarge(BadInput):
    status = 413


class Conflict(BadInput):
    status = 409


class Unauthorized(SessileError):
    type = "authentication_error"
    status = 401


class Forbidden(SessileError):
    type = "permission_error"
    status = 403


class NotFound(SessileError):
    type = "invalid_request_error"
    status = 404


class Gone(SessileError):
    type = "invalid_request_error"
    status = 410


class Limited(SessileError):
    type = "rate_limit_error"
    status = 429
    retryable = True


class CutShort(SessileError):
    status = 502


class Overloaded(SessileError):
    type = "server_error"
    status = 503
    retryable = True


class Unavailable(SessileError):
    type = "server_error"
    status = 503
    retryable = True


class EngineLost(Unavailable):
    """Raised if the engine ended during a run and is being restarted. A caller that asks again continues from what was
    released."""


class OutcomeUnknown(Unavailable):
    """Raised if the store did not answer, so that the write may or may not have happened. The caller reads again before
    anything else."""


class Fenced(SessileError):
    """Raised if another owner has a newer fence for the session. The owner that gets this stops writing for the
    session, at once and for good."""

    type = "server_error"
    status = 503
    retryable = True


class Internal(SessileError):
    pass
