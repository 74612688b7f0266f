"""The tokenizer of a Hugging Face model folder: `tokenizers` encodes, our scaffold says what is encoded.

Special tokens are parsed in scaffold strings only, which the tags around a call are too: some models know them as
special tokens. Scaffold and openings are tokenised once and kept; long texts are encoded in a thread, by the one call
of the library that gives the interpreter's lock back meanwhile.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from inference.chat_template import ChatTemplate, template_source
from inference.template_tokenizer import ANCHOR, TemplateTokenizer
from inference.tokens import byte_alphabet
from inference.vllm.model_folder import VllmModel
from sessions.model.errors import BadInput
from sessions.model.generation import TokenizerInfo
from sessions.model.types import Tokens
from sessions.ports import ChatMessage
from sessions.turn.images import PATCH, ImageName
from sessions.turn.tool_call_parser import CLOSE, OPEN

_INLINE_CHARS_MAX: Final = 2_000


class MeasuresImages(Protocol):
    """Counts the tokens that images take."""

    @property
    def fingerprint(self) -> str:
        """The name of the preprocessing on which the counts depend."""

    def length(self, image: ImageName) -> Awaitable[int]: ...


class VllmTokenizer(TemplateTokenizer):
    """Tokenizes by the model's `tokenizer.json`. Implements `Tokenizer`. The constructor reads the file: make it in a
    thread."""

    def __init__(
        self,
        file: Path,
        template: ChatTemplate,
        *,
        bos: str = "",
        eos: str = "",
        images: MeasuresImages | None = None,
    ) -> None:
        """`images`: None for a model that sees none."""
        from tokenizers import Tokenizer as Encoder

        content = file.read_bytes()
        self._parsing: Any = Encoder.from_buffer(content)
        self._plain: Any = Encoder.from_buffer(content)
        self._plain.encode_special_tokens = True
        seen = f"\0{images.fingerprint}" if images is not None else ""
        digest = hashlib.blake2b(content + f"{template.source}{seen}".encode(), digest_size=12)
        bos_id = self._parsing.token_to_id(bos) if bos else None
        starts = self._parsing.encode("", add_special_tokens=True).ids
        begins = (bos_id,) if bos_id is not None and bos_id in starts else ()
        super().__init__(template, f"hf-{digest.hexdigest()}", begins)
        self._images = images
        self.sees = images is not None
        anchor = self._plain.encode(ANCHOR, add_special_tokens=False).ids
        spaced = len(anchor) > 1 and self._plain.decode(anchor[:1]).strip() == ""
        self._anchor: tuple[int, ...] = tuple(anchor) if spaced else ()
        self._added: dict[int, str] = {
            token: each.content for token, each in self._parsing.get_added_tokens_decoder().items()
        }
        self._alphabet = byte_alphabet() if b"ByteLevel" in _decoder_of(content) else None
        self._named = {text: self.token_id(text) for text in (bos, eos) if text}
        self._bos, self._eos = bos, eos
        added = self._parsing.get_added_tokens_decoder()
        self.special_ids: frozenset[int] = frozenset(number for number, token in added.items() if token.special)
        special = {added[number].content for number in self.special_ids}
        self.has_special_tags: bool = bool(special & {OPEN, CLOSE})
        self.shows_specials: bool = bool(special & {OPEN, CLOSE, *template.shown_specials})
        for around in template.scaffold.roles.values():
            for piece in (around.before, around.after):
                self._scaffold[piece] = self._encode(piece, special=True)
        end = self._encode(template.answer_end(), special=True)[:1]
        known = self._parsing.get_added_tokens_decoder()
        end += tuple(token for mark in template.answer_ends if (token := self.token_id(mark)) is not None)
        self.answer_end: tuple[int, ...] = tuple(token for token in end if token in known)  # no token of plain text

    @property
    def vocabulary_size(self) -> int:
        return int(self._parsing.get_vocab_size(with_added_tokens=True))

    def token_id(self, spelling: str) -> int | None:
        found = self._parsing.token_to_id(spelling)
        return None if found is None else int(found)

    @property
    def about(self) -> TokenizerInfo:
        named = {text: token for text, token in self._named.items() if token is not None}
        return TokenizerInfo(
            vocabulary_size=self.vocabulary_size,
            bos_token=self._bos or None,
            eos_token=self._eos or None,
            chat_template=self.template.source,
            special_ids=named,
            ends=frozenset(named.values()),
        )

    def pieces(self, tokens: Sequence[int]) -> list[bytes]:
        return [self._token_bytes(token) if token < PATCH else b"" for token in tokens]

    def _token_bytes(self, token: int) -> bytes:
        if token in self._added:
            return self._added[token].encode()
        spelling = str(self._parsing.id_to_token(token) or "")
        if self._alphabet is not None and all(letter in self._alphabet for letter in spelling):
            return bytes(self._alphabet[letter] for letter in spelling)
        if len(spelling) == 6 and spelling.startswith("<0x"):  # how SentencePiece spells a byte
            return bytes([int(spelling[3:5], 16)])
        return spelling.replace("\u2581", " ").encode()

    async def image_length(self, image: ImageName) -> int:
        assert self._images is not None
        return await self._images.length(image)

    async def _opening_piece(self, piece: str, *, special: bool) -> Tokens:
        return self._encode(piece, special=True) if special else await self.text(piece)

    async def _content(self, message: ChatMessage, calls: list[str]) -> Tokens:
        text = message.text
        if not (calls and self.has_special_tags):
            return await super()._content(message, calls)
        if len(text) + sum(map(len, calls)) > _INLINE_CHARS_MAX:
            return await asyncio.to_thread(self._with_tags, text, calls)
        return self._with_tags(text, calls)

    async def text(self, text: str) -> Tokens:
        if len(text) > _INLINE_CHARS_MAX:
            return await asyncio.to_thread(self._text, text)
        return self._text(text)

    def _with_tags(self, text: str, calls: list[str]) -> tuple[int, ...]:
        """Returns the tokens of a text and calls; only the calls' own tags become special tokens."""
        tokens: list[int] = list(self._text(text + "\n")) if text else []
        for number, call in enumerate(calls):
            tokens += self._encode("\n" + OPEN if number else OPEN, special=True)
            tokens += self._encode(call.removeprefix(OPEN).removesuffix(CLOSE), special=False)
            tokens += self._encode(CLOSE, special=True)
        return tuple(tokens)

    def _text(self, text: str) -> tuple[int, ...]:
        if not self._anchor:
            return self._encode(text, special=False)
        tokens = self._encode(ANCHOR + text, special=False)
        if tokens[: len(self._anchor)] != self._anchor:
            return self._encode(text, special=False)
        return tokens[len(self._anchor) :]

    def _encode(self, text: str, *, special: bool) -> tuple[int, ...]:
        if not text:
            return ()
        encoder = self._parsing if special else self._plain
        if len(text) > _INLINE_CHARS_MAX:  # `encode` keeps the interpreter's lock: in a thread, too, nobody else runs
            return tuple(encoder.encode_batch_fast([text], add_special_tokens=False)[0].ids)
        return tuple(encoder.encode(text, add_special_tokens=False).ids)


