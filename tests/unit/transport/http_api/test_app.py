"""Errors in OpenAI's shape, over the routes of a server that is not there."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from fastapi import FastAPI

from tests.support.doors.transport import gateway_over, http_client, memory_sessions
from transport.http_api.app import invalid


@pytest.mark.parametrize(
    ("problem", "code", "param"),
    [
        ({"type": "json_invalid", "loc": ("body", 1), "msg": "x"}, "invalid_request", None),
        ({"type": "missing", "loc": ("body", "model"), "msg": "x"}, "missing_required_parameter", "model"),
        ({"type": "extra_forbidden", "loc": ("body", "x"), "msg": "x"}, "unknown_parameter", "x"),
        (
            {"type": "int_type", "loc": ("body", "items", 2, "list", "text"), "msg": "x"},
            "invalid_request",
            "items[2].text",
        ),
    ],
)
def test_what_is_wrong_with_a_body_is_named(problem: dict[str, Any], code: str, param: str | None) -> None:
    shallow = {"type": "int_type", "loc": (), "msg": "y"}
    error = invalid([shallow, problem])
    assert (error.code, error.param) == (code, param)


async def test_the_api_document_is_made_once_and_not_on_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    make = FastAPI.openapi

    def recorded(app: FastAPI) -> dict[str, Any]:
        threads.append(threading.get_ident())
        return make(app)

    monkeypatch.setattr(FastAPI, "openapi", recorded)
    async with http_client(gateway_over(await memory_sessions())) as client:
        first, second = await asyncio.gather(client.get("/openapi.json"), client.get("/openapi.json"))
    assert first.json() == second.json() and "/v1/sessions" in first.json()["paths"]
    assert len(threads) == 1 and threads[0] != threading.get_ident()
