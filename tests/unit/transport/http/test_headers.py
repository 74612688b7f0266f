"""Idempotency-Key and Last-Event-ID."""

from __future__ import annotations

import pytest
from fastapi import Request

from sessions.model.errors import BadInput
from transport.http.headers import read_retry_headers


def request(**headers: str) -> Request:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "headers": raw})


def test_a_key_has_a_length() -> None:
    assert read_retry_headers(request()).idempotency_key is None
    assert read_retry_headers(request(idempotency_key="k")).idempotency_key == "k"
    for key in ("", "k" * 256):
        with pytest.raises(BadInput):
            read_retry_headers(request(idempotency_key=key))
