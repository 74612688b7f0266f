"""Files of commands become texts, whatever the command, and only for whom they are."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest

from sessions.model import commands as cm
from sessions.model.errors import BadInput, NotFound, TooLarge
from sessions.model.knowledge.documents import DocumentText
from sessions.model.knowledge.files import file_not_found
from sessions.model.knowledge.images import DecodedImage
from sessions.model.types import CommandId, InputFile, InputText, Principal, SessionId, TenantId
from transport.files.attachments import ATTACHMENTS_MAX, AttachmentReader, ReadFile
from transport.history_index import Unit

ANA = Principal(tenant=TenantId("acme"), key_id="ana", user="ana")
STORED = InputFile(file_id="file-1")
READ = "\n[File: a.txt]\nits words\n[End of file: a.txt]\n"


async def stored(principal: Principal, file_id: str) -> ReadFile:
    if file_id != "file-1":
        raise file_not_found(file_id)
    return ReadFile("a.txt", "text/plain", 9, DocumentText("text/plain", "its words\n"))


async def given(content: bytes, filename: str, media_type: str) -> ReadFile:
    return ReadFile(filename, media_type, len(content), DocumentText("text/x", content.decode()))


class NoImages:
    async def stored(self, principal: Principal, file_id: str) -> bytes:
        raise file_not_found(file_id)

    async def fetched(self, url: str) -> bytes:
        raise BadInput("unsupported_parameter", "It fetches none.")

    async def decoded(self, content: bytes, *, edge_max: int, bytes_max: int) -> DecodedImage:
        return DecodedImage("image/png", content[:bytes_max], min(640, edge_max), 480)


READER = AttachmentReader(stored, given, NoImages(), bytes_max=100)


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
        await READER.command(ANA, a_message(InputFile(file_data="A" * 400)))
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
