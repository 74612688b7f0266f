"""What follows from a command alone: its digest, its sampling, its content as parts, the session that it makes."""

from __future__ import annotations

import msgspec

from sessions.model import commands as cm
from sessions.model.types import CommandId, SessionId

MESSAGE = cm.MessageCreate(id=CommandId("c"), session=SessionId("s"), content="hello", seed=3, stop=("a", "b"))


def test_digests_are_equal_exactly_for_the_same_command() -> None:
    assert cm.command_digest(MESSAGE) == cm.command_digest(msgspec.structs.replace(MESSAGE))
    assert cm.command_digest(MESSAGE) != cm.command_digest(msgspec.structs.replace(MESSAGE, content="other"))
    ordered, turned = (dict.fromkeys(names, 1) for names in (("a", "b"), ("b", "a")))
    update = cm.SessionUpdate(id=CommandId("c"), session=SessionId("s"), metadata=ordered)
    assert cm.command_digest(update) == cm.command_digest(msgspec.structs.replace(update, metadata=turned))
