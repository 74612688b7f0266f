"""Names the images of a conversation, in the texts that tokenizers get and in the token ids that they return.

    text   MARK sha256 WIDTHxHEIGHT MARK               in the place where the image stands
    ids    FIRST|h0  NEXT|h1 … NEXT|h10  PATCH PATCH …   three bytes of the hash each, then as many as it takes

The ids depend on the hash of the image as the model sees it, so that prompts with different images share no KV from
there on, whatever names a prefix of them. No vocabulary has such ids: an engine replaces each run by the image. The
idea to derive ids from an image's hash is SGLang's.

Anybody can write what looks like a name. Only `prompt_text` names images: it leaves no mark in words, and in a message
that does not say that it names images (`ChatMessage.names_images`) a mark is text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from sessions.model.types import ContentPart, InputImage, Item, Message, Tokens
from sessions.ports import ChatMessage

MARK: Final = "\ufdd4"  # a noncharacter of Unicode
UNSEEN: Final = "[An image, which this model cannot see.]"
PATCH: Final = 0x8000_0000
NEXT: Final = 0x8100_0000
FIRST: Final = 0x8200_0000
NAME_IDS: Final = 11  # 33 bytes, the last of which is 0
PATCH_PIXELS: Final = 32
PATCHES_MAX: Final = 1536

_NAME: Final = re.compile(rf"{MARK}([0-9a-f]{{64}}) ([0-9]{{1,5}})x([0-9]{{1,5}}){MARK}")


class ImageName(NamedTuple):
    """An image as a text names it: the hash of its bytes (hex), and its size in pixels."""

    sha256: str
    width: int
    height: int


def prompt_text(content: Sequence[ContentPart], *, sees: bool) -> str:
    """Returns a message's text for its tokenizer, in which images have names. `sees` is false for a model that sees no
    images: it reads that there was one."""
    return "".join(_prompt_part(part, sees=sees) for part in content)


def _prompt_part(part: ContentPart, *, sees: bool) -> str:
    if isinstance(part, InputImage):
        return (f"{MARK}{part.sha256} {part.width}x{part.height}{MARK}" if sees else UNSEEN) if part.image_url else ""
    return without_names(getattr(part, "text", ""))


def without_names(text: str) -> str:
    """Returns a text that cannot name images."""
    return text.replace(MARK, "\ufffd")


def named_parts(message: ChatMessage) -> Iterator[str | ImageName]:
    """Yields the texts and images of a message, in order."""
    if message.names_images:
        return split_names(message.text)
    return iter((without_names(message.text),))


def split_names(text: str) -> Iterator[str | ImageName]:
    """Yields the texts between images, and the images' names."""
    begin = 0
    for match in _NAME.finditer(text):
        if match.start() > begin:
            yield text[begin : match.start()]
        yield ImageName(match[1], int(match[2]), int(match[3]))
        begin = match.end()
    if begin < len(text):
        yield text[begin:]


def patches_of(image: ImageName) -> int:
    """Returns how many tokens an image counts where nobody knows how many the model takes: one for each square of 32
    pixels."""
    across, down = -(-image.width // PATCH_PIXELS), -(-image.height // PATCH_PIXELS)
    return max(1, min(PATCHES_MAX, across * down))


def image_ids(sha256: str, length: int) -> list[int]:
    """Returns the `length` ids of an image; at least `NAME_IDS`."""
    data = bytes.fromhex(sha256) + b"\0"
    name = [int.from_bytes(data[at : at + 3], "little") for at in range(0, len(data), 3)]
    return [FIRST | name[0], *(NEXT | part for part in name[1:]), *[PATCH] * (length - NAME_IDS)]


class ImageRun(NamedTuple):
    """The place of an image in a prompt: ids from `begin` up to `end`."""

    sha256: str
    begin: int
    end: int


def image_runs(tokens: Tokens) -> Iterator[ImageRun]:
    """Yields the images in a prompt, in order. Ids that are a part of an image's name alone are left out."""
    begin, name = -1, list[int]()
    for at, token in enumerate((*tokens, 0)):
        if begin >= 0 and (token < PATCH or token >= FIRST):
            if len(name) == NAME_IDS:
                yield ImageRun(_hash_of(name), begin, at)
            begin = -1
        if token >= FIRST:
            begin, name = at, [token]
        elif token >= NEXT:
            name.append(token)


def whole_names(tokens: Tokens, length: int) -> int:
    """Returns how many of the first `length` tokens name the images among them as a whole: `length`, or the tokens in
    front of an image if the first `length` ones end within its name."""
    if length < len(tokens) and NEXT <= tokens[length] < FIRST:
        while length and NEXT <= tokens[length] < FIRST:
            length -= 1
    return length


def _hash_of(name: Iterable[int]) -> str:
    return b"".join((part & 0xFF_FFFF).to_bytes(3, "little") for part in name)[:-1].hex()


def images_of(items: Iterable[Item]) -> tuple[InputImage, ...]:
    """Returns the images of messages, each once."""
    found = (image for item in items if isinstance(item, Message) for image in item.images)
    return tuple({image.sha256: image for image in found}.values())
