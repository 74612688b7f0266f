"""Why a link went down, by the status of its stream."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio
import pytest

from actors.peer.links import LinkDown
from transport.peer.client import ClientCarrier


class Call:
    """A stream that has ended with a status."""

    def __init__(self, code: grpc.StatusCode) -> None:
        self._code = code

    async def read(self) -> Any:
        return grpc.aio.EOF

    async def code(self) -> grpc.StatusCode:
        return self._code

    async def details(self) -> str:
        return "why"


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, "rejected"),
        (grpc.StatusCode.PERMISSION_DENIED, "rejected"),
        (grpc.StatusCode.UNAVAILABLE, "reset"),
        (grpc.StatusCode.OK, "reset"),
    ],
)
async def test_a_refusal_is_told_from_a_loss(code: grpc.StatusCode, cause: str) -> None:
    channel: Any = None
    with pytest.raises(LinkDown) as caught:
        await ClientCarrier(channel, Call(code)).receive()
    assert caught.value.reason == cause
