"""Web Push: a message encrypted for one device (RFC 8291), handed to its push service (RFC 8030), signed (RFC 8292).

Of the same session only the newest message waits at the push service (its topic); one that cannot be delivered within
`TTL_S` is dropped there.
"""

from __future__ import annotations

from typing import Final

import http_ece
from cryptography.hazmat.primitives.asymmetric import ec

from sessions.model.push import PushDelivery, WebPushTarget
from sessions.model.types import UnixMs
from transport.push.door import decode_key
from transport.push.outbound import OutboundClient
from transport.push.send_result import SendResult, push_payload, retry_after_s, topic_of
from transport.push.vapid import VapidKey

TTL_S: Final = 24 * 3600


class WebPush:
    def __init__(self, key: VapidKey, outbound: OutboundClient) -> None:
        self._key = key
        self._outbound = outbound

    async def send(self, delivery: PushDelivery, target: WebPushTarget, now: UnixMs) -> SendResult:
        """Encrypts a notice for a browser and sends it. Raises Forbidden for an address inside the network, Unavailable
        if the push service does not answer."""
        self._outbound.check_address(target.endpoint)  # before it is signed for
        body = http_ece.encrypt(
            push_payload(delivery),
            private_key=ec.generate_private_key(ec.SECP256R1()),
            dh=decode_key(target.p256dh),
            auth_secret=decode_key(target.auth),
            version="aes128gcm",
        )
        headers = {
            "authorization": self._key.authorization(target.endpoint, now),
            "content-encoding": "aes128gcm",
            "content-type": "application/octet-stream",
            "ttl": str(TTL_S),
            "topic": topic_of(delivery.key),
            "urgency": "normal" if delivery.notice.cause == "answer" else "high",
        }
        answer = await self._outbound.post(target.endpoint, body, headers)
        match answer.status:
            case 404 | 410:
                return SendResult("gone")
            case status if 200 <= status < 300:
                return SendResult("sent")
            case 408 | 425 | 429:
                return SendResult("later", retry_after_s(answer.retry_after))
            case status if status >= 500:
                return SendResult("later", retry_after_s(answer.retry_after))
        return SendResult("refused")
