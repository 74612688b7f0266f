"""Idempotency-Key and Last-Event-ID."""

from __future__ import annotations

import pytest
from fastapi import Request

from sessions.model.errors import BadInput
from sessions.model.types import Epoch, ResponseId
from transport.http.headers import (
    EventId,
    event_id_format,
    last_event_id,
    read_retry_headers,
    request_digest,
    resumed_event_id,
)


def request(**headers: str) -> Request:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "headers": raw})


def test_a_key_has_a_length() -> None:
    assert read_retry_headers(request()).idempotency_key is None
    assert read_retry_headers(request(idempotency_key="k")).idempotency_key == "k"
    for key in ("", "k" * 256):
        with pytest.raises(BadInput):
            read_retry_headers(request(idempotency_key=key))


def test_an_event_id_is_read_as_it_is_written() -> None:
    for event_id in (EventId(Epoch("ep"), 7), EventId(Epoch("ep"), 7, ResponseId("resp_1"), request_digest(b"x"))):
        assert last_event_id(request(last_event_id=str(event_id))) == event_id
    assert last_event_id(request()) is None
    for wrong in ("7", "ep:", "ep:x", f"ep:{2**53}", "ep.resp:7"):
        with pytest.raises(BadInput):
            last_event_id(request(last_event_id=wrong))


def test_ids_name_their_answer_unless_a_key_leads_back_to_it() -> None:
    assert event_id_format(ResponseId("r"), b"x", "key")(Epoch("ep"), 3) == EventId(Epoch("ep"), 3)
    named = event_id_format(ResponseId("r"), b"x", None)(Epoch("ep"), 3)
    assert (named.response, named.request) == ("r", request_digest(b"x"))


def test_a_reader_comes_back_to_the_answer_of_the_same_request_only() -> None:
    place = str(EventId(Epoch("ep"), 3, ResponseId("r"), request_digest(b"x")))
    ids = {"x_sessile_event_ids": "1"}
    good = request(last_event_id=place, **ids)
    seen = resumed_event_id(good, read_retry_headers(good), b"x")
    assert seen is not None and seen.response == "r"
    assert resumed_event_id(request(), read_retry_headers(request()), b"x") is None
    for bad in (request(last_event_id=place), request(last_event_id="ep:3", **ids)):
        with pytest.raises(BadInput):
            resumed_event_id(bad, read_retry_headers(bad), b"x")
    with pytest.raises(BadInput):
        resumed_event_id(good, read_retry_headers(good), b"another body")
