"""What follows from a command alone: its digest, its sampling, its content as parts, the session that it makes."""

from __future__ import annotations

import msgspec

from sessions.model import commands as cm
from sessions.model.types import CommandId, InputText, OutputText, Sampling, SessionId

MESSAGE = cm.MessageCreate(id=CommandId("c"), session=SessionId("s"), content="hello", seed=3, stop=("a", "b"))


def test_digests_are_equal_exactly_for_the_same_command() -> None:
    assert cm.command_digest(MESSAGE) == cm.command_digest(msgspec.structs.replace(MESSAGE))
    assert cm.command_digest(MESSAGE) != cm.command_digest(msgspec.structs.replace(MESSAGE, content="other"))
    ordered, turned = (dict.fromkeys(names, 1) for names in (("a", "b"), ("b", "a")))
    update = cm.SessionUpdate(id=CommandId("c"), session=SessionId("s"), metadata=ordered)
    assert cm.command_digest(update) == cm.command_digest(msgspec.structs.replace(update, metadata=turned))


def test_sampling_is_of_the_command_and_nothing_else() -> None:
    assert cm.sampling_of(MESSAGE) == Sampling(seed=3, stop=("a", "b"))


def test_content_is_parts_of_input_text() -> None:
    assert cm.content_parts("hello") == (InputText(text="hello"),)
    assert cm.content_parts((InputText("a"), OutputText("b"))) == (InputText("a"), InputText("b"))


def test_which_commands_make_a_session() -> None:
    create = cm.SessionCreate(id=CommandId("c"), session=SessionId("s"))
    settings = cm.SessionSettings(title="t")
    turn = cm.TurnCreate(id=CommandId("c"), session=SessionId("s"), items=(), create=settings)
    assert cm.session_settings_of(create) is create and cm.session_settings_of(turn) is settings
    assert cm.session_settings_of(msgspec.structs.replace(turn, create=None)) is None
    assert cm.session_settings_of(MESSAGE) is None
