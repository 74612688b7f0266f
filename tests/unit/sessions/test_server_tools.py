"""The vocabulary of server tools."""

from __future__ import annotations

import pytest

from sessions.server_tools import canonical


def test_arguments_have_one_form() -> None:
    assert canonical('{"b": 1, "a": "\\u00e9"}') == canonical('{"a":"é","b":1}') == '{"a":"é","b":1}'
    with pytest.raises(ValueError, match="delimiter"):
        canonical('{"a"')
