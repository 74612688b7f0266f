"""A stand-in for the transit engine of Vault and OpenBao, on its documented wire format: encrypt, decrypt, rewrap.

Speaks HTTP on loopback in a thread. `rotate` makes a new version; `answers` overrides the next answers' status.
"""

from __future__ import annotations

import base64
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

TOKEN = "s.stand-in"


class TransitServer:
    """One key, `sessile`, in the mount `transit`."""

    def __init__(self) -> None:
        self.versions = [AESGCM.generate_key(256)]
        self.calls: list[str] = []
        self.answers: list[int] = []
        self.token = TOKEN

    def rotate(self) -> None:
        self.versions.append(AESGCM.generate_key(256))

    def encrypt(self, plaintext: str) -> str:
        nonce = os.urandom(12)
        sealed = nonce + AESGCM(self.versions[-1]).encrypt(nonce, base64.b64decode(plaintext), None)
        return f"vault:v{len(self.versions)}:{base64.b64encode(sealed).decode()}"

    def decrypt(self, ciphertext: str) -> str:
        service, version, text = ciphertext.split(":")
        assert service == "vault"
        sealed = base64.b64decode(text)
        plain = AESGCM(self.versions[int(version[1:]) - 1]).decrypt(sealed[:12], sealed[12:], None)
        return base64.b64encode(plain).decode()

    def answer(self, path: str, token: str | None, body: dict[str, str]) -> tuple[int, dict[str, Any]]:
        self.calls.append(path)
        if self.answers:
            return self.answers.pop(0), {"errors": ["as told"]}
        if token != self.token:
            return 403, {"errors": ["permission denied"]}
        try:
            match path:
                case "/v1/transit/encrypt/sessile":
                    return 200, {"data": {"ciphertext": self.encrypt(body["plaintext"]), "key_version": 1}}
                case "/v1/transit/decrypt/sessile":
                    return 200, {"data": {"plaintext": self.decrypt(body["ciphertext"])}}
                case "/v1/transit/rewrap/sessile":
                    return 200, {"data": {"ciphertext": self.encrypt(self.decrypt(body["ciphertext"]))}}
        except (InvalidTag, ValueError, AssertionError, IndexError):
            return 400, {"errors": ["invalid ciphertext"]}
        return 404, {"errors": []}

    @contextmanager
    def running(self) -> Iterator[str]:
        """Its address, with the mount and the key."""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, answer = outer.answer(self.path, self.headers["X-Vault-Token"], body)
                data = json.dumps({"request_id": "r", "lease_id": "", "renewable": False, **answer}).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                return

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/transit/sessile"
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
