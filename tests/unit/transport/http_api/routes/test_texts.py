"""How judgements are shown, and how messages are made of what a client sent."""

from __future__ import annotations

from sessions.model import commands as cm
from sessions.model.types import CallId
from transport.history_index import Unit
from transport.http_api.routes.texts import prompt_messages


def test_an_answer_with_its_calls_is_one_message_and_outputs_know_their_function() -> None:
    call = cm.NewCall(call_id=CallId("c"), name="look", arguments="{}")
    units = [
        Unit((cm.NewMessage(content="hi"),)),
        Unit((cm.NewMessage(role="assistant", content="let me"), call), answer=True),
        Unit((cm.NewOutput(call_id=CallId("c"), output="18"),)),
        Unit((call,), answer=True),
    ]
    shown = [(each.role, each.text, each.name, len(each.calls)) for each in prompt_messages(units)]
    assert shown == [
        ("user", "hi", None, 0),
        ("assistant", "let me", None, 1),
        ("tool", "18", "look", 0),
        ("assistant", "", None, 1),
    ]
