"""What tokenizers of real models share, over one that knows a token for each character."""

from __future__ import annotations

import pytest

from inference import template_tokenizer
from inference.chat_template import CHATML, ChatTemplate
from inference.template_tokenizer import TemplateTokenizer
from sessions.model.types import Tokens
from sessions.ports import ChatMessage

BOS = 5000


class Spelling(TemplateTokenizer):
    def __init__(self, starts: tuple[int, ...] = ()) -> None:
        super().__init__(ChatTemplate(CHATML, bos="", eos="", specials=("<|im_end|>",)), "spelling", starts)
        self.pieces: list[tuple[str, bool]] = []
        for around in self.template.scaffold.roles.values():
            self._scaffold |= {piece: tuple(map(ord, piece)) for piece in (around.before, around.after)}

    async def text(self, text: str) -> Tokens:
        return tuple(map(ord, text))

    async def _opening_piece(self, piece: str, *, special: bool) -> Tokens:
        self.pieces.append((piece, special))
        return await self.text(piece)


def spelled(tokens: Tokens) -> str:
    return "".join(map(chr, tokens))


async def test_an_opening_is_made_once_and_what_people_wrote_is_no_scaffold() -> None:
    tokenizer = Spelling()
    first = await tokenizer.opening("Be kind.", ())
    assert spelled(first) == "<|im_start|>system\nBe kind.<|im_end|>\n"
    assert [piece for piece, special in tokenizer.pieces if not special] == ["Be kind."]
    made = len(tokenizer.pieces)
    assert await tokenizer.opening("Be kind.", ()) is first and len(tokenizer.pieces) == made


async def test_the_opening_used_longest_ago_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_tokenizer, "OPENINGS_MAX", 2)
    tokenizer = Spelling()
    for words in ("a", "b", "a", "c"):
        await tokenizer.opening(words, ())
    made = len(tokenizer.pieces)
    await tokenizer.opening("a", ())
    assert len(tokenizer.pieces) == made
    await tokenizer.opening("b", ())
    assert len(tokenizer.pieces) > made


async def test_every_conversation_begins_with_the_start_token_once() -> None:
    assert (await Spelling((BOS,)).opening(None, ()))[:1] == (BOS,)
    opening = await Spelling((ord("<"),)).opening("x", ())
    assert spelled(opening).startswith("<|im_start|>"), "the template's own stands there already"


async def test_calls_follow_the_words_of_a_message() -> None:
    tokenizer = Spelling()
    call = ("id", "look", '{"q": 1}')
    for text, begins in (("Hm.", "Hm.\n<tool_call>"), ("", "<tool_call>")):
        said = spelled(await tokenizer.message(ChatMessage(role="assistant", text=text, calls=(call,))))
        assert said.startswith(f"<|im_start|>assistant\n{begins}") and said.endswith("<|im_end|>\n")
