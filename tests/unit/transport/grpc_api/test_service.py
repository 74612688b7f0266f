"""What the calls of `sessile.proto` take as a session's name, and where a caller is."""

from __future__ import annotations

from typing import Any

import pytest

from transport.grpc_api.service import _address, _metadata


class Context:
    def __init__(self, metadata: tuple[tuple[str, Any], ...]) -> None:
        self._given = metadata

    def invocation_metadata(self) -> Any:
        return self._given


@pytest.mark.parametrize(
    ("peer", "address"),
    [("ipv4:127.0.0.1:4711", "127.0.0.1"), ("ipv6:%5B::1%5D:4711", "::1"), ("unix:/tmp/x", None), ("", None)],
)
def test_the_address_of_a_caller(peer: str, address: str | None) -> None:
    assert _address(peer) == address


def test_metadata_by_name_is_text() -> None:
    context: Any = Context((("a", "1"), ("b", "2"), ("a", b"bytes"), ("a", "3")))
    assert _metadata(context) == {"a": ["1", "3"], "b": ["2"]}
