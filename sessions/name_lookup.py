"""Resolves host names in threads of its own, which neither other work nor the end of the process waits for.

A name that strangers chose may have a server that never answers: each look-up then holds a thread up for half a
minute. The event loop's own threads for that are few, and everything else that connects needs them.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Final

AT_ONCE: Final = 32


class NameLookup:
    """Resolves names for one purpose, with at most `at_once` look-ups at a time. Each purpose has its own, so that none
    holds another up."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._room = asyncio.Semaphore(at_once)

    async def addresses(self, host: str, port: int) -> Sequence[str]:
        """Returns the addresses of a host's name; an address is returned as it is. Raises OSError and UnicodeError. If
        the caller is cancelled, its look-up keeps a place until it has ended."""
        try:
            return [str(ip_address(host))]
        except ValueError:
            await self._room.acquire()
        loop = asyncio.get_running_loop()
        resolved: asyncio.Future[list[str]] = loop.create_future()

        def end(result: list[str] | Exception) -> None:
            self._room.release()
            if resolved.done():
                return
            if isinstance(result, Exception):
                resolved.set_exception(result)
            else:
                resolved.set_result(result)

        def work() -> None:
            result: list[str] | Exception
            try:
                result = [str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
            except (OSError, UnicodeError) as error:
                result = error
            except ValueError as error:  # a NUL in it
                result = OSError(str(error))
            if not loop.is_closed():
                loop.call_soon_threadsafe(end, result)

        threading.Thread(target=work, name="name-lookup", daemon=True).start()
        return await resolved
