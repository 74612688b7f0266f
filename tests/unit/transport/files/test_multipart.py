"""Forms are taken apart as they come, at every cut."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from sessions.model.errors import BadInput
from transport.files.multipart import FIELD_BYTES_MAX, FIELDS_MAX, HEADER_BYTES_MAX, UploadForm

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
