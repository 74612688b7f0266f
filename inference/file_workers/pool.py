"""Has files read for the server: from memory where their result is known, else in worker processes.

Bounded: `WORKERS` files at once, `WAITING_MAX` may wait (`worker_pool`); results are remembered by the hash of their
content, `RESULTS_BYTES_MAX` of them, for clients that send a file again with each question. A large file is hashed in a
thread.

An image that was decoded here stays as it is when a client sends it back: compressed again, it would be another one,
and a history with it would not be known again.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections import OrderedDict
from typing import Final

import msgspec
import structlog

from inference.file_workers.frames import DocumentRequest, FileReply, FileRequest, ImageRequest, read_reply
from inference.file_workers.sandbox import sandbox_layers
from inference.worker_pool import PoolErrors, WorkerCommand, WorkerPool
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
GRACE_S: Final = 10.0  # over a child's own deadline
RESULTS_BYTES_MAX: Final = 16 << 20
RESULT_BYTES_MAX: Final = 1 << 20  # of one; a longer text does not fit into a message
OWN_MAX: Final = 20_000  # decoded images that are known again when a client sends them back
INLINE_BYTES: Final = 64 << 10  # that are hashed on the event loop
_ResultKey = tuple[str | int, ...]
_RESULTS: Final = {"type_unsupported": "unsupported", "unreadable": "unreadable", "too_complex": "too_complex"}


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
        arguments = (str(cpu_s), str(wall_s), str(MEMORY_MIB))
        command = WorkerCommand("inference.file_workers.worker", arguments, read_reply, wall_s + GRACE_S)
        errors = PoolErrors(_overloaded, _unavailable)
        self.pool = WorkerPool[FileRequest, FileReply](command, errors, workers=workers, waiting_max=WAITING_MAX)
        self._results: OrderedDict[_ResultKey, FileReply] = OrderedDict()
        self._results_bytes = 0
        self._own: OrderedDict[str, DecodedImage] = OrderedDict()  # results by their own hashes, without their bytes

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

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the workers. Files in progress, and those that wait for a worker, raise Unavailable."""
        await self.pool.close()

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
        reply = self._recall(_key(ImageRequest(b"", edge_max, bytes_max), sha256))
        return None if reply is None else reply.image

    async def _read(self, request: FileRequest, sha256: str, counter: Counter) -> FileReply:
        """Returns the reply to a request for content of this hash, from memory or from a worker. Raises a reply's fault
        as an error."""
        key = _key(request, sha256)
        known = self._recall(key)
        if known is not None:
            return known
        reply = await self.pool.exchange(request, lambda _: self._on_end(counter))
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
        if size > RESULT_BYTES_MAX or key in self._results:
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

    def _on_end(self, counter: Counter) -> None:
        counter.add("worker_ended")
        log.warning("file_worker_ended")


async def _sha256(content: bytes) -> str:
    if len(content) <= INLINE_BYTES:
        return hashlib.sha256(content).hexdigest()
    return (await asyncio.to_thread(hashlib.sha256, content)).hexdigest()


def _key(request: FileRequest, sha256: str) -> _ResultKey:
    """Returns the key under which a result is remembered. `sha256` is the hash of the request's content."""
    if isinstance(request, ImageRequest):
        return "image", request.edge_max, request.bytes_max, sha256
    return "document", request.filename.lower(), request.media_type, sha256


def _size(reply: FileReply) -> int:
    """Returns about how many bytes of memory a result takes."""
    size = 256
    if reply.document is not None:
        size += sys.getsizeof(reply.document.text)
    if reply.image is not None:
        size += len(reply.image.data)
    return size


def _overloaded() -> Overloaded:
    return Overloaded("overloaded", "Too many files wait to be read.", retry_after_ms=2_000)


def _unavailable() -> Unavailable:
    return Unavailable("file_workers_unavailable", "Files cannot be read at the moment.", retry_after_ms=1_000)
