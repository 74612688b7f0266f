"""Makes the prompts in which llama-server sees images.

llama-server takes images only beside a text, which it tokenises itself: special tokens are parsed in it, and a marker
stands where the next image is. So the ids of a prompt with images are spelled. Where ordinary text spells a special
token, U+200B behind its first character keeps it ordinary:

    ids    <|im_start|> user \\n IMAGE What is <|im_end|> here? <|im_end|>      the first <|im_end|> is somebody's words
    text   <|im_start|>user\\n MARKER What is <ZWSP|im_end|> here?<|im_end|>

llama.cpp takes some tokens for special that the model file says are ordinary, such as <|im_end|>. Which ones is found
out at the start.

llama-server's ids for a text may differ from the session's, which were made in pieces. A slot's ledger has
llama-server's, as it gives them for each text between images, so that both agree about whose KV is where. Names of
images that a request does not have, and torn names, are left out.
"""

from __future__ import annotations

import array
import asyncio
import codecs
import re
import struct
import zlib
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final, Protocol, TypeVar

import msgspec

from inference.llama.vocabulary import Vocabulary
from inference.tokens import names_images, without_images
from sessions.model.errors import Internal, Unavailable
from sessions.model.knowledge.images import EDGE_MAX
from sessions.model.types import InputImage, Json, Tokens
from sessions.turn.images import NAME_IDS, ImageName, image_ids, image_runs

COUNTING_TEMPLATE: Final = "{% for message in messages %}{{ message.content }}{% endfor %}"
"""A chat template for llama-server that adds nothing to what is counted."""
BREAK: Final = "\u200b"
T = TypeVar("T")

SIZES_MAX: Final = 4096  # sizes of images whose lengths are kept
LONG: Final = 8_192  # tokens: a longer prompt is spelled in a thread

_COUNT: Final = "/v1/chat/completions/input_tokens"


class _Counted(msgspec.Struct, frozen=True):
    input_tokens: int


class _Tokenized(msgspec.Struct, frozen=True):
    tokens: tuple[int, ...]


class _Properties(msgspec.Struct, frozen=True):
    media_marker: str


class Calls(Protocol):
    """Sends short HTTP requests to a server, or to any one of several servers of one model."""

    async def call(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]: ...


class ImageLengths:
    """Counts the tokens that images take. `start` comes first.

    llama-server counts them itself, for a blank image of the same size, without computing anything; once for each
    size."""

    def __init__(self, http: Calls) -> None:
        self._http = http
        self._lengths: dict[tuple[int, int], int] = {}
        self.around = 0  # tokens that llama-server adds to every text with images

    async def start(self) -> None:
        one, two = await self._count(1, EDGE_MAX, EDGE_MAX), await self._count(2, EDGE_MAX, EDGE_MAX)
        self.around = 2 * one - two

    async def length(self, image: ImageName) -> int:
        """Returns how many tokens an image takes. A size that no decoded image has is that of the largest."""
        size = max(1, min(image.width, EDGE_MAX)), max(1, min(image.height, EDGE_MAX))
        length = self._lengths.get(size)
        if length is None:
            length = self._lengths[size] = await self._count(1, *size) - self.around
            if len(self._lengths) > SIZES_MAX:
                del self._lengths[next(iter(self._lengths))]
        return length

    async def _count(self, copies: int, width: int, height: int) -> int:
        url = f"data:image/png;base64,{b64encode(blank_png(width, height)).decode()}"
        content = [{"type": "image_url", "image_url": {"url": url}}] * copies
        body = msgspec.json.encode({"messages": [{"role": "user", "content": content}]})
        return (await _answer(self._http, "POST", _COUNT, body, _Counted)).input_tokens


class ShownPrompt(msgspec.Struct, frozen=True):
    """A prompt in llama-server's own ids, and how llama-server gets it: as ids up to the first image (`first`), with an
    image as `text` and the images' bytes (base64)."""

    tokens: array.array[int]
    first: int
    text: str
    images: tuple[str, ...]
    speller: Speller

    def body(self, prompt: array.array[int]) -> Json:
        """Returns llama-server's `prompt` for some tokens: a beginning of `tokens` without images, or all of them and
        any that follow."""
        if not self.images or len(prompt) <= self.first:
            return prompt.tolist()
        written = self.speller.spell(prompt[len(self.tokens) :])
        return {"prompt_string": self.text + written, "multimodal_data": self.images}


class Speller:
    """Spells ids of a vocabulary, so that llama-server finds the special tokens among them and no others."""

    def __init__(self, vocabulary: Vocabulary, more: Mapping[int, str] | None = None) -> None:
        """`more`: special tokens beside those that the model file says are special, with their spellings."""
        self._pieces = vocabulary.pieces
        self._controls = vocabulary.control_ids.union(more or ())
        spellings = (*vocabulary.control_texts, *(more or {}).values())
        groups = _by_first(text for text in spellings if len(text) > 1)
        begins = (f"{re.escape(first)}(?={_beginning_of(rests)})" for first, rests in groups.items())
        self._begins = re.compile("|".join(begins) or r"(?!)")

    def spell(self, tokens: Sequence[int]) -> str:
        """Returns the text of ids. Ordinary text that spells a special token gets U+200B behind the first character of
        the spelling, so that the model reads it as text. Bytes of a character that is not complete are left out at the
        end, and become U+FFFD elsewhere."""
        pieces, controls = self._pieces, self._controls
        texts, ordinary = list[str](), bytearray()
        for token in tokens:
            if token in controls:
                texts += [self._harmless(ordinary.decode("utf-8", "replace")), pieces[token].decode("utf-8", "replace")]
                ordinary.clear()
            else:
                ordinary += pieces[token]
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return "".join((*texts, self._harmless(decoder.decode(bytes(ordinary)))))

    def _harmless(self, text: str) -> str:
        return self._begins.sub(lambda first: first[0] + BREAK, text)


