"""Files that people upload: what is known of one, who may see it, and the port of a store of them.

A file belongs to its tenant and, where it was uploaded for one, to an end user: it is seen by whoever sees that user's
sessions. Its content is a blob, a row of sealed chunks under a data key of its own; the key and the file's name stand
in the file's row, encrypted with the key of the tenant. So whatever takes the row away takes the content away, wherever
its bytes lie. One owner's files with equal content share a blob (it is named by a keyed hash of what it holds);
two owners' never do, so that nobody can find out what others have.

    begin ─► put_chunk ... ─► finish (a file)          the content stands before its row does
      └────────────────────► abandon, or nobody: the sweep collects it

Knows no doors, and nothing of what files mean: texts are taken out of them behind `sessions.ports.TextExtractor`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import AsyncIterator
from typing import Final, Literal, NewType, Protocol, get_args

import msgspec

from sessions.model.errors import Limited, NotFound
from sessions.model.types import Principal, TenantId, UnixMs

FileId = NewType("FileId", str)
BlobId = NewType("BlobId", str)

FilePurpose = Literal["assistants", "batch", "fine-tune", "vision", "user_data", "evals"]
PURPOSES: Final[tuple[FilePurpose, ...]] = get_args(FilePurpose)
CHUNK_BYTES: Final = 256 * 1024
FILENAME_MAX: Final = 255  # characters
UPLOAD_MS: Final = 3_600_000
"""After so long an upload that was not finished is nobody's any more."""

_MEDIA_TYPE: Final = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]{0,63}/[a-z0-9][a-z0-9!#$&^_.+-]{0,63}")
_UNSHOWN: Final = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")  # categories of signs
UNKNOWN_TYPE: Final = "application/octet-stream"


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """`user` None: of the tenant as a whole. `sha256` is that of the content, in hexadecimal digits."""

    id: FileId
    tenant: TenantId
    user: str | None
    filename: str
    purpose: FilePurpose
    media_type: str  # as its uploader says; nothing is decided by it alone
    size: int  # bytes
    sha256: str
    blob: BlobId
    created_at: UnixMs
    expires_at: UnixMs | None = None


class FileTotals(msgspec.Struct, frozen=True):
    files: int = 0
    size: int = 0  # bytes, of each file by itself


class FileQuota(msgspec.Struct, frozen=True):
    """How many files and bytes a scope may have; None: as many as it likes."""

    files: int | None = None
    size: int | None = None

    def refusal(self, have: FileTotals, size: int, whose: str) -> Limited | None:
        """What is wrong with one more file of so many bytes."""
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
    """Whose files are listed. `anybody`: every user's of the tenant; else those of `user` alone."""

    tenant: TenantId
    user: str | None = None
    anybody: bool = False
    purpose: FilePurpose | None = None
    after: FileId | None = None
    limit: int = 100
    newest_first: bool = True


class FileStore(Protocol):
    """The files of a journal. All raise Unavailable; writes OutcomeUnknown too. What is expired is not there."""

    async def begin(self, tenant: TenantId, user: str | None, at: UnixMs) -> BlobId:
        """A new blob; what becomes of it is known within `UPLOAD_MS`, or it is collected."""
        ...

    async def put_chunk(self, tenant: TenantId, blob: BlobId, index: int, data: bytes) -> None:
        """Chunks are put in order, each of `CHUNK_BYTES` but the last one. One process puts all of a blob."""
        ...

    async def finish(self, file: StoredFile, quotas: FileQuotas) -> StoredFile:
        """Makes the file of the blob that was put. It is returned with the blob that it has: another one where its
        owner had that content already. Raises Limited where there is no room; then nothing stands."""
        ...

    async def abandon(self, tenant: TenantId, blob: BlobId) -> None:
        """There will be no file of it. Raises nothing but what every call does; a blob of a file is left alone."""
        ...

    async def find(self, tenant: TenantId, file_id: FileId, now: UnixMs) -> StoredFile | None: ...

    async def files(self, query: FileQuery, now: UnixMs) -> list[StoredFile]:
        """Raises NotFound for an `after` that is not there."""
        ...

    async def remove(self, tenant: TenantId, file_id: FileId, now: UnixMs) -> bool:
        """Takes the file away, and with it the key of a content that no other file has. False: there was none."""
        ...

    def read(self, file: StoredFile) -> AsyncIterator[bytes]:
        """The content, chunk by chunk. Raises Internal (`body_unreadable`) where it is not what was put, NotFound where
        it is gone."""
        ...

    async def totals(self, tenant: TenantId, user: str | None, *, anybody: bool = False) -> FileTotals: ...

    async def collect(self, now: UnixMs, *, limit: int) -> int:
        """Takes away files that are expired, and bytes that are no file's any more, `limit` of each at most; how many.
        May be cut short and run again."""
        ...


def owner_of(principal: Principal) -> str | None:
    """Whose a principal's files are."""
    return principal.user


def may_see_file(principal: Principal, file: StoredFile) -> bool:
    """As `authorization.may_see` has it of sessions."""
    if principal.tenant != file.tenant:
        return False
    if principal.role == "user":
        return principal.user is not None and principal.user == file.user
    return True


def file_not_found(file_id: str, param: str | None = None) -> NotFound:
    """In the same words for another tenant's, another user's, an expired one and one that never was."""
    return NotFound("file_not_found", f"There is no file {file_id[:64]!r}.", param=param)


def safe_filename(name: str) -> str:
    """The last part of a name, as a person may be shown it: no folders, no signs of control, and not without end."""
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
    """A media type without its parameters; `UNKNOWN_TYPE` for what is none."""
    name = given.partition(";")[0].strip().lower()
    return name if _MEDIA_TYPE.fullmatch(name) else UNKNOWN_TYPE
