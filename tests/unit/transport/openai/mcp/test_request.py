"""The `mcp` entries of a request's tools."""

from __future__ import annotations

from typing import Any

import pytest

from sessions.model.errors import BadInput
from sessions.model.types import McpSource
from transport.openai.mcp.request import mcp_tool
from transport.openai.request_models import McpToolParam


def source(**about: Any) -> McpSource:
    made = mcp_tool(McpToolParam(type="mcp", server_label="town", **about), "tools[0]")
    assert isinstance(made.mcp, McpSource) and made.server is True and made.name == "town"
    return made.mcp


def test_which_tools_and_who_is_asked() -> None:
    assert source() == McpSource(server_label="town")
    assert source(allowed_tools=["a"]).allowed == ("a",)
    filtered = source(allowed_tools={"tool_names": ["a"], "read_only": True})
    assert filtered.allowed == ("a",) and filtered.read_only
    assert source(require_approval="always").approval is True
    assert source(require_approval="never").approval is False
    assert source(require_approval={"always": {"tool_names": ["pay"]}}).approval == ("pay",)
    some = source(require_approval={"never": {"tool_names": ["look"]}})
    assert some.approval is True and some.unasked == ("look",)


@pytest.mark.parametrize(
    "given",
    [
        {"server_url": "https://evil.example/"},
        {"connector_id": "connector_dropbox"},
        {"authorization": "secret"},
        {"headers": {"a": "b"}},
    ],
)
def test_what_no_client_may_bring(given: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="not taken from clients") as raised:
        source(**given)
    assert "secret" not in raised.value.public_message and "evil" not in raised.value.public_message
