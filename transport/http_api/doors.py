"""The doors of the HTTP API: a file of `routes` each, and which of them are loaded only when they are used.

A rare door is named in `RARE_DOORS`, with a pattern that its paths begin with; all others are common. A path that fits
a pattern goes to the part of the application that has the rare doors, any other to the part that has the common ones.
So each path of a rare door must fit, and no path of a common one may: a test compares them route by route.
"""

from __future__ import annotations

import re
from typing import Final, Literal

DOORS: Final = (
    *("credentials", "keys", "models", "chat", "messages", "texts", "responses", "conversations", "sessions"),
    *("reviews", "usage", "audit", "limits", "users", "operator", "encryption", "revocations", "push"),
    *("embeddings", "vector_stores", "tools", "added_tools", "files"),
)
"""The files of `routes` with a table, in the order in which the OpenAPI document has them."""
RARE_DOORS: Final = {
    "added_tools": "/v1/tool",
    "audit": "/v1/audit",
    "conversations": "/v1/conversations",
    "embeddings": r"/v1/embeddings|(?:/v[12])?/rerank",
    "encryption": "/v1/operator/",
    "files": "/v1/files|/v1/containers/",
    "keys": "/v1/keys",
    "limits": "/v1/limits",
    "messages": "/v1/messages",
    "operator": "/v1/operator/",
    "push": "/v1/push",
    "reviews": "/v1/reviews|/v1/sessions/[^/]+/(?:messages|responses)/",
    "revocations": "/v1/operator/",
    "tools": "/v1/tools",
    "usage": "/v1/usage",
    "users": "/v1/users/|/v1/memories",
    "vector_stores": "/v1/vector_stores",
}
_RARE: Final = re.compile("|".join((*RARE_DOORS.values(), "/openapi.json")))


Part = Literal["whole", "common", "rare"]


def doors_of(part: Part) -> list[str]:
    return [door for door in DOORS if part in ("whole", "rare" if door in RARE_DOORS else "common")]


def is_rare(path: str) -> bool:
    """Returns whether a path is one of a rare door, or that of the OpenAPI document, which describes all doors."""
    return _RARE.match(path) is not None