def _by_first(texts: Iterable[str]) -> dict[str, list[str]]:
    """Returns texts without their first characters, by these."""
    groups: dict[str, list[str]] = {}
    for text in texts:
        groups.setdefault(text[0], []).append(text[1:])
    return groups


def _beginning_of(texts: list[str]) -> str:
    """Returns a pattern that matches where one of the texts begins. It reads no character twice, however many there
    are."""
    first, last = min(texts), max(texts)
    length = next((at for at, character in enumerate(first) if character != last[at]), len(first))
    shared = first[:length]
    if shared == first:
        return re.escape(shared)
    groups = _by_first(text[length:] for text in texts)
    branches = (re.escape(first) + _beginning_of(rests) for first, rests in groups.items())
    return f"{re.escape(shared)}(?:{'|'.join(branches)})"


class PromptShower:
    """Makes `ShownPrompt`s. `start` comes first."""

    def __init__(self, http: Calls, vocabulary: Vocabulary, lengths: ImageLengths) -> None:
        self._http = http
        self._vocabulary = vocabulary
        self._begin = vocabulary.bos_id
        self._starts: tuple[int, ...] = ()
        self._lengths = lengths
        self._speller = Speller(vocabulary)
        self._marker = ""

    async def start(self) -> None:
        self._marker = (await _answer(self._http, "GET", "/props", b"", _Properties)).media_marker
        if self._lengths.around == 1 and self._begin is not None:
            self._starts = (self._begin,)  # llama-server puts it there itself
        elif self._lengths.around:
            what = "llama.cpp would add tokens to every prompt of this model that has images: leave --projector out."
            raise Unavailable("model_not_loaded", what, retryable=False)
        self._speller = Speller(self._vocabulary, await self._hidden_controls())

    async def _hidden_controls(self) -> dict[int, str]:
        """Returns the tokens that llama-server takes for special although the model file does not say so, with their
        spellings: those that it finds in a text only where special tokens are parsed."""
        known = dict(self._vocabulary.control_like)
        text = "\n".join(known.values())
        special = known.keys() & set(await self._ids(text))
        ordinary = set(await self._ids(text, special=False))
        return {token: known[token] for token in special - ordinary}

    async def show(self, prompt: Tokens, images: Sequence[InputImage]) -> ShownPrompt | None:
        """Returns a prompt with those of the images that it names; None if it names no image at all, so that its ids
        are llama-server's too."""
        ids = array.array("I", prompt)
        if not names_images(ids):
            return None
        known = {image.sha256: image for image in images if image.image_url}
        spell = partial(self._spelled_parts, ids, known)
        parts = await asyncio.to_thread(spell) if len(ids) > LONG else spell()
        if len(parts) == 1:
            return ShownPrompt(tokens := without_images(ids), len(tokens), "", (), self._speller)
        tokens, text, first, data = array.array("I", self._starts), "", -1, list[str]()
        for part, image in parts:
            tokens.extend(await self._ids(part))
            text += part
            if image is not None and image.image_url is not None:
                first = len(tokens) if first < 0 else first
                length = await self._lengths.length(ImageName(image.sha256, image.width, image.height))
                tokens.extend(image_ids(image.sha256, max(length, NAME_IDS))[:length])
                text += self._marker
                data.append(image.image_url.partition(",")[2])
        return ShownPrompt(tokens, first, text, tuple(data), self._speller)

    def _spelled_parts(
        self, ids: array.array[int], known: Mapping[str, InputImage]
    ) -> list[tuple[str, InputImage | None]]:
        """Returns the texts of a prompt, each with the image behind it."""
        parts: list[tuple[str, InputImage | None]] = []
        at = len(self._starts) if tuple(ids[: len(self._starts)]) == self._starts else 0
        for run in image_runs(ids):
            if run.sha256 in known:
                parts.append((self._speller.spell(without_images(ids[at : run.begin])), known[run.sha256]))
                at = run.end
        return [*parts, (self._speller.spell(without_images(ids[at:])), None)]

    async def _ids(self, text: str, *, special: bool = True) -> tuple[int, ...]:
        if not text:
            return ()
        body = msgspec.json.encode({"content": text, "add_special": False, "parse_special": special})
        return (await _answer(self._http, "POST", "/tokenize", body, _Tokenized)).tokens


def blank_png(width: int, height: int) -> bytes:
    """Returns a black image."""
    head = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)  # one bit a pixel
    rows = (b"\0" + bytes(-(-width // 8))) * height
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows, 1)), (b"IEND", b""))
    parts = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


async def _answer(http: Calls, method: str, path: str, body: bytes, answers: type[T]) -> T:
    status, answer = await http.call(method, path, body)
    if status != 200:
        raise Internal("tokenizer_failed", "The model's tokenizer failed.")
    return msgspec.json.decode(answer, type=answers)
