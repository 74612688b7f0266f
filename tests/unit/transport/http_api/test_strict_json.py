"""Bodies of requests: what no log can hold is refused with its place, the rest is read as it is."""

from __future__ import annotations

from typing import Any

import pytest

from sessions.model.errors import BadInput
from transport.http_api.app import invalid
from transport.http_api.strict_json import BODY_VALUES_MAX, parsed


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b'{"a": [1, 2.5, null, true, "\\ud83d\\ude00"]}', {"a": [1, 2.5, None, True, "\U0001f600"]}),
        (b'{"a": 9007199254740991}', {"a": 2**53 - 1}),
        (b'["not an object"]', ["not an object"]),
    ],
)
def test_what_is_well_formed_is_read(text: bytes, value: Any) -> None:
    assert parsed(text) == value


@pytest.mark.parametrize(
    ("text", "param"),
    [
        (b"{", None),
        (b'{"a": "\\ud800"}', None),
        (b'{"a": "\xff"}', None),
        (b'{"a": NaN}', None),
        (b'{"a": 1e999}', None),
        (b'{"a": {"b": [0, 9007199254740992]}}', "a.b[1]"),
        (b'{"a": ' + b"1" * 40 + b"}", "a"),
        (b'{"a": ' + b"[" * 100 + b"]" * 100 + b"}", None),
        (b'{"a": ' + b"[" * 100_000, None),
        (b'{"a": [' + b"0," * BODY_VALUES_MAX + b"0]}", None),
    ],
)
def test_what_no_log_can_hold_is_refused(text: bytes, param: str | None) -> None:
    with pytest.raises(BadInput) as caught:
        parsed(text)
    assert (caught.value.code, caught.value.param) == ("invalid_request", param)


def test_a_long_name_is_clipped_in_its_error() -> None:
    with pytest.raises(BadInput) as caught:
        parsed(b'{"' + b"k" * 500_000 + b'": [[1e999]]}'.replace(b"1e999", b"9007199254740992"))
    assert caught.value.param == f"{'k' * 64}...[0][0]"
    with pytest.raises(BadInput) as caught:
        raise invalid([{"type": "extra_forbidden", "msg": "", "loc": ("body", "k" * 500_000)}])
    assert caught.value.param == f"{'k' * 64}..."
