"""What clients see of push stands in the document of the interface."""

from __future__ import annotations

from transport.push.routes import routes


def test_the_calls_of_push() -> None:
    calls = {(method, route.path) for route in routes.routes for method in route.methods}  # type: ignore[attr-defined]
    assert calls == {
        ("GET", "/v1/push"),
        ("GET", "/v1/push/subscriptions"),
        ("POST", "/v1/push/subscriptions"),
        ("DELETE", "/v1/push/subscriptions/{subscription}"),
    }
