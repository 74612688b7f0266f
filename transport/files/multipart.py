"""Takes a multipart form (RFC 7578) apart while it comes, by python-multipart: one file and a few short fields.

The file's bytes are handed on piece by piece and never kept. Bounded: fields in number and size, headers of a part, and
what stands around parts. Raises BadInput for what is no such form.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, NamedTuple

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from sessions.model.errors import BadInput

FIELDS_MAX: Final = 16
FIELD_BYTES_MAX: Final = 1024
HEADER_BYTES_MAX: Final = 4096  # of one header

Feed = Callable[[bytes], Awaitable[None]]

logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # it would write a line for every broken form


class FormFile(NamedTuple):
    """The fields with which a form describes its file."""

    filename: str
    media_type: str


class UploadForm:
    """A form with one file and a few short fields. `read` fills in `fields` and `file`; `file` stays None if the form
    has no file."""

    def __init__(self, content_type: str) -> None:
        kind, options = parse_options_header(content_type)
        self._boundary = options.get(b"boundary", b"")
        if kind != b"multipart/form-data" or not self._boundary:
            raise BadInput("invalid_request", "This request needs a form: Content-Type multipart/form-data.")
        self.fields: dict[str, str] = {}
        self.file: FormFile | None = None
        self._headers: dict[bytes, bytes] = {}
        self._name = self._value = b""
        self._field = ""  # the open part's; "file" for the file's
        self._data = bytearray()
        self._pieces: list[bytes] = []
        self._ended = False

    async def read(self, body: AsyncIterator[bytes], feed: Feed) -> None:
        """Reads the whole form from `body` and calls `feed` with the file's bytes as they come. Raises BadInput for a
        broken form."""
        parser = self._new_parser()  # of this call alone: the two would keep each other in memory
        async for piece in body:
            try:
                parser.write(piece)
            except FormParserError as exc:
                raise _broken() from exc
            for data in self._pieces:
                await feed(data)
            self._pieces.clear()
        if not self._ended:
            raise BadInput("invalid_request", "The form of this request is cut off.")

    def _new_parser(self) -> MultipartParser:
        try:
            return MultipartParser(
                self._boundary,
                {
                    "on_part_begin": self._part_begin,
                    "on_header_field": self._header_name,
                    "on_header_value": self._header_value,
                    "on_header_end": self._header_end,
                    "on_headers_finished": self._headers_finished,
                    "on_part_data": self._part_data,
                    "on_part_end": self._part_end,
                    "on_end": self._end,
                },
                max_header_count=FIELDS_MAX,
                max_header_size=HEADER_BYTES_MAX,
            )
        except FormParserError as exc:
            raise _broken() from exc

    # -- the parser's calls -------------------------------------------------------------------------------------------

    def _part_begin(self) -> None:
        self._headers.clear()
        self._data.clear()

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_end(self) -> None:
        self._headers[self._name.lower()] = self._value
        self._name = self._value = b""

    def _headers_finished(self) -> None:
        kind, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        name = options.get(b"name", b"").decode("utf-8", "replace")
        if kind != b"form-data" or not name:
            raise _broken()
        self._field = name
        if name == "file":
            if self.file is not None:
                raise BadInput("invalid_request", "This form has two files: upload them one by one.", param="file")
            filename = options.get(b"filename", b"").decode("utf-8", "replace")
            self.file = FormFile(filename, self._headers.get(b"content-type", b"").decode("latin-1"))
        elif name in self.fields or len(self.fields) >= FIELDS_MAX:
            raise BadInput("invalid_request", "This form has a field twice, or too many.", param=name[:64])

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        if self._field == "file":
            self._pieces.append(bytes(data[start:end]))
            return
        self._data += data[start:end]
        if len(self._data) > FIELD_BYTES_MAX:
            raise BadInput("invalid_request", "A field of this form is too long.", param=self._field[:64])

    def _part_end(self) -> None:
        if self._field != "file":
            self.fields[self._field] = self._data.decode("utf-8", "replace")

    def _end(self) -> None:
        self._ended = True


def _broken() -> BadInput:
    return BadInput("invalid_request", "The body of this request is no form as its Content-Type says.")
