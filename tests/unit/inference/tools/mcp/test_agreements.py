"""What was agreed to, in memory."""

from __future__ import annotations

from inference.tools.mcp.agreements import MemoryPins


async def test_a_new_server_has_none_and_more_is_added() -> None:
    pins = MemoryPins()
    assert await pins.agreed("", "town") is None
    await pins.remember("", "town", {})
    assert await pins.agreed("", "town") == {}
    await pins.remember("", "town", {"a": "1"})
    await pins.remember("", "town", {"b": "2"})
    assert await pins.agreed("", "town") == {"a": "1", "b": "2"} and await pins.agreed("acme", "town") is None
