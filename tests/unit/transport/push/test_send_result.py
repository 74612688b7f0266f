"""What every way of sending says of a notice, and what follows of answers."""

from __future__ import annotations

from transport.push.send_result import RETRY_AFTER_MAX_S, retry_after_s, shown_reason


def test_what_is_read_of_an_answer_has_bounds() -> None:
    for text, seconds in (("30", 30.0), ("", 0.0), ("-1", 0.0), ("9" * 300, RETRY_AFTER_MAX_S), ("soon", 0.0)):
        assert retry_after_s(text) == seconds
    assert shown_reason("BadDeviceToken") == "BadDeviceToken" and shown_reason("THIRD_PARTY_AUTH_ERROR")
    for other in ("", "a\nb", "x" * 65, "é", None, 7, {"a": 1}):
        assert shown_reason(other) == ""
