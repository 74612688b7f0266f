"""The tokenizer of a Hugging Face model folder: `tokenizers` encodes, our scaffold says what is encoded.

Special tokens are parsed in scaffold strings only, which the tags around a call are too: some models know them as
special tokens. Scaffold and openings are tokenised once and kept; long texts are encoded in a thread, because the
library gives the interpreter's lock back.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from inference.chat_template import ChatTemplate, call_text
from inference.vllm.model_folder import VllmModel
from sessions.model.errors import BadInput
from sessions.model.types import Tokens, Tool
from sessions.ports import ChatMessage
from sessions.turn.tool_call_parser import CLOSE, OPEN

_OPENINGS_MAX: Final = 256
_INLINE_CHARS_MAX: Final = 2_000
_ANCHOR: Final = "\n"  # SentencePiece puts its space before this and not before the text


class VllmTokenizer:
    """Implements `Tokenizer`. The constructor reads the file: make it in a thread."""

    def __init__(self, file: Path, template: ChatTemplate, *, bos: str = "") -> None:
        from tokenizers import Tokenizer as Encoder

        content = file.read_bytes()
        self._parsing: Any = Encoder.from_buffer(content)
        self._plain: Any = Encoder.from_buffer(content)
        self._plain.encode_special_tokens = True
        self.template = template
        digest = hashlib.blake2b(content + template.source.encode(), digest_size=12)
        self._fingerprint = f"hf-{digest.hexdigest()}"
        self._openings: OrderedDict[tuple[str | None, bytes], tuple[int, ...]] = OrderedDict()
        bos_id = self._parsing.token_to_id(bos) if bos else None
        starts = self._parsing.encode("", add_special_tokens=True).ids
        self._starts: tuple[int, ...] = (bos_id,) if bos_id is not None and bos_id in starts else ()
        anchor = self._plain.encode(_ANCHOR, add_special_tokens=False).ids
        spaced = len(anchor) > 1 and self._plain.decode(anchor[:1]).strip() == ""
        self._anchor: tuple[int, ...] = tuple(anchor) if spaced else ()
        added = self._parsing.get_added_tokens_decoder().values()
        self.has_special_tags: bool = any(token.special and token.content in (OPEN, CLOSE) for token in added)
        self._scaffold: dict[str, tuple[int, ...]] = {}
        for around in template.scaffold.roles.values():
            for piece in (around.before, around.after):
                self._scaffold[piece] = self._encode(piece, special=True)

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    @property
    def vocabulary_size(self) -> int:
        return int(self._parsing.get_vocab_size(with_added_tokens=True))

    @property
    def renders_tools(self) -> bool:
        return self.template.scaffold.tools

    @property
    def answer_opening(self) -> Tokens:
        return self._scaffold[self.template.scaffold.answer_opening]

    @property
    def answer_closing(self) -> Tokens:
        return self._scaffold[self.template.scaffold.answer_closing]

    def token_id(self, spelling: str) -> int | None:
        found = self._parsing.token_to_id(spelling)
        return None if found is None else int(found)

    async def opening(self, instructions: str | None, tools: Sequence[Tool]) -> Tokens:
        name = (instructions, msgspec.json.encode(tools))
        known = self._openings.get(name)
        if known is not None:
            self._openings.move_to_end(name)
            return known
        tokens: list[int] = []
        for piece, special in self.template.opening(instructions, tools):
            tokens += self._encode(piece, special=True) if special else await self.text(piece)
        if self._starts and tuple(tokens[:1]) != self._starts:
            tokens[:0] = self._starts
        made = self._openings[name] = tuple(tokens)
        while len(self._openings) > _OPENINGS_MAX:
            self._openings.popitem(last=False)
        return made

    async def message(self, message: ChatMessage) -> Tokens:
        around = self.template.scaffold.roles[message.role]
        calls = [call_text(name, arguments) for _, name, arguments in message.calls]
        text = "\n".join([message.text, *calls] if message.text else calls)
        if not (calls and self.has_special_tags):
            tokens = await self.text(text)
        elif len(text) > _INLINE_CHARS_MAX:
            tokens = await asyncio.to_thread(self._with_tags, message.text, calls)
        else:
            tokens = self._with_tags(message.text, calls)
        return (*self._scaffold[around.before], *tokens, *self._scaffold[around.after])

    async def text(self, text: str) -> Tokens:
        if len(text) > _INLINE_CHARS_MAX:
            return await asyncio.to_thread(self._text, text)
        return self._text(text)

    def _with_tags(self, text: str, calls: list[str]) -> tuple[int, ...]:
        """A text and calls whose own tags, and no others, become special tokens."""
        tokens: list[int] = list(self._text(text + "\n")) if text else []
        for number, call in enumerate(calls):
            tokens += self._encode("\n" + OPEN if number else OPEN, special=True)
            tokens += self._encode(call.removeprefix(OPEN).removesuffix(CLOSE), special=False)
            tokens += self._encode(CLOSE, special=True)
        return tuple(tokens)

    def _text(self, text: str) -> tuple[int, ...]:
        if not self._anchor:
            return self._encode(text, special=False)
        tokens = self._encode(_ANCHOR + text, special=False)
        if tokens[: len(self._anchor)] != self._anchor:
            return self._encode(text, special=False)
        return tokens[len(self._anchor) :]

    def _encode(self, text: str, *, special: bool) -> tuple[int, ...]:
        if not text:
            return ()
        encoder = self._parsing if special else self._plain
        return tuple(encoder.encode(text, add_special_tokens=False).ids)


def read_tokenizer(model: VllmModel, template: ChatTemplate) -> VllmTokenizer:
    """Blocking. Raises BadInput that names the file."""
    file = model.path / "tokenizer.json"
    try:
        return VllmTokenizer(file, template, bos=model.token_text("bos_token"))
    except Exception as exc:  # the library raises nothing more special
        raise BadInput(
            "bad_model_file",
            f"The tokenizer {file} cannot be used ({exc}). Fetch the model's folder anew.",
            param="model",
        ) from exc
