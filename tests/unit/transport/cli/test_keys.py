"""What the `keys` command sends and prints."""

from __future__ import annotations

import pytest

from sessions.model.types import UnixMs
from transport.cli.keys import CreateKey, seconds_of
from transport.cli.settings import BadSetting


def test_a_duration_is_a_number_with_a_unit() -> None:
    assert [seconds_of(text) for text in ("90m", "12h", "30d")] == [5_400, 43_200, 2_592_000]
    for text in ("0d", "d", "30", "1.5h", "-1d", "9999999m", "٣d"):
        with pytest.raises(BadSetting, match="expires-in"):
            seconds_of(text)


def test_a_request_has_what_was_given_and_nothing_else() -> None:
    assert CreateKey(tenant="a").request(UnixMs(5)) == {"tenant": "a", "role": "user", "name": ""}
    full = CreateKey(tenant="a", role="operator", user="ana", scopes="chat, read", label="l", expires_in="1m")
    assert full.request(UnixMs(5)) == {
        "tenant": "a",
        "role": "operator",
        "name": "l",
        "user": "ana",
        "scopes": ["chat", "read"],
        "expires_at": 60_005,
    }
    with pytest.raises(BadSetting, match="scopes: 'all' is none; allowed: "):
        CreateKey(tenant="a", scopes="chat,all")
