"""Lets web pages of listed origins send and read some headers, on both sides of the credential gate."""

from __future__ import annotations

from typing import Any, Final

from starlette.middleware.cors import CORSMiddleware

from transport.gateway import Gateway
from transport.http_api.credential_gate import CredentialGate

CORS_REQUEST_HEADERS: Final = (
    "anthropic-beta",
    "anthropic-dangerous-direct-browser-access",
    "anthropic-version",
    "authorization",
    "content-type",
    "idempotency-key",
    "last-event-id",
    "openai-beta",
    "openai-organization",
    "openai-project",
    "session-id",
    "user-agent",
    "x-api-key",
    "x-request-id",
    "x-sessile-event-ids",
    "x-session-id",
    "x-sessile-user",
    *(
        f"x-stainless-{name}"
        for name in (
            "arch",
            "async",
            "custom-poll-interval",
            "helper-method",
            "lang",
            "os",
            "package-version",
            "poll-helper",
            "retry-count",
            "runtime",
            "runtime-version",
            "timeout",
        )
    ),
)
"""Request headers that a page of a listed origin may send, by itself or through OpenAI's SDK (`x-stainless-*`). Cookies
are not sent, so a page can act only with credentials that it has itself."""
CORS_RESPONSE_HEADERS: Final = (
    "retry-after",
    "request-id",
    "retry-after-ms",
    "warning",
    "x-cache",
    "x-sessile-routing",
    "x-request-id",
    "x-session-id",
    *(f"x-ratelimit-{what}-{of}" for what in ("limit", "remaining", "reset") for of in ("requests", "tokens")),
)
CORS_S: Final = 600


def make_gate(gateway: Gateway) -> CredentialGate:
    """Returns the credential gate, which checks each request's head before the application sees the request. If web
    pages of other origins are allowed, its refusals have CORS headers, so that those pages can read them."""
    cors = CORSMiddleware(_no_app, **cors_options(gateway)) if gateway.access.origins.allowed else None
    return CredentialGate(gateway.access, gateway.new_id, cors, gateway.check_arrival)


def cors_options(gateway: Gateway) -> dict[str, Any]:
    """Returns the options of the application's CORS middleware."""
    return {
        "allow_origins": gateway.access.origins.allowed,
        "allow_methods": ("GET", "HEAD", "POST", "PATCH", "DELETE"),
        "allow_headers": CORS_REQUEST_HEADERS,
        "expose_headers": CORS_RESPONSE_HEADERS,
        "max_age": CORS_S,
    }


async def _no_app(*_: Any) -> None:
    raise AssertionError("a gate has no application behind it")
