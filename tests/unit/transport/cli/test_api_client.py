"""Addresses of servers, and answers that are none."""

from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from sessions.model.errors import SessileError, Unavailable
from transport.cli.api_client import base_of, call
from transport.cli.settings import BadSetting


def test_a_key_goes_over_https_or_to_this_machine() -> None:
    assert base_of("http://127.0.0.1:8080/", "sk-x") == "http://127.0.0.1:8080"
    assert base_of("https://chat.example", "sk-x") == "https://chat.example"
    assert base_of("http://chat.example", "") == "http://chat.example"
    with pytest.raises(BadSetting, match="https only"):
        base_of("http://chat.example", "sk-x")
    for wrong in ("chat.example", "ftp://chat.example", "http://"):
        with pytest.raises(BadSetting, match="http://HOST:PORT"):
            base_of(wrong, "")


def test_an_address_is_taken_as_people_write_it() -> None:
    for written in ("127.0.0.1:9000", "ws://127.0.0.1:9000", "http://127.0.0.1:9000/", "ws://127.0.0.1:9000/v1/ws"):
        assert base_of(written, "sk-x") == "http://127.0.0.1:9000"
    assert base_of("wss://chat.example/behind/v1/ws", "sk-x") == "https://chat.example/behind"
    assert base_of("localhost:9000/", "") == "http://localhost:9000" and base_of("[::1]:9", "") == "http://[::1]:9"
    for wrong in ("127.0.0.1:x", "http://127.0.0.1:99999", "http://127.0.0.1:0", "mailto:a@b", "user:8080/path"):
        with pytest.raises(BadSetting, match="HOST:PORT"):
            base_of(wrong, "")


def test_a_server_that_is_not_there_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(Unavailable, match=f"http://127.0.0.1:{port}/v1/keys does not answer"):
        call("GET", f"http://127.0.0.1:{port}/v1/keys", "")


def test_without_a_key_a_server_that_takes_none_says_where_one_goes() -> None:
    class Closed(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(401)
            self.end_headers()
            self.wfile.write(b'{"error": {"code": "unauthorized", "message": "No such key."}}')

    with HTTPServer(("127.0.0.1", 0), Closed) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/v1/keys"
        with pytest.raises(BadSetting, match=r"put one in SESSILE_API_KEY, .*--api-key-file"):
            call("GET", url, "")
        with pytest.raises(SessileError, match="No such key"):
            call("GET", url, "sk-sessile-a-b")
        server.shutdown()
