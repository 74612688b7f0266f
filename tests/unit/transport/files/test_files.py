"""Files: forms, uploads within their limits, and what commands make of them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import itertools
import weakref
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import AsyncMock

import pytest

from persistence.memory.database import MemoryDatabase
from persistence.sql.files import SqlFiles
from sessions.clock import Clock
from sessions.limits import Ceilings, TenantLimits
from sessions.model import commands as cm
from sessions.model.errors import BadInput, Forbidden, Limited, NotFound, Overloaded, TooLarge
from sessions.model.knowledge.documents import DocumentText
from sessions.model.knowledge.files import StoredFile, file_not_found
from sessions.model.knowledge.images import DecodedImage
from sessions.model.types import (
    CommandId,
    InputFile,
    InputImage,
    InputText,
    ItemId,
    Principal,
    SessionId,
    TenantId,
    UnixMs,
)
from tests.support.documents.inline import InlineDocuments
from tests.support.stores.tables import is_empty
from transport.files import attachments
from transport.files import door as module
from transport.files.attachments import (
    ATTACHMENTS_MAX,
    IMAGE_BYTES,
    SHOWN_MAX,
    AttachmentReader,
    CommandFiles,
    ImageBounds,
    ReadFile,
)
from transport.files.door import FileDoor
from transport.files.multipart import FIELD_BYTES_MAX, FIELDS_MAX, HEADER_BYTES_MAX, UploadForm
from transport.history_index import Unit

ANA = Principal(tenant=TenantId("acme"), key_id="ana", user="ana")
STORED = InputFile(file_id="file-1")
READ = "\n[File: a.txt]\nits words\n[End of file: a.txt]\n"


async def stored(principal: Principal, file_id: str, files: CommandFiles) -> ReadFile:
    if file_id != "file-1":
        raise file_not_found(file_id)
    return ReadFile("a.txt", "text/plain", 9, DocumentText("text/plain", "its words\n"))


async def given(content: bytes, filename: str, media_type: str) -> ReadFile:
    return ReadFile(filename, media_type, len(content), DocumentText("text/x", content.decode()))


class CountedImages:
    """The ImageReader of files named `photo-N`, each of 400 kB; it keeps which ones it was to read."""

    def __init__(self) -> None:
        self.reads = list[str]()

    async def stored(
        self, principal: Principal, file_id: str, bounds: ImageBounds, files: CommandFiles
    ) -> DecodedImage:
        if not file_id.startswith("photo-"):
            raise file_not_found(file_id)
        self.reads.append(file_id)
        return await self.decoded(file_id.encode().ljust(400_000, b"x"), bounds)

    async def fetched(self, url: str, bounds: ImageBounds, files: CommandFiles) -> DecodedImage:
        raise BadInput("image_not_permitted", "It fetches none.")

    async def decoded(self, content: bytes, bounds: ImageBounds) -> DecodedImage:
        return DecodedImage("image/png", content[: bounds.bytes_max], min(640, bounds.edge_max), 480)


READER = AttachmentReader(stored, given, CountedImages(), bytes_max=1_000_000)


def a_message(*parts: Any, **more: Any) -> cm.MessageCreate:
    return cm.MessageCreate(id=CommandId("c"), session=SessionId("s"), content=parts, **more)


async def test_what_names_no_file_stays_as_it_is() -> None:
    for command in (
        a_message(InputText(text="x")),
        cm.MessageCreate(id=CommandId("c"), session=SessionId("s"), content="x"),
        cm.ToolOutput(id=CommandId("c"), session=SessionId("s"), call_id="x", output="y"),  # type: ignore[arg-type]
        cm.TurnCreate(id=CommandId("c"), session=SessionId("s"), items=(cm.NewMessage(content="x"),)),
    ):
        assert await READER.command(ANA, command) is command


async def test_a_clients_own_text_of_a_file_counts_for_nothing() -> None:
    forged = InputFile(file_id="file-1", filename="bank.pdf", text="forged", size=1)
    made = await READER.command(ANA, a_message(forged))
    assert isinstance(made, cm.MessageCreate) and cm.content_parts(made.content)[0].text == READ


async def test_bytes_in_the_message() -> None:
    for data in (b64encode(b"in line").decode(), "data:text/x;base64," + b64encode(b"in line").decode()):
        made = await READER.command(ANA, a_message(InputFile(file_data=data, filename="../b[1].txt")))
        assert isinstance(made, cm.MessageCreate)
        (part,) = cm.content_parts(made.content)
        assert isinstance(part, InputFile) and part.file_data is None and part.filename == "b[1].txt"
        assert part.text == "\n[File: b(1).txt]\nin line\n[End of file: b(1).txt]\n"
    with pytest.raises(TooLarge):
        await READER.command(ANA, a_message(InputFile(file_data="A" * 1_400_000)))
    for wrong in ("ü", "data:x,y", "A", "data:"):
        with pytest.raises(BadInput) as refused:
            await READER.command(ANA, a_message(InputText(text=""), InputFile(file_data=wrong)))
        assert refused.value.param == "content[1]"


async def test_what_is_refused() -> None:
    with pytest.raises(NotFound) as unknown:
        await READER.command(ANA, a_message(InputFile(file_id="file-2")))
    assert unknown.value.param == "content[0]"
    for command in (
        a_message(InputFile()),
        a_message(*[STORED] * (ATTACHMENTS_MAX + 1)),
        a_message(STORED, role="system"),
        a_message(STORED, role="assistant"),
    ):
        with pytest.raises(BadInput):
            await READER.command(ANA, command)
    with pytest.raises(BadInput):
        await READER.units(ANA, [Unit((cm.NewMessage(content=(STORED,)),))] * (8 * ATTACHMENTS_MAX + 1))


async def test_a_file_that_is_named_many_times_is_read_once() -> None:
    images, documents = CountedImages(), list[str]()

    async def counted(principal: Principal, file_id: str, files: CommandFiles) -> ReadFile:
        documents.append(file_id)
        return await stored(principal, file_id, files)

    reader = AttachmentReader(counted, given, images, bytes_max=100)
    message = cm.NewMessage(content=(STORED, *[InputImage(file_id="photo-1")] * 8))
    units = await reader.units(ANA, [Unit((message,))] * 8)
    assert (images.reads, documents) == (["photo-1"], ["file-1"])
    (read,) = {item for unit in units for item in unit.items}
    assert isinstance(read, cm.NewMessage) and len({part for part in read.content if isinstance(part, InputImage)}) == 1
    two = await reader.command(
        ANA, a_message(InputImage(file_id="photo-1"), InputImage(file_id="photo-1", detail="low"))
    )
    assert isinstance(two, cm.MessageCreate)
    widths = [part.width for part in cm.content_parts(two.content) if isinstance(part, InputImage)]
    assert widths == [640, 512], "within other bounds, it is another image"


async def test_an_edit_keeps_an_image_once_and_within_what_a_message_has() -> None:
    created = await READER.command(ANA, a_message(InputImage(file_id="photo-1")))
    assert isinstance(created, cm.MessageCreate) and isinstance(created.content, tuple)
    (image,) = created.content
    assert isinstance(image, InputImage)

    async def edited(principal: Principal, command: cm.MessageEdit) -> tuple[InputImage, ...]:
        return (image,)

    async def edit(*parts: InputImage) -> list[InputImage]:
        command = cm.MessageEdit(id=CommandId("e"), session=SessionId("s"), item_id=ItemId("i"), content=parts)
        made = await READER.command(ANA, command, edited)
        assert isinstance(made, cm.MessageEdit) and isinstance(made.content, tuple)
        return [part for part in made.content if isinstance(part, InputImage)]

    by_url, by_file = InputImage(image_url=image.image_url), InputImage(file_id="photo-1")
    for part in (by_url, by_file):
        assert await edit(part) == [image], "as it is in the log"
        many = await edit(*[part] * 32)
        assert sum(len(b64decode((each.image_url or "").partition(",")[2])) for each in many) <= IMAGE_BYTES
        assert len({each.sha256 for each in many}) == 1 and many[0].file_id == "photo-1"


async def test_a_whole_history_has_a_bounded_size() -> None:
    images = CountedImages()
    reader = AttachmentReader(stored, given, images, bytes_max=100)
    contents = [(InputImage(file_id=f"photo-{number}"),) for number in range(40)]
    history = [Unit((cm.NewMessage(content=content),), at=f"[{at}]") for at, content in enumerate(contents)]
    num_max = SHOWN_MAX // len("data:image/png;base64," + b64encode(b"x" * 400_000).decode())
    units = await reader.units(ANA, history[:num_max])
    for longer in (history, [*units, *history[num_max:]]):
        with pytest.raises(TooLarge) as refused:
            await reader.units(ANA, longer)
        assert (refused.value.code, refused.value.param) == ("too_large", f"[{num_max}][0]")
    assert len(set(images.reads)) == num_max + 1, "none is read behind the one that is too much"
    items = tuple(item for unit in [*units, *units] for item in unit.items)
    with pytest.raises(TooLarge):
        await reader.command(ANA, cm.TurnCreate(id=CommandId("c"), session=SessionId("s"), items=items))


async def test_a_long_text_that_is_named_often_has_a_bounded_size() -> None:
    async def long(principal: Principal, file_id: str, files: CommandFiles) -> ReadFile:
        return ReadFile("a.txt", "text/plain", 9, DocumentText("text/plain", "x" * 1_000_000))

    reader = AttachmentReader(long, given, CountedImages(), bytes_max=100)
    with pytest.raises(TooLarge):
        await reader.command(ANA, a_message(*[STORED] * 9))


SERVICE = Principal(tenant=TenantId("acme"), key_id="k", role="service")
DOOR_READER = Principal(tenant=TenantId("acme"), key_id="r", user="ana", scopes=("read",))
NOBODY = Principal(tenant=TenantId("acme"), key_id="n")
BETA = Principal(tenant=TenantId("beta"), key_id="b", role="service")


class CountedFiles(SqlFiles):
    """Counts the bytes of contents that were read."""

    read_bytes = 0

    async def read(self, file: StoredFile) -> AsyncIterator[bytes]:
        async for chunk in super().read(file):
            self.read_bytes += len(chunk)
            yield chunk


class RememberingDecoder:
    """An ImageDecoder that remembers all that it decoded."""

    def __init__(self) -> None:
        self.results: dict[str, DecodedImage] = {}
        self.waiting = 0
        self.may_decode = asyncio.Event()
        self.may_decode.set()
        self.is_full = asyncio.Event()  # as many wait to be decoded as may at once

    async def decode(self, content: bytes, *, edge_max: int = 0, bytes_max: int = 0) -> DecodedImage:
        self.waiting += 1
        if self.waiting == module.READS_MAX + module.FETCHES_MAX:
            self.is_full.set()
        await self.may_decode.wait()
        self.waiting -= 1
        image = DecodedImage("image/png", content[:9], 1, 1)
        return self.results.setdefault(hashlib.sha256(content).hexdigest(), image)

    def known(self, sha256: str, *, edge_max: int, bytes_max: int) -> DecodedImage | None:
        return self.results.get(sha256)


def a_door(table: TenantLimits | None = None, **more: Any) -> tuple[FileDoor, MemoryDatabase]:
    database, numbers = MemoryDatabase(), itertools.count(1)
    clock = Clock(lambda: UnixMs(5), lambda: f"{next(numbers):04}")
    documents = more.pop("documents", InlineDocuments())
    return FileDoor(CountedFiles(database), documents, clock, lambda tenant: table, **more), database


async def uploaded(door: FileDoor, content: bytes, principal: Principal = ANA) -> StoredFile:
    async with door.upload(principal) as upload:
        for at in range(0, len(content), 1000):
            await upload.feed(content[at : at + 1000])
        return await upload.finish(filename="../a.txt", media_type="TEXT/plain; x", purpose="user_data", expires_s=60)


async def test_what_is_left_halfway_leaves_nothing() -> None:
    door, database = a_door(bytes_max=1500)
    with pytest.raises(TooLarge):
        await uploaded(door, b"x" * 2000)
    with pytest.raises(KeyError):
        async with door.upload(ANA):
            raise KeyError
    assert is_empty(database, "files", "file_blobs") and not door.under_way


async def test_quotas_of_the_limits_file() -> None:
    door, database = a_door(TenantLimits(files=9, user=Ceilings(file_bytes=10)))
    await uploaded(door, b"12345")
    with pytest.raises(Limited):
        await uploaded(door, b"123456")
    await uploaded(door, b"123456", SERVICE)
    assert database.query("SELECT count(*) FROM files") == [(2,)]
    assert database.query("SELECT DISTINCT due_at FROM file_blobs") == [(None,)]


async def test_who_may_upload(monkeypatch: pytest.MonkeyPatch) -> None:
    door, _ = a_door()
    for principal, error in ((DOOR_READER, Forbidden), (NOBODY, BadInput)):
        with pytest.raises(error):
            await uploaded(door, b"x", principal)
    monkeypatch.setattr(module, "UPLOADS_PER_KEY_MAX", 1)
    async with door.upload(ANA):
        with pytest.raises(Limited):
            await uploaded(door, b"x", ANA)
        async with door.upload(SERVICE):
            monkeypatch.setattr(module, "UPLOADS_MAX", 2)
            with pytest.raises(Overloaded):
                await uploaded(door, b"x", BETA)


async def test_an_image_whose_result_is_known_is_not_read() -> None:
    door, _ = a_door(images=RememberingDecoder())
    file, bounds = await uploaded(door, b"x" * 5_000), ImageBounds(9, 9)
    first = await door.stored(ANA, file.id, bounds, CommandFiles())
    assert await door.stored(ANA, file.id, bounds, CommandFiles()) is first
    assert isinstance(door._files, CountedFiles) and door._files.read_bytes == 5_000


async def test_what_one_command_has_read_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attachments, "READ_BYTES_MAX", 2_500)
    door, _ = a_door(images=RememberingDecoder())
    files = [(await uploaded(door, b"%d" % number * 1_000)).id for number in range(4)]
    content = tuple(InputImage(file_id=file) for file in files)
    command = cm.MessageCreate(id=CommandId("c"), session=SessionId("s"), content=content)
    with pytest.raises(TooLarge) as refused:
        await door.attachments.command(ANA, command)
    assert (refused.value.code, refused.value.param) == ("too_large", "content[2]")
    assert isinstance(door._files, CountedFiles) and door._files.read_bytes == 2_000
    await door.attachments.command(ANA, command)
    assert door._files.read_bytes == 4_000, "what is known is not counted: a second request gets further"


async def test_contents_in_memory_are_bounded_until_they_are_decoded() -> None:
    decoder = RememberingDecoder()
    decoder.may_decode.clear()
    fetched = list[str]()

    async def fetch(url: str) -> bytes:
        fetched.append(url)
        return url.encode()

    door, _ = a_door(images=decoder, fetch=fetch)
    assert isinstance(door._files, CountedFiles)
    ids = [(await uploaded(door, b"%d" % number * 100)).id for number in range(9)]
    bounds = ImageBounds(9, 9)
    calls = [asyncio.create_task(door.stored(ANA, file, bounds, CommandFiles())) for file in ids]
    calls += [asyncio.create_task(door.fetched(f"https://a/{n}", bounds, CommandFiles())) for n in range(9)]
    async with asyncio.timeout(60):
        await decoder.is_full.wait()
    for _ in range(20):
        await asyncio.sleep(0)
    assert (door._files.read_bytes, len(fetched)) == (100 * module.READS_MAX, module.FETCHES_MAX)
    decoder.may_decode.set()
    await asyncio.gather(*calls)
    assert (door._files.read_bytes, len(fetched)) == (900, 9)


KIND = "multipart/form-data; boundary=XX"
FIELD = b'--XX\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n'
FILE = (
    b'--XX\r\nContent-Disposition: form-data; name="file"; filename="\xc3\xbc.pdf"\r\n'
    b"Content-Type: application/pdf\r\n\r\n%PDF\r\n--X\r\nmore\r\n"
)
END = b"--XX--\r\n"


async def taken(body: bytes, size: int = 7, kind: str = KIND) -> tuple[UploadForm, bytes]:
    form, got = UploadForm(kind), bytearray()

    async def pieces() -> AsyncIterator[bytes]:
        for at in range(0, len(body), size):
            yield body[at : at + size]

    async def feed(data: bytes) -> None:
        got.extend(data)

    await form.read(pieces(), feed)
    return form, bytes(got)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 1000])
async def test_a_form_cut_anywhere(size: int) -> None:
    form, got = await taken(FIELD + FILE + END, size)
    assert form.fields == {"purpose": "user_data"} and got == b"%PDF\r\n--X\r\nmore"
    assert form.file is not None and (form.file.filename, form.file.media_type) == ("ü.pdf", "application/pdf")


async def test_fields_may_come_behind_the_file() -> None:
    form, got = await taken(FILE + FIELD + END)
    assert form.fields == {"purpose": "user_data"} and got


async def test_a_broken_form_writes_no_line_into_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever had a key could fill the log: the parser wrote a line of its own for each."""
    with pytest.raises(BadInput):
        await taken(b"xx" + FIELD + FILE + END)
    assert not caplog.records


