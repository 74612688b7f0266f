"""Vector stores: what is known of one, of its files and of what is found, and the port of the index behind them.

A store belongs to its tenant and, where it was made for one, to an end user, as sessions do. A file of it is a
document's text with its attributes; its chunks have a vector, words, and their place in that text.

    added ─► in_progress ─claim─► chunks put ─► completed
                  ^          │         └─────► failed (what cannot be read)
                  └──────────┘ whoever claimed it died

`persistence.passages` implements the port on SQLite and on PostgreSQL. Knows no embedding model, no door.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, NewType, Protocol

import msgspec

from sessions.model.errors import NotFound
from sessions.model.types import Principal, SessionId, TenantId, UnixMs
from sessions.retrieval.chunking import Chunking
from sessions.retrieval.filters import AttributeFilter, Value

StoreId = NewType("StoreId", str)
DocumentId = NewType("DocumentId", str)
FileStatus = Literal["in_progress", "completed", "failed", "cancelled"]

PASSAGES: Final = SessionId("~passages")  # what is stored of documents, in a session's place
TEXT_CHARACTERS_MAX: Final = 2_000_000
STORES_MAX: Final = 1_000  # of a tenant
FILES_MAX: Final = 10_000  # of a store
CHUNKS_MAX: Final = 50_000  # of a file
RESULTS_MAX: Final = 50


class VectorStore(msgspec.Struct, frozen=True, kw_only=True):
    """`user` None: of the tenant as a whole."""

    id: StoreId
    tenant: TenantId
    user: str | None
    model: str  # that its vectors are of
    dimensions: int
    created_at: UnixMs
    name: str = ""
    metadata: dict[str, str] = {}


class StoreFile(msgspec.Struct, frozen=True, kw_only=True):
    id: DocumentId
    store: StoreId
    tenant: TenantId
    filename: str
    created_at: UnixMs
    status: FileStatus = "in_progress"
    error: str = ""
    attributes: dict[str, Value] = {}
    chunking: Chunking = Chunking()
    batch: str = ""
    size: int = 0  # bytes of its text


class NewChunk(msgspec.Struct, frozen=True):
    text: str
    start: int
    end: int
    vector: bytes


class Passage(msgspec.Struct, frozen=True, kw_only=True):
    """A chunk that was found. `text` stands at `start` to `end` of its file's text."""

    number: int
    file: DocumentId
    filename: str
    attributes: dict[str, Value]
    text: str
    start: int
    end: int
    score: float = 0.0


class FileCounts(msgspec.Struct, frozen=True):
    in_progress: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    size: int = 0

    @property
    def total(self) -> int:
        return self.in_progress + self.completed + self.failed + self.cancelled


class PassageIndex(Protocol):
    """The stores of all tenants. Every call names its tenant, which stands in every query. All raise Unavailable."""

    async def create(self, store: VectorStore) -> None:
        """Raises Limited where the tenant has `STORES_MAX`."""
        ...

    async def store(self, tenant: TenantId, store_id: StoreId) -> VectorStore | None: ...

    async def stores(self, tenant: TenantId, user: str | None, *, anybody: bool) -> list[VectorStore]:
        """Newest first. `anybody`: every user's; else those of `user` alone."""
        ...

    async def change(self, store: VectorStore) -> None:
        """Its name and metadata."""
        ...

    async def delete(self, tenant: TenantId, store_id: StoreId) -> bool:
        """With all that is in it. What was in it is found by no search that begins after this returns."""
        ...

    async def forget_user(self, tenant: TenantId, user: str) -> int:
        """Deletes the stores of an end user; how many."""
        ...

    async def counts(self, tenant: TenantId, store_id: StoreId, *, batch: str = "") -> FileCounts: ...

    async def add_file(self, file: StoreFile, text: str) -> None:
        """Raises Limited where the store has `FILES_MAX`."""
        ...

    async def file(self, tenant: TenantId, store_id: StoreId, file_id: DocumentId) -> StoreFile | None: ...

    async def files(self, tenant: TenantId, store_id: StoreId, *, batch: str = "") -> list[StoreFile]:
        """Newest first."""
        ...

    async def text(self, tenant: TenantId, store_id: StoreId, file_id: DocumentId) -> str | None: ...

    async def set_attributes(
        self, tenant: TenantId, store_id: StoreId, file_id: DocumentId, attributes: Mapping[str, Value]
    ) -> bool: ...

    async def remove_file(self, tenant: TenantId, store_id: StoreId, file_id: DocumentId) -> bool: ...

    async def cancel_batch(self, tenant: TenantId, store_id: StoreId, batch: str) -> int:
        """Files of it that wait are not read any more; how many."""
        ...

    async def claim(self, now: UnixMs, until: UnixMs) -> StoreFile | None:
        """The oldest file that waits and that nobody is reading, of any tenant. Until then it is the caller's."""
        ...

    async def put_chunks(self, file: StoreFile, chunks: Sequence[NewChunk], *, last: bool, until: UnixMs) -> bool:
        """Adds chunks behind those that are there and holds the claim; with `last` the file is completed, and from then
        on found. False: it was removed or cancelled meanwhile, and nothing of it is left."""
        ...

    async def begin_again(self, file: StoreFile) -> None:
        """Takes away what a reader that died has put."""
        ...

    async def fail(self, file: StoreFile, error: str) -> None: ...

    async def nearest(
        self, tenant: TenantId, store_id: StoreId, vector: bytes, only: AttributeFilter | None, limit: int
    ) -> list[tuple[int, float]]:
        """Chunks by number with their cosine, the nearest first."""
        ...

    async def matching(
        self, tenant: TenantId, store_id: StoreId, words: Sequence[str], only: AttributeFilter | None, limit: int
    ) -> list[int]:
        """Chunks in which some of these words stand, the best first."""
        ...

    async def passages(self, tenant: TenantId, store_id: StoreId, numbers: Sequence[int]) -> list[Passage]:
        """Those that are there, in no order that matters."""
        ...


def may_see_store(principal: Principal, store: VectorStore) -> bool:
    """As `authorization.may_see` has it of sessions."""
    if principal.tenant != store.tenant:
        return False
    if principal.role == "user":
        return principal.user is not None and principal.user == store.user
    return True


def store_not_found(store_id: str) -> NotFound:
    """In the same words for another tenant's, another user's and one that never was."""
    return NotFound("vector_store_not_found", f"There is no vector store {store_id[:64]!r}.", param="vector_store_id")


def file_not_found(file_id: str) -> NotFound:
    return NotFound("vector_store_file_not_found", f"The store has no file {file_id[:64]!r}.", param="file_id")
