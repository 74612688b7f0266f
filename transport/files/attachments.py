"""Puts the text of each file that a command names into the command, and each image, as a part of its message.

    {"type": "input_file", "file_id": "file-…"}    ─►    the same with `filename`, `media_type`, `size` and `text`

    {"type": "input_image", "image_url": "data:…"}     ─►    the image as models see it, with its hash and size

From there on a file is a text like any other: limits count it, filters judge it, the model reads it, and the log keeps
it, so that what a prompt holds never changes, whatever becomes of the file. What a client says itself of a file's text
is left out. An edit keeps the files and images of the message that it replaces as the log has them, each once: they may
be deleted since, or have come as bytes. An image is in the log itself, so that it lives as long as its message:
decoded, without metadata, and made smaller until a message's images take `IMAGE_BYTES` together. Raises NotFound for a
file that is not the sender's, and what `ports.TextExtractor` and `ports.ImageDecoder` raise, with the `param`.

Bounded, for a command or a history as a whole: it reads each file once, however often it is named, and
`READ_BYTES_MAX` bytes of files, and becomes `SHOWN_MAX` characters longer.
"""

from __future__ import annotations

import binascii
import hashlib
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from sessions.model import commands as cm
from sessions.model.errors import BadInput, SessileError, TooLarge
from sessions.model.knowledge.documents import DocumentText
from sessions.model.knowledge.files import safe_filename, safe_media_type
from sessions.model.knowledge.images import DECODED_BYTES_MAX, EDGE_MAX, DecodedImage
from sessions.model.types import InputFile, InputImage, Principal
from transport.history_index import Unit

ATTACHMENTS_MAX: Final = 32  # of one command
IMAGE_BYTES: Final = 540_000  # of all images of a message, which has a megabyte for everything in base64
LOW_EDGE: Final = 512  # pixels, of an image with detail "low"
SHOWN_MAX: Final = 8 << 20  # characters of all files' texts and images in base64; a write of the journal has 16 MiB
READ_BYTES_MAX: Final = 128 << 20  # of all files that one command has read; a single file may be larger

Content = cm.Content
Part = InputFile | InputImage


class ReadFile(msgspec.Struct, frozen=True):
    """One uploaded file together with its text."""

    filename: str
    media_type: str
    size: int
    document: DocumentText


class ImageBounds(NamedTuple):
    """How large a decoded image may be: its longest edge in pixels, and its bytes."""

    edge_max: int
    bytes_max: int


class CommandFiles:
    """The files and images that one command names, as far as they were read."""

    def __init__(self) -> None:
        self.kept: list[Part] = []  # of the message that an edit replaces
        self.files: dict[str, InputFile] = {}  # by file id
        self.images: dict[tuple[str | None, str | None, ImageBounds], InputImage] = {}  # by file id, or URL
        self._read_bytes = 0
        self._shown = 0

    def take_read(self, size: int) -> None:
        """Counts the bytes of a file that is about to be read. Raises TooLarge if the command has too many."""
        if self._read_bytes and self._read_bytes + size > READ_BYTES_MAX:
            what = f"The files of a request have at most {READ_BYTES_MAX} bytes: send fewer."
            raise TooLarge("too_large", what)
        self._read_bytes += size

    def take_shown(self, part: Part, at: str) -> None:
        """Counts a part that becomes a part of the command. Raises TooLarge if they are too much together."""
        self._shown += len(part.image_url or "") if isinstance(part, InputImage) else len(part.text)
        if self._shown > SHOWN_MAX:
            what = f"The images and files of a request take at most {SHOWN_MAX} characters together: send fewer."
            raise TooLarge("too_large", what, param=at)


class ImageReader(Protocol):
    """Gets images from where they are, and has them decoded. Raises what `ports.ImageDecoder` raises."""

    async def stored(
        self, principal: Principal, file_id: str, bounds: ImageBounds, files: CommandFiles
    ) -> DecodedImage:
        """Returns the image of an uploaded file. Raises NotFound, and TooLarge if it is too much for `files`."""
        ...

    async def fetched(self, url: str, bounds: ImageBounds, files: CommandFiles) -> DecodedImage:
        """Returns the image at an https address. Raises BadInput if the address is not permitted, or gives none."""
        ...

    async def decoded(self, content: bytes, bounds: ImageBounds) -> DecodedImage:
        """Returns the image that some bytes are."""
        ...


ReadStored = Callable[[Principal, str, CommandFiles], Awaitable[ReadFile]]
ReadGiven = Callable[[bytes, str, str], Awaitable[ReadFile]]
ReadEdited = Callable[[Principal, cm.MessageEdit], Awaitable[Sequence[Part]]]


