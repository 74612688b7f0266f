"""Reads documents into vector stores, one file at a time: claims a file, cuts it into chunks, has these embedded, and
stores them.

A claim lasts `CLAIM_MS` and is prolonged each time that chunks are stored; a reader whose claim was lost (its file was
removed, added anew, or claimed by another) stores nothing more. If a file's reader dies, the next one that claims the
file, in this process or another, reads it again from its beginning. Embedding is done in small pieces behind all other
work, because it is never urgent. A file that cannot be read (no text in it, too many chunks) fails with a reason; if a
service is away it is tried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
import structlog

from sessions.backoff import Backoff
from sessions.metrics import Metrics
from sessions.model.errors import SessileError
from sessions.model.types import UnixMs
from sessions.retrieval.chunking import DocumentChunk, chunks
from sessions.retrieval.embedding import Embedder
from sessions.retrieval.vector_stores import CHUNKS_MAX, NewChunk, PassageIndex, StoreFile, VectorStore

Record = Callable[[VectorStore, int], Awaitable[None]]

log = structlog.get_logger(__name__)

CLAIM_MS: Final = 120_000
PIECE_CHUNKS: Final = 32
LOOK_S: Final = 5.0  # between looks for files that other processes were given
FIRST_PAUSE_S: Final = 1.0
PAUSE_MAX_S: Final = 30.0


class DocumentReader:
    """Reads documents into vector stores. `run` works until it is cancelled; `wake` informs it that a file waits."""

    def __init__(
        self,
        index: PassageIndex,
        embedder: Embedder,
        now_ms: Callable[[], UnixMs],
        measures: Metrics,
        backoff: Backoff,
        record: Record,
        look_s: float = LOOK_S,
    ) -> None:
        """`record` is called with a store and the number of tokens that its documents used. Without `wake` the reader
        looks for files every `look_s` seconds."""
        self._index = index
        self._embedder = embedder
        self._now_ms = now_ms
        self._backoff = backoff
        self._record = record
        self._look_s = look_s
        self._woken = asyncio.Event()
        self._files = measures.counter("retrieval_files", "Documents read into vector stores, by outcome.", "outcome")
        self._chunks = measures.counter("retrieval_chunks", "Chunks of documents that were embedded and stored.")

    def wake(self) -> None:
        self._woken.set()

    async def run(self) -> None:
        while True:
            self._woken.clear()
            try:
                while await self.read_one():
                    self._backoff.reset()
                wait_s = self._look_s
            except SessileError as error:  # the index or the model is away: what was claimed is claimed again
                log.warning("document_reading_delayed", error=error.code)
                wait_s = self._backoff.next_s()
            try:
                async with asyncio.timeout(wait_s):
                    await self._woken.wait()
            except TimeoutError:
                continue

    async def read_one(self) -> bool:
        """Reads the file that has waited longest. Returns False if none waits. Raises SessileError if the index or the
        model is away."""
        file = await self._index.claim(self._now_ms(), self._until())
        if file is None:
            return False
        store = await self._index.store(file.tenant, file.store)
        text = await self._index.text(file.tenant, file.store, file.id)
        if store is None or text is None:
            return True  # deleted meanwhile
        try:
            spans = await self._embedder.split(file.tenant, store.model, text)
            cut = list(chunks(text, spans, file.chunking))
            if not cut:
                return await self._failed(file, "There is no text in it.")
            if len(cut) > CHUNKS_MAX:
                return await self._failed(file, f"It has {len(cut)} chunks, of {CHUNKS_MAX} at most.")
            whole = await self._put(file, store, text, cut)
        except SessileError as error:
            if error.status >= 500:
                raise
            return await self._failed(file, error.public_message)
        self._files.add("completed" if whole else "removed")
        return True

    async def _put(self, file: StoreFile, store: VectorStore, text: str, cut: list[DocumentChunk]) -> bool:
        for at in range(0, len(cut), PIECE_CHUNKS):
            piece = cut[at : at + PIECE_CHUNKS]
            texts = [text[each.start : each.end] for each in piece]
            made = await self._embedder.embed(file.tenant, store.model, texts)
            await self._record(store, made.tokens)
            new = [
                NewChunk(said, each.start, each.end, vector)
                for said, each, vector in zip(texts, piece, made.vectors, strict=True)
            ]
            last, until = at + PIECE_CHUNKS >= len(cut), self._until()
            if not await self._index.put_chunks(file, new, last=last, until=until):
                return False
            file = msgspec.structs.replace(file, claimed_until=until)
            self._chunks.add(by=len(new))
        return True

    async def _failed(self, file: StoreFile, why: str) -> bool:
        failed = await self._index.fail(file, why)
        self._files.add("failed" if failed else "removed")
        return True

    def _until(self) -> UnixMs:
        return UnixMs(self._now_ms() + CLAIM_MS)
