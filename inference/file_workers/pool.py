"""Has files read for the server: from memory where their result is known, else in worker processes.

Bounded: `WORKERS` files at once, `WAITING_MAX` may wait, the next one is refused with a time to come back; results are
remembered by the hash of what they were made from, `RESULTS_BYTES_MAX` of them. A large file is hashed in a thread.
Workers start with the first file, and end with `close`, or with the server's pipe. One that ends by itself (killed from
outside, out of memory as a whole) costs a second try in a new one, and no more.

Invariants: every call ends. A cancelled call lets its worker finish, or end, before the next one gets it. An image that
was decoded here stays as it is when a client sends it back: compressed again, it would be another one, and a history
with it would not be known again.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import OrderedDict
from types import TracebackType
from typing import Final

import msgspec
import structlog

from inference.file_workers.frames import DocumentRequest, FileReply, FileRequest, ImageRequest, read_reply
from inference.file_workers.sandbox import sandbox_layers
from inference.worker_process import encode_frame, end_worker, start_worker
from sessions.metrics import Counter, Metrics
from sessions.model.errors import BadInput, Overloaded, TooLarge, Unavailable
from sessions.model.knowledge.documents import DocumentText
from sessions.model.knowledge.images import (
    DECODED_BYTES_MAX,
    EDGE_MAX,
    IMAGE_BYTES_MAX,
    DecodedImage,
    too_complex_image,
)

log = structlog.get_logger(__name__)

WORKERS: Final = 2
WAITING_MAX: Final = 64
CPU_S: Final = 15
WALL_S: Final = 30
MEMORY_MIB: Final = 512
START_S: Final = 30.0
GRACE_S: Final = 10.0  # over a child's own deadline
RESULTS_BYTES_MAX: Final = 32 << 20
OWN_MAX: Final = 20_000  # decoded images that are known again when a client sends them back
INLINE_BYTES: Final = 64 << 10  # that are hashed on the event loop
_ResultKey = tuple[str | int, ...]
_RESULTS: Final = {"type_unsupported": "unsupported", "unreadable": "unreadable", "too_complex": "too_complex"}


class _WorkerEnded(Exception):
    """Raised if the worker has ended without an answer."""


class FileWorkers:
    """The ports TextExtractor and ImageDecoder, with worker processes. Use as a context manager: no process outlives
    it."""

    def __init__(
        self, metrics: Metrics | None = None, *, workers: int = WORKERS, cpu_s: int = CPU_S, wall_s: int = WALL_S
    ) -> None:
        metrics = metrics or Metrics()
        about = "Documents that text was to be taken out of, by result."
        self.documents = metrics.counter("documents", about, "result")
        self.images = metrics.counter("images", "Images that were to be decoded, by result.", "result")
        for counter in (self.documents, self.images):
            for result in ("read", *_RESULTS.values(), "worker_ended"):
                counter.add(result, by=0)
        self._arguments = (str(cpu_s), str(wall_s), str(MEMORY_MIB))
        self._answer_s = wall_s + GRACE_S
        self._free: asyncio.LifoQueue[_Worker] = asyncio.LifoQueue()
        self._workers = [_Worker(self._arguments, self._answer_s) for _ in range(workers)]
        for worker in self._workers:
            self._free.put_nowait(worker)
        self._waiting = 0
        self._tasks: set[asyncio.Task[FileReply]] = set()
        self._results: OrderedDict[_ResultKey, FileReply] = OrderedDict()
        self._results_bytes = 0
        self._own: OrderedDict[str, DecodedImage] = OrderedDict()  # results by their own hashes, without their bytes
        self._closed = False

    async def __aenter__(self) -> FileWorkers:
        layers = sandbox_layers()
        if "seccomp" in layers:
            log.debug("file_sandbox_found", layers=list(layers))
        else:
            log.warning(
                "file_sandbox_weak",
                layers=list(layers),
                hint="files are read within limits of memory and time alone: this kernel filters no system calls",
            )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the workers. Files in progress, and those that wait for a worker, raise Unavailable."""
        self._closed = True
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
        for worker in self._workers:
            await worker.end()

    async def extract(self, content: bytes, *, filename: str = "", media_type: str = "") -> DocumentText:
        reply = await self._read(DocumentRequest(content, filename, media_type), await _sha256(content), self.documents)
        assert reply.document is not None
        return reply.document

    async def decode(
        self, content: bytes, *, edge_max: int = EDGE_MAX, bytes_max: int = DECODED_BYTES_MAX
    ) -> DecodedImage:
        if len(content) > IMAGE_BYTES_MAX:
            self.images.add("too_complex")
            raise too_complex_image(f"it has {len(content):,} bytes, and {IMAGE_BYTES_MAX:,} at most are read")
        sha256 = await _sha256(content)
        own = self._own.get(sha256)
        if own is not None and max(own.width, own.height) <= edge_max and len(content) <= bytes_max:
            return msgspec.structs.replace(own, data=content)
        reply = await self._read(ImageRequest(content, edge_max, bytes_max), sha256, self.images)
        assert reply.image is not None
        return reply.image

    def known(self, sha256: str, *, edge_max: int, bytes_max: int) -> DecodedImage | None:
        reply = self._recall(_image_key(sha256, edge_max, bytes_max))
        return None if reply is None else reply.image

    async def _read(self, request: FileRequest, sha256: str, counter: Counter) -> FileReply:
        """Returns the reply to a request for content of this hash, from memory or from a worker. Raises a reply's fault
        as an error."""
        key = _key(request, sha256)
        known = self._recall(key)
        if known is not None:
            return known
        reply = await self._run(request, counter)
        if reply.fault is None:
            counter.add("read")
            self._remember(key, reply)
            if reply.image is not None:
                self._remember_own(reply.image)
            return reply
        result = _RESULTS[reply.fault.code.partition("_")[2]]
        counter.add(result)
        raise (TooLarge if result == "too_complex" else BadInput)(reply.fault.code, reply.fault.message)

    def _recall(self, key: _ResultKey) -> FileReply | None:
        reply = self._results.get(key)
        if reply is not None:
            self._results.move_to_end(key)
        return reply

    def _remember(self, key: _ResultKey, reply: FileReply) -> None:
        size = _size(reply)
        if size > RESULTS_BYTES_MAX // 4 or key in self._results:
            return
        self._results[key] = reply
        self._results_bytes += size
        while self._results_bytes > RESULTS_BYTES_MAX:
            _, oldest = self._results.popitem(last=False)
            self._results_bytes -= _size(oldest)

    def _remember_own(self, image: DecodedImage) -> None:
        sha256 = hashlib.sha256(image.data).hexdigest()
        self._own[sha256] = msgspec.structs.replace(image, data=b"")
        self._own.move_to_end(sha256)
        if len(self._own) > OWN_MAX:
            self._own.popitem(last=False)

    async def _run(self, request: FileRequest, counter: Counter) -> FileReply:
        if self._waiting >= WAITING_MAX:
            raise Overloaded("overloaded", "Too many files wait to be read.", retry_after_ms=2_000)
        self._waiting += 1
        try:
            worker = await self._free.get()
        finally:
            self._waiting -= 1
        if self._closed:
            self._free.put_nowait(worker)  # for the next who waits, to end in the same way
            raise _closing()
        task = asyncio.create_task(self._try(worker, request, counter))
        self._tasks.add(task)
        task.add_done_callback(lambda _: self._done(task, worker))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if self._closed and task.cancelled():
                raise _closing() from None
            raise

    def _done(self, task: asyncio.Task[FileReply], worker: _Worker) -> None:
        self._tasks.discard(task)
        self._free.put_nowait(worker)
        if not task.cancelled():
            task.exception()  # whoever left does not read it

    async def _try(self, worker: _Worker, request: FileRequest, counter: Counter) -> FileReply:
        """Has a worker read a file; if the worker process ends, a new one gets a second try. Raises Unavailable if that
        ends too, or no process can be started."""
        for _ in range(2):
            try:
                return await worker.exchange(request)
            except _WorkerEnded:
                counter.add("worker_ended")
                log.warning("file_worker_ended")
        raise _unavailable()


