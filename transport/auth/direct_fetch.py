"""Fetches from the one address that was named: no redirect is followed, and no answer takes longer than it may.

A redirect would carry a key to another host, or take an issuer's keys from an open line. A server that answers a byte a
second, or never, holds a thread up for as long as it likes: so `fetch_direct` has threads of its own, a few for each
address, which neither other work nor the end of the process waits for. What is no HTTP is an OSError like the rest.
"""

from __future__ import annotations

import asyncio
import threading
import urllib.error
import urllib.request
from collections import defaultdict, deque
from concurrent.futures import Future
from http.client import HTTPException, HTTPMessage
from typing import IO, Any, Final, NamedTuple

from transport.proxies import proxy_for, through

AT_ONCE: Final = 8  # threads per URL
WAITING_MAX: Final = 64  # requests per URL that wait for a thread
WHOLE_S: Final = 10.0  # for the whole answer, waiting included
_PIECE_BYTES: Final = 64 * 1024


class DirectAnswer(NamedTuple):
    status: int
    body: bytes


class _RefuseRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: Any, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str) -> None:
        """Follows no redirect: the caller gets it as an HTTPError."""


def open_direct(request: urllib.request.Request, timeout_s: float) -> Any:
    """Opens a URL and returns the answer, to be read and closed. Blocking. Raises HTTPError, also for a redirect, and
    OSError, which names the proxy if there is one in between."""
    url = request.full_url
    direct = () if proxy_for(url) else (urllib.request.ProxyHandler({}),)
    try:
        return urllib.request.build_opener(_RefuseRedirects, *direct).open(request, timeout=timeout_s)
    except urllib.error.HTTPError:
        raise
    except HTTPException as error:
        raise OSError(f"it does not speak HTTP: is it the port of another door?{through(url)}") from error
    except OSError as error:
        if proxy_for(url) is None:
            raise
        raise OSError(f"{error}{through(url)}") from error


async def fetch_direct(request: urllib.request.Request, timeout_s: float, *, bytes_max: int) -> DirectAnswer:
    """Fetches a URL and returns the answer, whatever its status, with at most one byte more than `bytes_max`.
    `timeout_s` is for each step. Raises OSError."""
    fetch = _Fetch(request, timeout_s, bytes_max, threading.Event())
    try:
        async with asyncio.timeout(WHOLE_S):
            return await asyncio.wrap_future(_THREADS.submit(fetch))
    except TimeoutError as error:
        raise OSError(f"no whole answer within {WHOLE_S:g} s") from error
    finally:
        fetch.given_up.set()


class _Fetch(NamedTuple):
    request: urllib.request.Request
    timeout_s: float
    bytes_max: int
    given_up: threading.Event  # set once nobody waits for it

    def run(self) -> DirectAnswer:
        try:
            try:
                answer = open_direct(self.request, self.timeout_s)
            except urllib.error.HTTPError as error:
                answer = error
            with answer:
                return DirectAnswer(answer.status, self._read(answer))
        except HTTPException as error:
            raise OSError(f"its answer is broken: {error!r}") from error

    def _read(self, answer: Any) -> bytes:
        body = bytearray()
        while len(body) <= self.bytes_max:
            piece = answer.read1(_PIECE_BYTES)
            if not piece:
                break
            body += piece
            if self.given_up.is_set():
                break
        return bytes(body[: self.bytes_max + 1])


class _Threads:
    """The threads for each URL, which end when no request waits. They are daemons, so nothing joins them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy: defaultdict[str, int] = defaultdict(int)
        self._waiting: dict[str, deque[tuple[_Fetch, Future[DirectAnswer]]]] = {}

    def submit(self, fetch: _Fetch) -> Future[DirectAnswer]:
        """Queues a fetch. Raises OSError if too many wait for this URL."""
        where, future = fetch.request.full_url, Future[DirectAnswer]()
        with self._lock:
            waiting = self._waiting.setdefault(where, deque())
            if len(waiting) >= WAITING_MAX:
                for left in [each for each in waiting if each[1].cancelled()]:
                    waiting.remove(left)
            if len(waiting) >= WAITING_MAX:
                raise OSError("too many requests wait for it")
            waiting.append((fetch, future))
            if self._busy[where] < AT_ONCE:
                self._busy[where] += 1
                threading.Thread(target=self._work, args=(where,), name="direct-fetch", daemon=True).start()
        return future

    def _work(self, where: str) -> None:
        while True:
            with self._lock:
                waiting = self._waiting[where]
                if not waiting:
                    self._busy[where] -= 1
                    if not self._busy[where]:
                        del self._busy[where], self._waiting[where]
                    return
                fetch, future = waiting.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(fetch.run())
            except Exception as error:  # noqa: BLE001 - raised at its waiter
                future.set_exception(error)


_THREADS: Final = _Threads()
