"""Vector stores: their properties, their files and the passages found in them, and the port of the index behind them.

A store belongs to its tenant and, where it was made for one, to an end user, as sessions do. A file of it is a
document's text with its attributes; its chunks have a vector, words, and their place in that text.

    added ─► in_progress ─claim─► chunks put ─► completed
                  ^          │         └─────► failed (what cannot be read)
                  └──────────┘ whoever claimed it died

`persistence.passages` implements the port on SQLite and on PostgreSQL. Knows no embedding model, no door.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, Literal, NamedTuple, NewType, Protocol

import msgspec

from sessions.model.authorization import owns
from sessions.model.errors import NotFound
from sessions.model.types import Principal, SessionId, TenantId, UnixMs
from sessions.retrieval.chunking import Chunking
from sessions.retrieval.filters import AttributeFilter, Value

StoreId = NewType("StoreId", str)
DocumentId = NewType("DocumentId", str)
FileStatus = Literal["in_progress", "completed", "failed", "cancelled"]

PASSAGES: Final = SessionId("~passages")  # names, in place of a session, what is stored of documents
TEXT_CHARACTERS_MAX: Final = 2_000_000
STORES_MAX: Final = 1_000  # of a tenant
FILES_MAX: Final = 10_000  # of a store
CHUNKS_MAX: Final = 50_000  # of a file
STORE_CHUNKS_MAX: Final = 1_000_000  # of a store; their signs are kept in memory
RESULTS_MAX: Final = 50


class VectorStore(msgspec.Struct, frozen=True, kw_only=True):
    """A vector store. With `user` None it belongs to the tenant as a whole."""

    id: StoreId
    tenant: TenantId
    user: str | None
    model: str  # the embedding model of its vectors
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
    size: int = 0  # of its text, in bytes
    claimed_until: UnixMs = UnixMs(0)  # by the reader that has claimed it; 0 where nobody asks to read it


class NewChunk(msgspec.Struct, frozen=True):
    text: str
    start: int
    end: int
    vector: bytes


class Passage(msgspec.Struct, frozen=True, kw_only=True):
    """A chunk that a search found. `text` is characters `start` to `end` of its file's text."""

    number: int
    file: DocumentId
    filename: str
    attributes: dict[str, Value]
    text: str
    start: int
    end: int
    score: float = 0.0


class DocumentKey(NamedTuple):
    """Identifies a document of a tenant, which may be in several stores."""

    tenant: TenantId
    id: DocumentId


class FileCounts(msgspec.Struct, frozen=True):
    in_progress: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    size: int = 0

    @property
    def total(self) -> int:
        return self.in_progress + self.completed + self.failed + self.cancelled


