"""A kubelet's probes: what is looked at, how often, and after how many answers the kubelet believes them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from socket import socket
from typing import Any, Final, NamedTuple

from tests.support.kubernetes.manifests import Manifest

SUCCESS: Final = range(200, 400)


class Probe(NamedTuple):
    """A probe with Kubernetes' defaults."""

    path: str
    port: int
    period_s: float
    timeout_s: float
    delay_s: float
    failures: int
    successes: int


def probe_of(container: Manifest, kind: str) -> Probe | None:
    """`kind`: startupProbe, readinessProbe or livenessProbe. NotImplementedError for one that is no HTTP request."""
    given: dict[str, Any] | None = container.get(kind)
    if given is None:
        return None
    if "httpGet" not in given:
        raise NotImplementedError(f"{kind}: this kubelet sends HTTP requests alone")
    port = given["httpGet"]["port"]
    ports = {each["name"]: each["containerPort"] for each in container.get("ports", ())}
    return Probe(
        path=given["httpGet"].get("path", "/"),
        port=port if isinstance(port, int) else ports[port],
        period_s=given.get("periodSeconds", 10),
        timeout_s=given.get("timeoutSeconds", 1),
        delay_s=given.get("initialDelaySeconds", 0),
        failures=given.get("failureThreshold", 3),
        successes=given.get("successThreshold", 1),
    )


class Verdict:
    """Turns answers into a state: it changes after so many answers of one kind in a row."""

    def __init__(self, probe: Probe, *, now: bool) -> None:
        self.good = now
        self._probe = probe
        self._row = 0
        self._last = now

    def take(self, good: bool) -> bool:
        """One answer; whether the state has been reached anew, or confirmed."""
        self._row = self._row + 1 if good is self._last else 1
        self._last = good
        if self._row >= (self._probe.successes if good else self._probe.failures):
            self.good = good
            return True
        return False


async def http_status(make: Callable[[], socket], address: str, port: int, path: str, timeout_s: float) -> int:
    """The status of a GET; 0 where there is no answer in time."""
    with contextlib.suppress(OSError, TimeoutError, ValueError, IndexError):
        async with asyncio.timeout(timeout_s):
            status, _ = await http_get(make, address, port, path)
            return status
    return 0


async def http_get(make: Callable[[], socket], address: str, port: int, path: str) -> tuple[int, bytes]:
    """A plain GET over a socket from elsewhere: (status, body)."""
    connection = make()
    try:
        await asyncio.get_running_loop().sock_connect(connection, (address, port))
        reader, writer = await asyncio.open_connection(sock=connection)
    except BaseException:
        connection.close()
        raise
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {address}:{port}\r\nConnection: close\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.read()
    finally:
        writer.close()
    if b"transfer-encoding: chunked" in head.lower():
        body = _joined(body)
    return int(head.split(b" ", 2)[1]), body


def _joined(chunks: bytes) -> bytes:
    whole = b""
    while chunks:
        length, _, chunks = chunks.partition(b"\r\n")
        size = int(length, 16)
        whole, chunks = whole + chunks[:size], chunks[size + 2 :]
        if not size:
            break
    return whole