class _Worker:
    """One worker process, started when it is needed."""

    def __init__(self, arguments: tuple[str, ...], answer_s: float) -> None:
        self._arguments = arguments
        self._answer_s = answer_s
        self._process: asyncio.subprocess.Process | None = None

    async def exchange(self, request: FileRequest) -> FileReply:
        process = self._process
        if process is None or process.returncode is not None:
            process = await self._start()
        whole = False
        try:
            assert process.stdin is not None and process.stdout is not None
            async with asyncio.timeout(self._answer_s):
                process.stdin.write(encode_frame(request))
                await process.stdin.drain()
                reply = await read_reply(process.stdout)
            whole = True
            return reply
        except (TimeoutError, OSError, EOFError, ValueError) as exc:
            raise _WorkerEnded from exc
        finally:
            if not whole:
                await self.end()

    async def end(self) -> None:
        process, self._process = self._process, None
        await end_worker(process)

    async def _start(self) -> asyncio.subprocess.Process:
        try:
            async with asyncio.timeout(START_S):
                process = await start_worker("inference.file_workers.worker", *self._arguments)
                self._process = process
                assert process.stdout is not None
                await read_reply(process.stdout)  # ready
                return process
        except (OSError, EOFError, TimeoutError, ValueError) as exc:
            with contextlib.suppress(OSError):
                await self.end()
            raise _unavailable() from exc


async def _sha256(content: bytes) -> str:
    if len(content) <= INLINE_BYTES:
        return hashlib.sha256(content).hexdigest()
    return (await asyncio.to_thread(hashlib.sha256, content)).hexdigest()


def _key(request: FileRequest, sha256: str) -> _ResultKey:
    """Returns the key under which a result is remembered. `sha256` is the hash of the request's content."""
    if isinstance(request, ImageRequest):
        return _image_key(sha256, request.edge_max, request.bytes_max)
    return "document", request.filename.lower(), request.media_type, sha256


def _image_key(sha256: str, edge_max: int, bytes_max: int) -> _ResultKey:
    return "image", edge_max, bytes_max, sha256


def _size(reply: FileReply) -> int:
    size = 256
    if reply.document is not None:
        size += 4 * len(reply.document.text) + 128 * len(reply.document.sections)
    if reply.image is not None:
        size += len(reply.image.data)
    return size


def _unavailable() -> Unavailable:
    return Unavailable("file_workers_unavailable", "Files cannot be read at the moment.", retry_after_ms=1_000)


def _closing() -> Unavailable:
    return Unavailable("draining", "This server is shutting down.", retry_after_ms=1_000)
