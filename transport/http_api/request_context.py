"""Surrounds the HTTP application of a server, once for all of its parts: they share one bound of bodies in memory, and
what is refused here needs no part.

Loads neither FastAPI nor a route: requests come before those are there (`late_app`).
"""

from __future__ import annotations

from typing import Final

from sessions.model.errors import SessileError
from transport import errors
from transport.gateway import Gateway
from transport.http.json_response import JsonResponse
from transport.http.middleware import App, Receive, RequestContextMiddleware, Scope, Send
from transport.http_api.credential_gate import refusal_headers

BODY_BYTES_MAX: Final = 4 * 1024 * 1024
FORM_BYTES_MAX: Final = 64 * 1024  # what an upload's form has besides its file


def in_context(app: App, gateway: Gateway) -> RequestContextMiddleware:
    """Returns an application with what all requests share around it: ids, size limits, pacing, compression, headers."""
    return RequestContextMiddleware(
        app,
        access=gateway.access,
        body_bytes_max=BODY_BYTES_MAX,
        upload_bytes_max=gateway.files.bytes_max + FORM_BYTES_MAX,
        new_id=gateway.new_id,
        refuse=_refuse,
        arrivals=gateway,
    )


def error_response(error: SessileError, path: str, request_id: str = "") -> JsonResponse:
    """Returns an error in the shape that clients of this path expect."""
    body = errors.body_at(path, error, request_id)
    return JsonResponse(body, errors.row(error.code).http, refusal_headers(error))


async def _refuse(error: SessileError, scope: Scope, receive: Receive, send: Send) -> None:
    await error_response(error, scope["path"], scope["state"]["request_id"])(scope, receive, send)
