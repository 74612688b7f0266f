"""What the calls of `sessile.proto` take as a session's name, and where a caller is."""

from __future__ import annotations

from typing import Any

from transport.grpc_api.service import _metadata


class Context:
    def __init__(self, metadata: tuple[tuple[str, Any], ...]) -> None:
        self._given = metadata

    def invocation_metadata(self) -> Any:
        return self._given


def test_metadata_by_name_is_text() -> None:
    context: Any = Context((("a", "1"), ("b", "2"), ("a", b"bytes"), ("a", "3")))
    assert _metadata(context) == {"a": ["1", "3"], "b": ["2"]}
