"""What every way of sending says of a notice, and what follows of answers."""

from __future__ import annotations

from sessions.model.push import KEPT_MS
from sessions.model.types import SessionKey, TenantId
from tests.support.stores.journals import NOW
from tests.support.stores.push_rows import a_delivery
from transport.push.send_result import (
    RETRY_AFTER_MAX_S,
    expires_s,
    push_payload,
    retry_after_s,
    shown_reason,
    topic_of,
)


def test_a_payload_has_ids_and_a_topic_says_nothing() -> None:
    delivery = a_delivery()
    assert push_payload(delivery) == (
        '{"v":1,"id":"resp_1:7","cause":"tool_call","session":"sess_ünï","response":"resp_1","offset":7}'.encode()
    )
    key = delivery.key
    assert len(topic_of(key)) == 32 and topic_of(key) != topic_of(SessionKey(TenantId("beta"), key.session))
    assert expires_s(delivery) == (NOW + KEPT_MS) // 1000


def test_what_is_read_of_an_answer_has_bounds() -> None:
    for text, seconds in (("30", 30.0), ("", 0.0), ("-1", 0.0), ("9" * 300, RETRY_AFTER_MAX_S), ("soon", 0.0)):
        assert retry_after_s(text) == seconds
    assert shown_reason("BadDeviceToken") == "BadDeviceToken" and shown_reason("THIRD_PARTY_AUTH_ERROR")
    for other in ("", "a\nb", "x" * 65, "é", None, 7, {"a": 1}):
        assert shown_reason(other) == ""
