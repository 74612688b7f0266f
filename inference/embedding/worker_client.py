"""One embedding worker process for the server: started at the first batch, ended when it hangs, started again.

One request at a time. A worker that died under a request is started anew, and the request tried once more: a second
death is the request's. A worker that cannot load its model says why, and every request does until it can.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from inference.embedding.frames import EmbeddingReply, WorkerRequest, read_reply
from inference.worker_process import encode_frame, end_worker, start_worker
from sessions.model.errors import Unavailable

log = structlog.get_logger(__name__)

HANG_S: Final = 120.0
START_S: Final = 120.0  # at the lowest priority, on a machine that is busy
ATTEMPTS: Final = 2


def embeddings_unavailable(message: str) -> Unavailable:
    return Unavailable("embeddings_unavailable", message, retry_after_ms=1_000)


class EmbeddingWorker:
    """A worker process. `exchange` is called by one task at a time; `end` by the task that closes."""

    def __init__(self, name: str, niceness: int) -> None:
        self.restarts = 0
        self._log = log.bind(worker=name)
        self._niceness = niceness
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def exchange(self, request: WorkerRequest) -> EmbeddingReply:
        """Sends a request; returns the reply. Raises Unavailable. If cancelled it ends the process, whose answer nobody
        would read."""
        for attempt in range(ATTEMPTS):
            process = await self._running()
            assert process.stdin is not None and process.stdout is not None
            whole = False
            try:
                async with asyncio.timeout(HANG_S):
                    process.stdin.write(encode_frame(request))
                    await process.stdin.drain()
                    reply = await read_reply(process.stdout)
                whole = True
                return reply
            except (OSError, EOFError, ValueError, TimeoutError) as error:
                self.restarts += 1
                self._log.warning("embedding_worker_lost", error=type(error).__name__, attempt=attempt)
            finally:
                if not whole:
                    await self.end()
        raise embeddings_unavailable("The embedding model ended twice under this request.")

    async def end(self) -> None:
        process, self._process = self._process, None
        await end_worker(process)

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        ready: EmbeddingReply | None = None
        try:
            async with asyncio.timeout(START_S):
                self._process = process = await start_worker("inference.embedding.worker", str(self._niceness))
                assert process.stdout is not None
                ready = await read_reply(process.stdout)
        except (OSError, EOFError, ValueError, TimeoutError) as error:
            raise embeddings_unavailable("The embedding model does not start.") from error
        finally:
            if ready is None or ready.error is not None:
                await self.end()
        if ready.error is not None:
            self._log.error("embedding_model_failed", error=ready.error)
            raise embeddings_unavailable("The embedding model cannot be loaded.")
        return process
