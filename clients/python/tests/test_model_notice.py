"""The word on a model's worth: read where a server gives one, and never in the way where it does not."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from sessile_client._model_notice import model_notice


class Models(HTTPServer):
    body: Any
    keys: list[str | None]


class Handler(BaseHTTPRequestHandler):
    server: Models

    def do_GET(self) -> None:
        self.server.keys.append(self.headers["authorization"])
        if self.server.body == "elsewhere":
            self.send_response(302)
            self.send_header("location", f"http://localhost:{self.server.server_address[1]}/stolen")
        else:
            self.send_response(200 if self.path == "/v1/models" else 404)
        self.end_headers()
        self.wfile.write(json.dumps(self.server.body).encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Models]:
    with Models(("127.0.0.1", 0), Handler) as made:
        made.keys, made.body = [], {"data": [{"id": "m", "notice": "This is a toy."}]}
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def test_the_notice_is_read_with_the_key(server: Models) -> None:
    url = f"ws://127.0.0.1:{server.server_address[1]}/v1/ws"
    assert model_notice(url, "sk-1") == "This is a toy."
    assert model_notice(url) == "This is a toy." and server.keys == ["Bearer sk-1", None]


@pytest.mark.parametrize("body", [{}, {"data": []}, {"data": [{"id": "m"}]}, {"data": [{"notice": None}]}, [], 5])
def test_where_there_is_none_nothing_is_shown(server: Models, body: Any) -> None:
    server.body = body
    assert model_notice(f"ws://127.0.0.1:{server.server_address[1]}/v1/ws") is None


def test_a_key_follows_no_redirect(server: Models) -> None:
    server.body = "elsewhere"
    assert model_notice(f"ws://127.0.0.1:{server.server_address[1]}/v1/ws", "sk-1") is None
    assert server.keys == ["Bearer sk-1"]


def test_no_server_is_no_trouble() -> None:
    assert model_notice("ws://127.0.0.1:1/v1/ws") is None
    assert model_notice("file:///etc/passwd") is None
