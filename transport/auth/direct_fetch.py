"""Fetches from the one address that was named, and follows no redirect.

A redirect would carry a key to another host, or take an issuer's keys from an open line.
"""

from __future__ import annotations

import urllib.request
from http.client import HTTPMessage
from typing import IO, Any


class _RefuseRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: Any, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str) -> None:
        """None: whoever opened it gets the redirect as an HTTPError."""


def open_direct(request: urllib.request.Request, timeout_s: float) -> Any:
    """The answer, to be read and closed. Blocking. Raises HTTPError, for a redirect too, and OSError."""
    return urllib.request.build_opener(_RefuseRedirects).open(request, timeout=timeout_s)