class AttachmentReader:
    """Puts the texts of files, and images, into commands. `stored` reads an uploaded file by its id, for the principal
    who may see it; `given` reads the bytes of a file that came in the message itself."""

    def __init__(self, stored: ReadStored, given: ReadGiven, images: ImageReader, *, bytes_max: int) -> None:
        self._stored = stored
        self._given = given
        self._images = images
        self._bytes_max = bytes_max

    async def command(
        self, principal: Principal, command: cm.ActorCommand, edited: ReadEdited | None = None
    ) -> cm.ActorCommand:
        """Returns a command in which each file is replaced by its text. `edited` reads the files of the message that an
        edit replaces; without it, an edit keeps no files."""
        match command:
            case cm.MessageCreate() | cm.MessageEdit() | cm.ResponseSteer():
                if not num_attachments(command.content):
                    return command
                role = command.role if isinstance(command, cm.MessageCreate) else "user"
                files = CommandFiles()
                if isinstance(command, cm.MessageEdit) and edited is not None:
                    files.kept += await edited(principal, command)
                content = await self._content(principal, command.content, role, "content", files, anew=True)
                return msgspec.structs.replace(command, content=content)
            case cm.TurnCreate():
                files = CommandFiles()
                items = tuple([await self._item(principal, item, "input", files) for item in command.items])
                return command if items == command.items else msgspec.structs.replace(command, items=items)
        return command

    async def units(self, principal: Principal, units: Sequence[Unit]) -> list[Unit]:
        """Returns the messages of a history with each file replaced by its text. The history index and the turn both
        get this form."""
        messages = [item for unit in units for item in unit.items if isinstance(item, cm.NewMessage)]
        count = sum(num_attachments(message.content) for message in messages)
        if not count:
            return list(units)
        if count > 8 * ATTACHMENTS_MAX:
            raise _too_many()
        files = CommandFiles()
        return [
            unit._replace(items=tuple([await self._item(principal, item, unit.at, files) for item in unit.items]))
            for unit in units
        ]

    async def _item(self, principal: Principal, item: cm.NewItem, param: str, files: CommandFiles) -> cm.NewItem:
        if not isinstance(item, cm.NewMessage) or not num_attachments(item.content):
            return item
        content = await self._content(principal, item.content, item.role, param, files, anew=False)
        return msgspec.structs.replace(item, content=content)

    async def _content(
        self, principal: Principal, content: Content, role: str, param: str, files: CommandFiles, *, anew: bool
    ) -> Content:
        assert not isinstance(content, str)
        if role != "user":
            raise BadInput("invalid_request", "Only a user's message can have files and images.", param=param)
        if num_attachments(content) > ATTACHMENTS_MAX:
            raise _too_many()
        num_images = sum(isinstance(part, InputImage) for part in content)
        bytes_max = min(DECODED_BYTES_MAX, IMAGE_BYTES // max(1, num_images))
        parts = list[Any]()
        for place, part in enumerate(content):
            at = f"{param}[{place}]"
            match part:
                case InputFile() if anew or not part.text:
                    parts.append(_kept(part, files.kept) or await self._part(principal, part, at, files))
                case InputImage() if anew or not part.sha256:
                    bounds = ImageBounds(LOW_EDGE if part.detail == "low" else EDGE_MAX, bytes_max)
                    kept = _kept(part, files.kept)
                    if not isinstance(kept, InputImage):
                        parts.append(await self._image(principal, part, at, bounds, files))
                    elif _num_bytes(kept) <= bytes_max:
                        parts.append(kept)
                    else:  # it shares the message with more images now
                        smaller = msgspec.structs.replace(kept, file_id=None)
                        smaller = await self._image(principal, smaller, at, bounds, files)
                        parts.append(msgspec.structs.replace(smaller, file_id=kept.file_id))
                case _:
                    parts.append(part)
            if isinstance(parts[-1], Part):
                files.take_shown(parts[-1], at)
        return tuple(parts)

    async def _image(
        self, principal: Principal, part: InputImage, at: str, bounds: ImageBounds, files: CommandFiles
    ) -> InputImage:
        name = part.file_id, part.image_url if part.file_id is None else None, bounds
        read = files.images.get(name)
        if read is None:
            try:
                image = await self._decoded_image(principal, part, at, bounds, files)
            except SessileError as error:
                error.param = error.param or at
                raise
            read = files.images[name] = InputImage(
                image_url=f"data:{image.media_type};base64,{b64encode(image.data).decode()}",
                sha256=hashlib.sha256(image.data).hexdigest(),
                width=image.width,
                height=image.height,
            )
        return msgspec.structs.replace(read, file_id=part.file_id, detail=part.detail)

    async def _decoded_image(
        self, principal: Principal, part: InputImage, at: str, bounds: ImageBounds, files: CommandFiles
    ) -> DecodedImage:
        url = part.image_url or ""
        if part.file_id is not None:
            return await self._images.stored(principal, part.file_id, bounds, files)
        if url.startswith("data:"):
            return await self._images.decoded(_decoded(url, "`image_url`", self._bytes_max)[1], bounds)
        if url:
            return await self._images.fetched(url, bounds, files)
        raise BadInput("missing_required_parameter", f"'{at}' needs an `image_url`, or a `file_id`.")

    async def _part(self, principal: Principal, part: InputFile, at: str, files: CommandFiles) -> InputFile:
        if part.file_id is not None and part.file_id in files.files:
            return files.files[part.file_id]
        try:
            if part.file_id is not None:
                read = await self._stored(principal, part.file_id, files)
            elif part.file_data is not None:
                media_type, data = _decoded(part.file_data, "`file_data`", self._bytes_max)
                read = await self._given(data, safe_filename(part.filename), media_type)
            else:
                raise BadInput("missing_required_parameter", f"'{at}' needs a `file_id`, or `file_data`.")
        except SessileError as error:
            error.param = error.param or at
            raise
        file = InputFile(
            file_id=part.file_id,
            filename=read.filename,
            media_type=read.document.media_type,
            size=read.size,
            text=shown_text(read.filename, read.document),
        )
        if part.file_id is not None:
            files.files[part.file_id] = file
        return file


def _decoded(given: str, name: str, bytes_max: int) -> tuple[str, bytes]:
    """Decodes `data:TYPE;base64,BYTES`, or BYTES alone. Returns the media type ("" if there is none) and the decoded
    bytes. Raises BadInput, and TooLarge for more than `bytes_max` bytes."""
    media_type, encoded = "", given
    if given.startswith("data:"):
        head, comma, encoded = given[5:].partition(",")
        if not comma or not head.endswith(";base64"):
            raise BadInput("invalid_request", f"{name} is data:TYPE;base64,BYTES, or base64 alone.")
        media_type = safe_media_type(head)
    if not bytes_max:
        raise TooLarge("file_too_large", "This server takes no files.")
    if len(encoded) * 3 // 4 > bytes_max + 2:
        raise TooLarge("file_too_large", f"A file has at most {bytes_max} bytes.")
    try:
        return media_type, b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise BadInput("invalid_request", f"{name} is no base64.") from exc


def _kept(part: Part, kept: list[Part]) -> Part | None:
    """Takes the file or image out of `kept` that a part names. Returns None if there is none."""
    place = next((place for place, old in enumerate(kept) if _is_same(part, old)), None)
    return None if place is None else kept.pop(place)


def _is_same(part: Part, old: Part) -> bool:
    """Returns whether a part of an edit is one of the message before: an image by its URL as its client read it, a file
    by its filename if it came as bytes, else both by their ids."""
    if isinstance(part, InputImage) and isinstance(old, InputImage):
        same_file = part.image_url is None and part.file_id is not None and old.file_id == part.file_id
        return same_file or (part.image_url is not None and old.image_url == part.image_url)
    if isinstance(part, InputFile) and isinstance(old, InputFile) and part.file_data is None:
        return old.file_id == part.file_id and (part.file_id is not None or old.filename == part.filename)
    return False


def _num_bytes(image: InputImage) -> int:
    """Returns the bytes of an image whose URL has them in base64."""
    return len((image.image_url or "").partition(",")[2].rstrip("=")) * 3 // 4


def num_attachments(content: Content) -> int:
    """Returns how many files and images a content has."""
    return 0 if isinstance(content, str) else sum(isinstance(part, Part) for part in content)


def place_of_image(command: cm.ActorCommand) -> str | None:
    """Returns the place of the first image in a command that is still to be read; None if there is none."""
    match command:
        case cm.MessageCreate() | cm.MessageEdit() | cm.ResponseSteer():
            contents, anew = [command.content], True
        case cm.TurnCreate():
            contents, anew = [item.content for item in command.items if isinstance(item, cm.NewMessage)], False
        case _:
            return None
    for content in contents:
        for place, part in enumerate(cm.content_parts(content)):
            if isinstance(part, InputImage) and (anew or not part.sha256):
                return f"content[{place}]"
    return None


def shown_text(filename: str, document: DocumentText) -> str:
    """Returns a document as the model reads it in a message: between two lines that say what it is."""
    name = filename.replace("[", "(").replace("]", ")")
    text = document.text.strip("\n")
    more = "\n[The file goes on; this is its beginning.]" if document.cut else ""
    return f"\n[File: {name}]\n{text}{more}\n[End of file: {name}]\n"


def _too_many() -> BadInput:
    return BadInput("invalid_request", f"A message has at most {ATTACHMENTS_MAX} files and images.", param="content")