class ListSlice(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a list that is read: at most `limit` entries behind the one with the id `after`, or from the
    beginning; None for `limit` reads all."""

    after: str | None = None
    limit: int | None = None
    newest_first: bool = True


WHOLE_LIST: Final = ListSlice()


class PassageIndex(Protocol):
    """The vector stores of all tenants. Every call names its tenant, which is part of every query. All methods raise
    Unavailable."""

    async def create(self, store: VectorStore) -> None:
        """Adds a store. Raises Limited if the tenant has `STORES_MAX`."""
        ...

    async def store(self, tenant: TenantId, store_id: StoreId) -> VectorStore | None: ...

    async def stores_of_ids(self, tenant: TenantId, store_ids: Collection[StoreId]) -> list[VectorStore]:
        """Returns those of a tenant's stores that have one of these ids, newest first."""
        ...

    async def stores(
        self, tenant: TenantId, user: str | None, *, anybody: bool, part: ListSlice = WHOLE_LIST
    ) -> list[VectorStore]:
        """Returns a part of a tenant's stores: with `anybody` of those of every user, else only of those of `user`."""
        ...

    async def change(self, store: VectorStore) -> None:
        """Changes a store's name and metadata."""
        ...

    async def delete(self, tenant: TenantId, store_id: StoreId) -> bool:
        """Deletes a store with everything in it; returns False if there was none. No search that begins after the call
        finds anything of it."""
        ...

    async def forget_user(self, tenant: TenantId, user: str) -> int:
        """Deletes the stores of an end user; returns how many."""
        ...

    async def counts(self, tenant: TenantId, store_id: StoreId, *, batch: str = "") -> FileCounts: ...

    async def add_file(self, file: StoreFile, text: str, *, replace: bool = False) -> None:
        """Adds a file with its extracted text; it then waits to be split and embedded, unless its status says that it
        has failed. A file of this id that the store has already is replaced in the same transaction if `replace` is
        true; otherwise it stays, and only moves to the batch of `file` if that has one. Raises Limited if the store
        already has `FILES_MAX` other files."""
        ...

    async def file(self, tenant: TenantId, store_id: StoreId, file_id: DocumentId) -> StoreFile | None: ...

    async def files(
        self,
        tenant: TenantId,
        store_id: StoreId,
        *,
        batch: str = "",
        status: FileStatus | None = None,
        part: ListSlice = WHOLE_LIST,
    ) -> list[StoreFile]:
        """Returns a part of a store's files; with `batch` of those of this batch, with `status` of this status."""
        ...

    async def text(self, tenant: TenantId, store_id: StoreId, file_id: DocumentId) -> str | None: ...

    async def set_attributes(
        self, tenant: TenantId, store_id: StoreId, file_id: DocumentId, attributes: Mapping[str, Value]
    ) -> bool: ...

    async def remove_file(self, tenant: TenantId, store_id: StoreId, file_id: DocumentId) -> bool: ...

    async def remove_document(self, tenant: TenantId, file_id: DocumentId) -> int:
        """Removes a file from all stores of a tenant; returns from how many."""
        ...

    async def documents(
        self, tenant: TenantId | None, prefix: str, after: DocumentKey | None, limit: int
    ) -> list[DocumentKey]:
        """Returns a page of the documents whose ids begin with `prefix`, of one tenant or (None) of all, each once,
        those behind `after` in the order of their tenants and ids."""
        ...

    async def present(self, tenant: TenantId, documents: Collection[DocumentId]) -> set[DocumentId]:
        """Returns those of these documents that are in at least one store of the tenant."""
        ...

    async def cancel_batch(self, tenant: TenantId, store_id: StoreId, batch: str) -> int:
        """Cancels the reading of a batch's files that still wait; returns how many."""
        ...

    async def claim(self, now: UnixMs, until: UnixMs) -> StoreFile | None:
        """Claims the oldest file, of all tenants, that waits and that nobody reads; it is the caller's until the time
        `until`. Removes the chunks that an earlier reader, which has died, has added. Returns None if there is none."""
        ...

    async def put_chunks(self, file: StoreFile, chunks: Sequence[NewChunk], *, last: bool, until: UnixMs) -> bool:
        """Adds chunks behind those of earlier calls, and prolongs the claim from `file.claimed_until` to `until`. With
        `last` the file is completed, and searches find it from now on. Returns False, and adds nothing, if the claim is
        not the caller's any more: the file was removed, cancelled, added anew or claimed by another reader. Raises
        Limited if the store would have more than `STORE_CHUNKS_MAX`."""
        ...

    async def fail(self, file: StoreFile, error: str) -> bool:
        """Marks a claimed file as failed. Returns False, and changes nothing, if the claim is not the caller's any
        more."""
        ...

    async def nearest(
        self, tenant: TenantId, store_id: StoreId, vector: bytes, only: AttributeFilter | None, limit: int
    ) -> list[tuple[int, float]]:
        """Returns the numbers of the chunks nearest to `vector` with their cosine, the nearest first."""
        ...

    async def matching(
        self, tenant: TenantId, store_id: StoreId, words: Sequence[str], only: AttributeFilter | None, limit: int
    ) -> list[int]:
        """Returns the numbers of chunks that contain at least one of these words, the best first. In a large
        store only words that few chunks have find some; if all are common, several of them together do."""
        ...

    async def passages(self, tenant: TenantId, store_id: StoreId, numbers: Sequence[int]) -> list[Passage]:
        """Returns the chunks with these numbers as far as they exist, in no particular order."""
        ...


def may_see_store(principal: Principal, store: VectorStore) -> bool:
    return owns(principal, store.tenant, store.user)


def may_search_store(tenant: TenantId, user: str | None, store: VectorStore) -> bool:
    """Returns whether a turn of `user` may search a store that a client has named: the tenant's stores without a user,
    and those of this user. Whoever names a store must also see it (`may_see_store`), so a user's turn searches a store
    of the whole tenant only if a service named it."""
    return store.tenant == tenant and (store.user or None) in (None, user or None)


def store_not_found(store_id: str) -> NotFound:
    """Returns the error for another tenant's store, another user's, and one that never existed. It is the same for all
    of them."""
    return NotFound("vector_store_not_found", f"There is no vector store {store_id[:64]!r}.", param="vector_store_id")


def file_not_found(file_id: str) -> NotFound:
    return NotFound("vector_store_file_not_found", f"The store has no file {file_id[:64]!r}.", param="file_id")