@pytest.mark.parametrize("body", [FIELD + FILE + END, FIELD + FILE, b"xx" + FILE])
async def test_a_form_is_freed_when_it_was_read(body: bytes) -> None:
    """It waited for a full collection of garbage, with what had come of its file."""
    form, nothing = UploadForm(KIND), AsyncMock()

    async def pieces() -> AsyncIterator[bytes]:
        yield body

    gc.disable()
    try:
        with contextlib.suppress(BadInput):
            await form.read(pieces(), nothing)
        freed = weakref.ref(form)
        del form
        assert freed() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", ["", "application/json", "multipart/form-data", "multipart/form-data; boundary="])
def test_other_types_are_no_forms(kind: str) -> None:
    with pytest.raises(BadInput, match="multipart/form-data"):
        UploadForm(kind)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nonsense",
        FIELD,
        FIELD + FILE,
        FILE + FILE + END,
        FIELD + FIELD + END,
        b"--XX\r\nContent-Disposition: form-data\r\n\r\nx\r\n" + END,
        b"--XX\r\nContent-Disposition: attachment; name=x\r\n\r\nx\r\n" + END,
        b"--XX\r\nX: " + b"y" * (HEADER_BYTES_MAX + 1) + b"\r\n\r\nx\r\n" + END,
        FIELD.replace(b"user_data", b"x" * (FIELD_BYTES_MAX + 1)) + END,
        b"".join(FIELD.replace(b"purpose", b"f%d" % n) for n in range(FIELDS_MAX + 1)) + END,
        b"--XX\r\n" + b"".join(b"A%d: b\r\n" % n for n in range(FIELDS_MAX + 2)) + b"\r\n\r\nx\r\n" + END,
    ],
)
async def test_what_is_no_form_of_ours_is_refused(body: bytes) -> None:
    with pytest.raises(BadInput):
        await taken(body, 64)
