"""The tests of this folder share one TLS context for the clients of a process."""

from __future__ import annotations

import functools
from types import ModuleType

import httpx._transports.default as httpx_transport
import httpx2._transports.default as httpx2_transport


def _share_contexts(transport: ModuleType) -> None:
    """Makes clients that differ in nothing share a context: each read the authorities anew, for 30 ms."""
    transport.create_ssl_context = functools.cache(transport.create_ssl_context)  # type: ignore[attr-defined]


for _transport in (httpx_transport, httpx2_transport):
    _share_contexts(_transport)
