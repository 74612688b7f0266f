"""Files of commands become texts, whatever the command, and only for whom they are."""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any

import pytest

from sessions.model import commands as cm
from sessions.model.errors import BadInput, NotFound, TooLarge
from sessions.model.knowledge.documents import DocumentText
from sessions.model.knowledge.files import file_not_found
from sessions.model.knowledge.images import DecodedImage
from sessions.model.types import CommandId, InputFile, InputImage, InputText, ItemId, Principal, SessionId, TenantId
from transport.files.attachments import (
    ATTACHMENTS_MAX,
    IMAGE_BYTES,
    SHOWN_MAX,
    AttachmentReader,
    CommandFiles,
    ImageBounds,
    ReadFile,
)
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
