"""Files that people upload: their properties, who may see them, and the port of their store.

A file belongs to its tenant and, where it was uploaded for one, to an end user: it is seen by whoever sees that user's
sessions. Its content is a blob, a row of sealed chunks under a data key of its own; the key and the file's name stand
in the file's row, encrypted with the key of the tenant. So whatever deletes the row makes the content unreadable,
wherever its bytes are. One owner's files with equal content share a blob (which is found by a keyed hash of the
content); files of two owners never do, so that nobody can find out what others have.

    begin ─► put_chunk ... ─► finish (a file)          the content stands before its row does
      └────────────────────► abandon, or nobody: the sweep collects it

Knows no doors, and nothing of what files mean: `sessions.ports.TextExtractor` reads their texts.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import AsyncIterator, Collection
from typing import Final, Literal, NewType, Protocol, get_args

import msgspec

from sessions.model.authorization import demand, owns
from sessions.model.errors import Limited, NotFound
from sessions.model.types import Principal, TenantId, UnixMs

FileId = NewType("FileId", str)
BlobId = NewType("BlobId", str)

UploadPurpose = Literal["assistants", "batch", "fine-tune", "vision", "user_data", "evals"]
FilePurpose = Literal[UploadPurpose, "assistants_output"]  # the last: written by a run of a code tool
PURPOSES: Final[tuple[UploadPurpose, ...]] = get_args(UploadPurpose)
CHUNK_BYTES: Final = 256 * 1024
FILE_ID_PREFIX: Final = "file-"
FILENAME_MAX: Final = 255  # characters
UPLOAD_MS: Final = 3_600_000
"""How long an unfinished upload is kept; then the sweep collects it."""

_MEDIA_TYPE: Final = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]{0,63}/[a-z0-9][a-z0-9!#$&^_.+-]{0,63}")
UNKNOWN_TYPE: Final = "application/octet-stream"


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """An uploaded file. With `user` None it belongs to the tenant as a whole. `sha256` is the hash of its content, in
    hexadecimal digits."""

    id: FileId
    tenant: TenantId
    user: str | None
    filename: str
    purpose: FilePurpose
    media_type: str  # as the uploader says; nothing is decided by it alone
    size: int  # bytes
    sha256: str
    blob: BlobId
    created_at: UnixMs
    expires_at: UnixMs | None = None


class FileTotals(msgspec.Struct, frozen=True):
    files: int = 0
    size: int = 0  # bytes; content that files share counts for each


class FileQuota(msgspec.Struct, frozen=True):
    """How many files and bytes a tenant or user may have; a field that is None sets no limit."""

    files: int | None = None
    size: int | None = None

    def refusal(self, have: FileTotals, size: int, whose: str) -> Limited | None:
        """Returns the error for one more file of `size` bytes; None if there is room."""
        if self.files is not None and have.files + 1 > self.files:
            what = f"{whose} has {have.files} files, and {self.files} at most"
        elif self.size is not None and have.size + size > self.size:
            what = f"{whose} has {have.size} bytes in files, and {self.size} at most"
        else:
            return None
        return Limited(
            "file_quota_exceeded", f"There is no room for this file: {what}. Delete one first.", retryable=False
        )


class FileQuotas(msgspec.Struct, frozen=True):
    tenant: FileQuota = FileQuota()
    user: FileQuota = FileQuota()


class FileQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query of files: with `anybody` those of every user of the tenant, else only those of `user`."""

    tenant: TenantId
    user: str | None = None
    anybody: bool = False
    purpose: FilePurpose | None = None
    after: FileId | None = None
    limit: int = 100
    newest_first: bool = True


class FileStore(Protocol):
    """The files of a journal. All methods raise Unavailable; those that write also OutcomeUnknown. Expired files are
    not found."""

    async def begin(self, tenant: TenantId, user: str | None, at: UnixMs) -> BlobId:
        """Begins an upload and returns its blob, which is deleted later unless the upload is finished within
        `UPLOAD_MS`."""
        ...

    async def put_chunk(self, tenant: TenantId, blob: BlobId, index: int, data: bytes) -> None:
        """Stores a chunk. Chunks must come in order and from one process, each `CHUNK_BYTES` long except the last
        one."""
        ...

    async def finish(self, file: StoredFile, quotas: FileQuotas) -> StoredFile:
        """Makes a file of an uploaded blob. Returns the file with its blob, which is another one if its owner had the
        same content already. If there is a file with this id already, nothing changes, and that one is returned. Raises
        Limited if there is no room; then nothing is stored."""
        ...

    async def abandon(self, tenant: TenantId, blob: BlobId) -> None:
        """Drops an upload that will not be finished. A blob that belongs to a file is left alone."""
        ...

    async def find(self, tenant: TenantId, file_id: FileId, now: UnixMs) -> StoredFile | None: ...

    async def existing(self, tenant: TenantId, file_ids: Collection[FileId], now: UnixMs) -> set[FileId]:
        """Returns those of a tenant's ids that are files."""
        ...

    async def files(self, query: FileQuery, now: UnixMs) -> list[StoredFile]:
        """Returns a page of files. Raises NotFound for an unknown `after`."""
        ...

    async def remove(self, tenant: TenantId, file_id: FileId, now: UnixMs) -> bool:
        """Removes a file, and the key of its content if no other file has the content. Returns False if there was no
        such file."""
        ...

    def read(self, file: StoredFile) -> AsyncIterator[bytes]:
        """Yields the content, chunk by chunk. Raises Internal (`body_unreadable`) if it is not what was stored,
        NotFound if it is gone."""
        ...

    async def totals(self, tenant: TenantId, user: str | None, *, anybody: bool = False) -> FileTotals: ...

    async def collect(self, now: UnixMs, *, limit: int) -> int:
        """Removes expired files, and contents that no file has any more, at most `limit` of each; returns how many. May
        be interrupted and run again."""
        ...


def may_see_file(principal: Principal, file: StoredFile) -> bool:
    return owns(principal, file.tenant, file.user)


async def visible_file(store: FileStore, principal: Principal, file_id: str, now: UnixMs) -> StoredFile:
    """Returns a file that the principal may see. Raises Forbidden, NotFound."""
    demand(principal, "read")
    file = await store.find(principal.tenant, FileId(file_id), now)
    if file is None or not may_see_file(principal, file):
        raise file_not_found(file_id)
    return file


def file_not_found(file_id: str, param: str | None = None) -> NotFound:
    """Returns the same error for another tenant's file, another user's, an expired one and one that never was."""
    return NotFound("file_not_found", f"There is no file {file_id[:64]!r}.", param=param)


def safe_filename(name: str) -> str:
    """Returns the last part of a name, safe to show: no folders, no control characters, at most FILENAME_MAX long."""
    name = name.replace("\\", "/").rpartition("/")[2]
    kept = "".join(
        sign for sign in name if unicodedata.category(sign) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
    )
    kept = kept.strip().strip(".") or "file"
    if len(kept) > FILENAME_MAX:
        stem, dot, ending = kept.rpartition(".")
        short = dot and len(ending) <= 16
        kept = f"{stem[: FILENAME_MAX - len(ending) - 1]}.{ending}" if short else kept[:FILENAME_MAX]
    return kept


def safe_media_type(given: str) -> str:
    """Returns a media type without its parameters; `UNKNOWN_TYPE` if `given` is not a media type."""
    name = given.partition(";")[0].strip().lower()
    return name if _MEDIA_TYPE.fullmatch(name) else UNKNOWN_TYPE
