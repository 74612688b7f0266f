"""A review case as a policy opens it, for tests of what becomes of cases."""

from __future__ import annotations

from typing import Any

from sessions.model.reviews import Case, ReviewId
from sessions.model.types import SessionKey
from tests.support.stores.journals import NOW, key


def a_case(name: str, of: SessionKey | None = None, **fields: Any) -> Case:
    about: dict[str, Any] = {"cause": "policy", "direction": "output", "action": "block", "category": "pii/email"}
    about |= {"score": 0.5, "model": "m", "policy": "p", "user": None, "offset": 1, "start": 0, "end": 4}
    return Case(id=ReviewId(name), key=of or key("s"), **{**about, "opened_at": NOW, **fields})
