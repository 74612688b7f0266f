"""What tokenizers of real models share, over one that knows a token for each character."""

from __future__ import annotations

import pytest

from inference import template_tokenizer
from inference.chat_template import CHATML, ChatTemplate
from inference.template_tokenizer import TemplateTokenizer
from sessions.model.types import Tokens, UnixMs
from sessions.ports import ChatMessage
from tests.support.engines.whole_tokenizer import FORGETFUL

BOS = 5000


class Spelling(TemplateTokenizer):
    def __init__(self, starts: tuple[int, ...] = (), *, template: str = CHATML) -> None:
        super().__init__(ChatTemplate(template, bos="", eos="", specials=("<|im_end|>",)), "spelling", starts)
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


async def test_scaffold_between_messages_is_tokenised_once_and_the_oldest_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(template_tokenizer, "SCAFFOLD_MAX", 2)
    tokenizer = Spelling(template=FORGETFUL)
    await tokenizer.measure()
    assert tokenizer.gap is not None and tokenizer.gap >= len("<user><end>")
    assert tokenizer.fingerprint != Spelling().fingerprint, "a message's own ids are others"
    talk = [ChatMessage(role="user", text="hi")]
    first = await tokenizer.conversation(None, (), talk, UnixMs(0), answer=True)
    made = len(tokenizer.pieces)
    assert await tokenizer.conversation(None, (), talk, UnixMs(0), answer=True) == first
    assert len(tokenizer.pieces) == made
    await tokenizer.conversation(None, (), talk, UnixMs(10**12), answer=True)  # another day
    assert len(tokenizer.pieces) == made + 1
    await tokenizer.conversation(None, (), talk, UnixMs(0), answer=True)
    assert len(tokenizer.pieces) == made + 2


async def test_calls_follow_the_words_of_a_message() -> None:
    tokenizer = Spelling()
    call = ("id", "look", '{"q": 1}')
    for text, begins in (("Hm.", "Hm.\n<tool_call>"), ("", "<tool_call>")):
        said = spelled(await tokenizer.message(ChatMessage(role="assistant", text=text, calls=(call,))))
        assert said.startswith(f"<|im_start|>assistant\n{begins}") and said.endswith("<|im_end|>\n")
