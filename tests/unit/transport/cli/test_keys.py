"""What the `keys` command sends and prints."""

from __future__ import annotations

import pytest

from sessions.model.types import UnixMs
from transport.cli.keys import CreateKey, format_keys, seconds_of
from transport.cli.settings import BadSetting

KEY = {
    "object": "key",
    "id": "abc",
    "state": "active",
    "tenant": "acme",
    "role": "user",
    "user": "",
    "scopes": ["chat", "read"],
    "expires_at": 86_400_000,
    "name": "laptop",
}


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


def test_keys_are_a_table_and_one_key_is_a_list_of_its_fields() -> None:
    assert format_keys([KEY], as_json=False).splitlines() == [
        "ID   STATE   TENANT  ROLE  USER  SCOPES     EXPIRES                    LABEL",
        "abc  active  acme    user  -     chat,read  1970-01-02T00:00:00+00:00  laptop",
    ]
    text = format_keys({**KEY, "key": "sk-sessile-abc-secret"}, as_json=False)
    assert "    scopes  chat,read\n" in text and "\nsk-sessile-abc-secret\n\nThis is shown once." in text
    assert format_keys([], as_json=True) == "[]"
