"""JSON answers. The token ids of a long text would hold the loop for milliseconds in the standard library's encoder."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response


class JsonResponse(Response):
    """An answer whose content is encoded as JSON."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return msgspec.json.encode(content)
