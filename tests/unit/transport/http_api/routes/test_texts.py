"""How judgements are shown, and how messages are made of what a client sent."""

from __future__ import annotations

from sessions.model import commands as cm
from sessions.model.inspection import Judgement
from sessions.model.types import CallId
from transport.history_index import Unit
from transport.http_api.routes.texts import OPENAI_CATEGORIES, _result, prompt_messages


def test_all_of_openais_categories_are_named_and_ours_beside_them() -> None:
    shown = _result(Judgement({"toxicity": 0.9, "pii/email": 1.0}))
    assert shown["flagged"] and set(OPENAI_CATEGORIES) < shown["categories"].keys()
    assert [name for name, found in shown["categories"].items() if found] == ["harassment", "toxicity", "pii/email"]
    assert shown["category_scores"]["harassment"] == 0.9 and shown["category_scores"]["violence"] == 0.0
    none = _result(Judgement({}))
    assert not none["flagged"] and not any(none["categories"].values())


def test_an_answer_with_its_calls_is_one_message_and_outputs_know_their_function() -> None:
    call = cm.NewCall(call_id=CallId("c"), name="look", arguments="{}")
    units = [
        Unit((cm.NewMessage(content="hi"),)),
        Unit((cm.NewMessage(role="assistant", content="let me"), call), answer=True),
        Unit((cm.NewOutput(call_id=CallId("c"), output="18"),)),
        Unit((call,), answer=True),
    ]
    shown = [(each.role, each.text, each.name, len(each.calls)) for each in prompt_messages(units, images=False)]
    assert shown == [
        ("user", "hi", None, 0),
        ("assistant", "let me", None, 1),
        ("tool", "18", "look", 0),
        ("assistant", "", None, 1),
    ]