def _decoder_of(content: bytes) -> bytes:
    return json.dumps(json.loads(content).get("decoder")).encode()


def read_tokenizer(model: VllmModel, template: ChatTemplate, images: MeasuresImages | None = None) -> VllmTokenizer:
    """Reads the model's tokenizer. Blocking. Raises BadInput that names the file."""
    file = model.path / "tokenizer.json"
    try:
        bos, eos = model.token_text("bos_token"), model.token_text("eos_token")
        return VllmTokenizer(file, template, bos=bos, eos=eos, images=images)
    except Exception as exc:  # the library raises nothing more special
        raise BadInput(
            "bad_model_file",
            f"The tokenizer {file} cannot be used ({exc}). Fetch the model's folder anew.",
            param="model",
        ) from exc


def folder_template(name: str | None, model: VllmModel) -> ChatTemplate:
    """Returns the template that an engine's option names, for a model's folder. Raises BadInput."""
    missing = "The model brings no chat template. Start with --chat-template chatml, or give one."
    source = template_source(name, model.chat_template, missing)
    settings = model.tokenizer_config
    added = settings.get("added_tokens_decoder", {})
    specials = [entry["content"] for entry in added.values() if isinstance(entry, dict) and entry.get("special")]
    extra = [text for text in (model.token_text("bos_token"), model.token_text("eos_token")) if text]
    return ChatTemplate(
        source,
        bos=model.token_text("bos_token"),
        eos=model.token_text("eos_token"),
        specials=[*specials, *extra],
    )
