"""What the server says of its model, for people who chat with it: ``notice`` in ``/v1/models``."""

from __future__ import annotations

import json
import urllib.request
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_S = 2.0


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A key goes to the address that it was given for, and nowhere else."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def model_notice(url: str, api_key: str | None = None) -> str | None:
    """The notice of the first model behind a WebSocket address; None where there is none, or no answer. Blocking."""
    parts = urlsplit(url)
    scheme = {"ws": "http", "wss": "https"}.get(parts.scheme)
    if scheme is None:
        return None
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    request = urllib.request.Request(f"{scheme}://{parts.netloc}/v1/models", headers=headers)
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=TIMEOUT_S) as answer:
            notice = json.load(answer)["data"][0]["notice"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return notice if isinstance(notice, str) else None
