"""Attacks on the terminals of operators: names, labels, reasons and licences that strangers chose steer nothing, break
no line and turn no text round when a command, a log or the chat shows them."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
import structlog
from sessile_client._screen import Screen

from transport.cli import logs
from transport.cli.audit import ListRows, format_audit
from transport.cli.keys import format_keys
from transport.cli.models import ModelRow, ProgressLine, format_models
from transport.cli.tokens import format_revocations

HOSTILE = "\x1b]0;owned\x07 \x9b31m a\nfake  row \u202etxt.exe\u2028"
KEY = {"id": "a", "state": "active", "tenant": "t", "role": "user", "user": "u", "scopes": ["chat"], "expires_at": None}
ROW = {"seq": 1, "at": 0, "action": "access.break_glass", "by": {"role": "operator"}, "reason": HOSTILE}
REVOCATION = {"kind": "subject", "name": HOSTILE, "issuer": "i", "at": 0, "expires_at": 0, "by": ""}


def progress() -> str:
    out = io.StringIO()
    ProgressLine(out)(HOSTILE, 1, 2)
    return out.getvalue().removesuffix("\n")


def logged() -> str:
    out = io.StringIO()
    logs.configure("info", "console", stream=out)
    structlog.get_logger().warning("user_seen", user=HOSTILE)
    structlog.reset_defaults()
    return out.getvalue().removesuffix("\n")


SHOWN: dict[str, tuple[int, Callable[[], str]]] = {
    "keys": (2, lambda: format_keys([{**KEY, "name": HOSTILE}], as_json=False)),
    "key": (8, lambda: format_keys({**KEY, "name": HOSTILE}, as_json=False)),
    "models": (2, lambda: format_models([ModelRow("hf:a/b", 1, HOSTILE, "")], as_json=False)),
    "audit": (1, lambda: format_audit(ListRows(tenant="acme"), [ROW])),
    "tokens": (2, lambda: format_revocations([REVOCATION], as_json=False)),
    "progress": (1, progress),
    "log": (1, logged),
}


@pytest.mark.parametrize("name", SHOWN)
def test_what_strangers_wrote_is_shown_as_text(name: str) -> None:
    count, show = SHOWN[name]
    lines = show().split("\n")
    assert len(lines) == count
    assert all(line.isprintable() for line in lines), lines
    assert any("\\x1b]0;owned" in line for line in lines)


def test_the_chat_shows_titles_as_text() -> None:
    notes = io.StringIO()
    Screen(io.StringIO(), notes, prompts=False).note("session a: \x1b]0;owned\x07\x9b31m")
    assert notes.getvalue() == "-- session a: ]0;owned31m\n"
