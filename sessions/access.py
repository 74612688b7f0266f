"""Who may touch a session: the one place that says so.

A principal sees the sessions of its tenant. A key that acts for a named end user sees that user's only; service
and operator keys see every user's. What may not be seen does not exist: callers answer `session_not_found`.
"""

from __future__ import annotations

from sessions.errors import Gone, NotFound
from sessions.types import Principal, SessionKey


def may_see(principal: Principal, key: SessionKey, user: str | None) -> bool:
    """True when `principal` may read and command the session `key`, which belongs to `user`."""
    if principal.tenant != key.tenant:
        return False
    return principal.user is None or principal.role != "user" or principal.user == user


def deleted(key: SessionKey) -> Gone:
    return Gone("session_deleted", f"The session {key.session!r} is deleted.", param="session")


def not_found(key: SessionKey) -> NotFound:
    return NotFound("session_not_found", f"There is no session {key.session!r}.", param="session")
