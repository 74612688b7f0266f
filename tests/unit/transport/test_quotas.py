"""What a command is taken to add to its conversation, before anybody has counted its tokens."""

from __future__ import annotations

from sessions.model import commands as cm
from sessions.model.types import CallId, CommandId, SessionId
from transport.quotas import begins


def test_every_text_counts_in_bytes() -> None:
    session = SessionId("s")
    said = begins(cm.MessageCreate(id=CommandId("c"), session=session, content="日本"))
    told = begins(cm.ToolOutput(id=CommandId("c"), session=session, call_id=CallId("k"), output="日本"))
    assert said == told == 6


def test_a_summary_that_is_requested_is_written_by_the_model_too() -> None:
    assert begins(cm.SessionCompact(id=CommandId("c"), session=SessionId("s"))) == 0
    assert begins(cm.CompactionUndo(id=CommandId("c"), session=SessionId("s"))) is None
