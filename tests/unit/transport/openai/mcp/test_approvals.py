"""Answers to requests for approval, as they are read; what becomes of them is in tests/integration/openai."""

from __future__ import annotations

import pytest

from sessions.model.errors import BadInput
from transport.openai.mcp.approvals import ApprovalAnswer, decisions_of
from transport.openai.request_models import InputItem

YES = InputItem(type="mcp_approval_response", approval_request_id="mcpr_1_0", approve=True)


def test_answers_are_read_and_other_inputs_are_none() -> None:
    assert decisions_of([YES], "resp_1") == [ApprovalAnswer("call_1_0", True)]  # type: ignore[arg-type]
    assert decisions_of("hi", None) == decisions_of(None, "resp_1") == decisions_of([], None) == []


@pytest.mark.parametrize(
    ("given", "previous"),
    [
        ([YES], None),
        ([YES, InputItem(role="user", content="hi")], "resp_1"),
        ([InputItem(type="mcp_approval_response", approve=True)], "resp_1"),
        ([InputItem(type="mcp_approval_response", approval_request_id="mcpr_1")], "resp_1"),
    ],
)
def test_mixtures_and_halves_are_refused(given: list[InputItem], previous: str | None) -> None:
    with pytest.raises(BadInput):
        decisions_of(given, previous)
