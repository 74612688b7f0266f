"""Makes files of uploads, and hands them out: within limits, to those who may see them.

Bounded: bytes of a file, uploads under way of one principal and in all, and, by the limits file, files and bytes of a
tenant and of each of its users. An upload that ends halfway leaves nothing but bytes that nobody can read, for the
sweep.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

from sessions.clock import Clock
from sessions.limits import TenantLimits
from sessions.model.authorization import demand
from sessions.model.errors import BadInput, Limited, Overloaded, SessileError, TooLarge, Unavailable
from sessions.model.knowledge.files import (
    CHUNK_BYTES,
    FILE_ID_PREFIX,
    BlobId,
    FileId,
    FilePurpose,
    FileQuery,
    FileQuotas,
    FileStore,
    StoredFile,
    file_not_found,
    safe_filename,
    safe_media_type,
    visible_file,
)
from sessions.model.knowledge.images import DecodedImage
from sessions.model.types import Principal, TenantId, UnixMs
from sessions.ports import ImageDecoder, TextExtractor
from transport.auth.connection_shares import key_of
from transport.files.attachments import AttachmentReader, CommandFiles, ImageBounds, ReadFile

FILE_BYTES: Final = 32 << 20
UPLOADS_MAX: Final = 256
UPLOADS_PER_KEY_MAX: Final = 16
COLLECTED_MAX: Final = 16  # contents that a deletion takes along, at once
READS_MAX: Final = 4  # stored files in this process's memory at once, until they are decoded
FETCHES_MAX: Final = 4  # images from other servers likewise; a slow server holds up no stored file

FetchImage = Callable[[str], Awaitable[bytes]]
"""Fetches an image from an https address. Raises BadInput if that is not permitted, or gives no image."""


class FileDoor:
    """The files of clients: who may upload, see and delete them. Without `documents`, no text can be extracted from a
    file; without `images`, no image can be decoded; without `fetch`, none is fetched. Implements `ImageReader`."""

    def __init__(
        self,
        files: FileStore,
        documents: TextExtractor | None,
        clock: Clock,
        table: Callable[[TenantId], TenantLimits | None],
        *,
        bytes_max: int = FILE_BYTES,
        images: ImageDecoder | None = None,
        fetch: FetchImage | None = None,
    ) -> None:
        self.bytes_max = bytes_max
        self.attachments = AttachmentReader(self._stored, self._given, self, bytes_max=bytes_max)
        self._files = files
        self._documents = documents
        self._images = images
        self._fetch = fetch
        self._clock = clock
        self._table = table
        self.under_way: Counter[tuple[str, str]] = Counter()
        self._reads = asyncio.Semaphore(READS_MAX)
        self._fetches = asyncio.Semaphore(FETCHES_MAX)

    @asynccontextmanager
    async def upload(self, principal: Principal) -> AsyncIterator[Upload]:
        """Yields a new upload; leaving the block before its `finish` discards the bytes. Raises Forbidden, BadInput,
        TooLarge if this server takes no files, and Limited or Overloaded if too many uploads run."""
        demand(principal, "chat")
        if not self.bytes_max:
            raise TooLarge("file_too_large", "This server takes no files.", param="file")
        if principal.role == "user" and principal.user is None:
            raise BadInput("user_required", "Files are an end user's: use a key of theirs.", param="user")
        if self.under_way.total() >= UPLOADS_MAX:
            raise Overloaded("overloaded", "Too many files are uploaded here at once.", retry_after_ms=1_000)
        who = key_of(principal)
        if self.under_way[who] >= UPLOADS_PER_KEY_MAX:
            raise Limited("rate_limited", "Too many files of this key are uploaded at once.", retry_after_ms=1_000)
        self.under_way[who] += 1
        try:
            blob = await self._files.begin(principal.tenant, principal.user, self._clock.now_ms())
            upload = Upload(self, self._files, principal, self._clock, blob)
            try:
                yield upload
            finally:
                if not upload.finished:
                    await self._files.abandon(principal.tenant, blob)
        finally:
            self.under_way -= Counter([who])  # which keeps no zeros

    def quotas(self, principal: Principal) -> FileQuotas:
        table = self._table(principal.tenant)
        return FileQuotas() if table is None else table.file_quotas

    async def find(self, principal: Principal, file_id: str) -> StoredFile:
        """Returns a file that the principal may see. Raises Forbidden, NotFound."""
        return await visible_file(self._files, principal, file_id, self._clock.now_ms())

    async def files(
        self,
        principal: Principal,
        *,
        purpose: FilePurpose | None,
        after: str | None,
        limit: int,
        newest_first: bool,
    ) -> list[StoredFile]:
        """Returns at most `limit` files that the principal may see, those after the file `after`. Raises Forbidden, and
        NotFound if `after` is not one of these files."""
        demand(principal, "read")
        if principal.role == "user" and principal.user is None:
            return []
        query = FileQuery(
            tenant=principal.tenant,
            user=principal.user,
            anybody=principal.role != "user",
            purpose=purpose,
            after=None if after is None else FileId(after),
            limit=limit,
            newest_first=newest_first,
        )
        return await self._files.files(query, self._clock.now_ms())

    def content(self, file: StoredFile) -> AsyncIterator[bytes]:
        return self._files.read(file)

    async def text(self, principal: Principal, file_id: str) -> ReadFile:
        """Returns the text of a file that the principal may see. Raises Forbidden, NotFound, and what
        `ports.TextExtractor` raises."""
        try:
            return await self._stored(principal, file_id, CommandFiles())
        except SessileError as error:
            error.param = error.param or "file_id"
            raise

    async def deletable(self, principal: Principal, file_id: str) -> StoredFile:
        """Returns a file that the principal may delete. Raises Forbidden, NotFound."""
        demand(principal, "chat")
        return await self.find(principal, file_id)

    async def delete(self, principal: Principal, file_id: str) -> None:
        """Deletes a file that the principal may see. Raises Forbidden, NotFound."""
        file = await self.deletable(principal, file_id)
        now = self._clock.now_ms()
        if not await self._files.remove(file.tenant, file.id, now):
            raise file_not_found(file_id)
        await self._files.collect(now, limit=COLLECTED_MAX)

    async def _stored(self, principal: Principal, file_id: str, files: CommandFiles) -> ReadFile:
        file = await self._readable(principal, file_id)
        files.take_read(file.size)
        async with self._reads:
            return await self._given(await self._content(file), file.filename, file.media_type)

    async def _readable(self, principal: Principal, file_id: str) -> StoredFile:
        file = await self.find(principal, file_id)
        if file.size > self.bytes_max:
            raise TooLarge("file_too_large", f"A file that is read has at most {self.bytes_max} bytes.")
        return file

    async def _content(self, file: StoredFile) -> bytes:
        return b"".join([chunk async for chunk in self._files.read(file)])

    async def stored(
        self, principal: Principal, file_id: str, bounds: ImageBounds, files: CommandFiles
    ) -> DecodedImage:
        file = await self._readable(principal, file_id)
        decoder = self._decoder()
        known = decoder.known(file.sha256, edge_max=bounds.edge_max, bytes_max=bounds.bytes_max)
        if known is not None:
            return known
        files.take_read(file.size)
        async with self._reads:
            return await self.decoded(await self._content(file), bounds)

    async def fetched(self, url: str, bounds: ImageBounds, files: CommandFiles) -> DecodedImage:
        if self._fetch is None:
            what = "This server fetches no images: send the image itself, as data:TYPE;base64,BYTES."
            raise BadInput("image_not_permitted", what)
        async with self._fetches:
            content = await self._fetch(url)
            files.take_read(len(content))
            return await self.decoded(content, bounds)

    async def decoded(self, content: bytes, bounds: ImageBounds) -> DecodedImage:
        return await self._decoder().decode(content, edge_max=bounds.edge_max, bytes_max=bounds.bytes_max)

    def _decoder(self) -> ImageDecoder:
        if self._images is None:
            raise Unavailable("documents_unavailable", "This process decodes no images.", retryable=False)
        return self._images

    async def _given(self, content: bytes, filename: str, media_type: str) -> ReadFile:
        if self._documents is None:
            raise Unavailable("documents_unavailable", "This process reads no documents.", retryable=False)
        document = await self._documents.extract(content, filename=filename, media_type=media_type)
        return ReadFile(filename, media_type, len(content), document)


class Upload:
    """One upload: `feed` takes bytes, then `finish` makes the file."""

    def __init__(self, door: FileDoor, files: FileStore, principal: Principal, clock: Clock, blob: BlobId) -> None:
        self._door = door
        self._files = files
        self._principal = principal
        self._clock = clock
        self._hash = hashlib.sha256()
        self._buffer = bytearray()
        self._size = self._chunks = 0
        self._blob = blob
        self.finished = False

    async def feed(self, data: bytes) -> None:
        """Takes the next bytes of the file. Raises TooLarge if the file has more than the largest allowed size."""
        self._size += len(data)
        if self._size > self._door.bytes_max:
            raise TooLarge("file_too_large", f"A file has at most {self._door.bytes_max} bytes.", param="file")
        self._hash.update(data)
        self._buffer += data
        while len(self._buffer) >= CHUNK_BYTES:
            await self._put(bytes(self._buffer[:CHUNK_BYTES]))
            del self._buffer[:CHUNK_BYTES]

    async def _put(self, chunk: bytes) -> None:
        await self._files.put_chunk(self._principal.tenant, self._blob, self._chunks, chunk)
        self._chunks += 1

    async def finish(
        self, *, filename: str, media_type: str, purpose: FilePurpose, expires_s: int | None = None
    ) -> StoredFile:
        """Makes the file of all bytes that were fed, and returns it. It expires after `expires_s` seconds, or never if
        that is None. Raises Limited if the tenant or the user has no room for it."""
        if self._buffer:
            await self._put(bytes(self._buffer))
            self._buffer.clear()
        now = self._clock.now_ms()
        file = StoredFile(
            id=FileId(f"{FILE_ID_PREFIX}{self._clock.new_id()}"),
            tenant=self._principal.tenant,
            user=self._principal.user,
            filename=safe_filename(filename),
            purpose=purpose,
            media_type=safe_media_type(media_type),
            size=self._size,
            sha256=self._hash.hexdigest(),
            blob=self._blob,
            created_at=now,
            expires_at=None if expires_s is None else UnixMs(now + 1000 * expires_s),
        )
        made = await self._files.finish(file, self._door.quotas(self._principal))
        self.finished = True
        return made
