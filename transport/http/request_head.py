"""Reads the head of a request that is written as nearly every one is, and has it judged before anything is parsed."""

from __future__ import annotations

import re
from typing import Final, Protocol
from urllib.parse import unquote

from sessions.model.errors import SessileError
from transport.http.middleware import Scope

ENDLESS: Final = 1 << 40  # the length of a body that does not say one
_REQUEST_LINE: Final = re.compile(rb"([A-Z]{1,16}) (/[!->@-~]*)(?:\?([!-~]*))? HTTP/1\.1")
_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")


class Gate(Protocol):
    """Checks requests by their heads, before anything else of them is parsed."""

    def check(self, scope: Scope, *, upgrade: bool) -> SessileError | None:
        """Returns why a request is refused, from its `scope` (method, path, headers); None if it is not."""

    def answer(self, scope: Scope, error: SessileError, *, close: bool) -> bytes:
        """Returns the whole answer, in bytes, to a refused request."""

    def refused(self, scope: Scope) -> bytes | None:
        """Checks the first `plain_head` of a connection. Returns the answer that refuses it, after which the connection
        is closed; None if it is not refused."""


def plain_head(data: bytes) -> Scope | None:
    """Reads the head of a request if it is written as nearly all are; returns None if the real parser must decide.

    The result serves to refuse requests and to open WebSockets, which are checked again. All other requests are parsed
    and checked again, so that nothing is gained by a head that two parsers read differently. `left` is the number of
    body bytes still to come; it is negative if there is more after the body."""
    end = data.find(b"\r\n\r\n")
    first, *lines = data[: max(end, 0)].split(b"\r\n")
    line = _REQUEST_LINE.fullmatch(first)
    if line is None:
        return None
    headers: list[tuple[bytes, bytes]] = []
    length = upgrade = named = 0
    for each in lines:
        name, colon, value = each.partition(b":")
        name, value = name.lower(), value.strip(b" \t")
        if not colon or not _NAME.fullmatch(name):
            return None
        if name == b"content-length":
            if not value.isdigit() or len(value) > 15:
                return None
            length = int(value)
        elif name == b"transfer-encoding":
            length = ENDLESS
        elif name == b"upgrade":
            if value.lower() != b"websocket":
                return None
            upgrade = 1
        elif name == b"connection":
            named += b"upgrade" in value.lower()
        headers.append((name, value))
    if (upgrade and not named) or sum(name == b"host" for name, _ in headers) != 1:
        return None
    path = line[2].decode("ascii")
    return {
        "method": line[1].decode("ascii"),
        "path": unquote(path) if "%" in path else path,
        "raw_path": line[2] if line[3] is None else line[2] + b"?" + line[3],
        "query_string": line[3] or b"",
        "headers": headers,
        "state": {},
        "upgrade": bool(upgrade),
        "left": length - (len(data) - end - 4),
    }
