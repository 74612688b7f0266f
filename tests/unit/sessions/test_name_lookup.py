"""Names are looked up in threads of their own."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import pytest

from sessions.name_lookup import NameLookup


async def test_a_name_and_an_address() -> None:
    lookup = NameLookup()
    assert "127.0.0.1" in await lookup.addresses("localhost", 80)
    assert await lookup.addresses("::1", 80) == ["::1"]
    with pytest.raises(OSError, match=r"."):
        await lookup.addresses("no-such-name.invalid", 443)
    with pytest.raises((OSError, UnicodeError)):
        await lookup.addresses("a\0b", 443)


async def test_names_that_are_not_answered_take_no_thread_of_anybody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    going, real = threading.Event(), socket.getaddrinfo

    def slow(host: str, *more: Any, **about: Any) -> Any:
        if host.endswith(".slow.example"):
            going.wait(20)
        return real("127.0.0.1", *more, **about)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    lookup = NameLookup(at_once=40)
    waiting = [asyncio.create_task(lookup.addresses(f"{n}.slow.example", 443)) for n in range(40)]
    await asyncio.sleep(0)
    try:
        async with asyncio.timeout(60):
            assert await asyncio.to_thread(int, "5") == 5
            assert await NameLookup().addresses("a.example", 443) == ["127.0.0.1"]
        waiting[0].cancel()
        await asyncio.gather(waiting[0], return_exceptions=True)
        with pytest.raises(TimeoutError):  # who gave up still has its place
            async with asyncio.timeout(0.05):
                await lookup.addresses("one-more.example", 443)
    finally:
        going.set()
    assert all(each == ["127.0.0.1"] for each in await asyncio.gather(*waiting[1:]))
    assert await lookup.addresses("one-more.example", 443) == ["127.0.0.1"]
