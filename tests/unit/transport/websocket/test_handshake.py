"""What a refused handshake leaves behind."""

from __future__ import annotations

from websockets.datastructures import Headers
from websockets.http11 import Request
from websockets.server import ServerProtocol

from sessions.model.types import UnixMs
from tests.support.garbage import no_cycles
from transport.auth.authenticator import Authenticator
from transport.websocket.handshake import PATH, shake_hands


def test_a_request_that_is_no_handshake_is_free_at_once() -> None:
    access = Authenticator({}, clock=lambda: 100.0, now_ms=lambda: UnixMs(0))
    headers = {"Host": "127.0.0.1", "Connection": "Upgrade", "Upgrade": "websocket"}  # and no key
    with no_cycles(Request):
        response, agreed = shake_hands(ServerProtocol(), Request(PATH, Headers(headers)), access)
        assert response.status_code == 400 and agreed is None
