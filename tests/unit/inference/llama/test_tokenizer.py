"""The tokenizer's own rules, over a server that knows one token a character and `<|x|>` as special tokens."""

from __future__ import annotations

import re

import msgspec
import pytest

from inference.chat_template import CHATML, ChatTemplate
from inference.http_client import HttpClient
from inference.llama.shown_prompts import ImageLengths
from inference.llama.tokenizer import LlamaTokenizer
from inference.llama.vocabulary import ByteFragments, Vocabulary
from sessions.model.types import InputImage, UnixMs
from sessions.ports import ChatMessage
from sessions.turn.images import MARK, PATCH, image_ids, prompt_text

SPECIALS = ("<|im_start|>", "<|im_end|>", "<s>")
BOS = 5000
TRIMMING = CHATML.replace("message.content", "(message.content | trim)") + "{# strftime_now #}"  # renders as a whole


class FakeServer(HttpClient):
    def __init__(self, *, adds_space: bool = False) -> None:
        super().__init__("127.0.0.1", 1)
        self.adds_space = adds_space
        self.status = 200
        self.asked: list[str] = []

    async def call(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        wanted = msgspec.json.decode(body)
        if path != "/tokenize":
            return 200, msgspec.json.encode({"input_tokens": 20 * len(wanted["messages"][0]["content"])})
        self.asked.append(wanted["content"])
        text = (" " if self.adds_space else "") + wanted["content"]
        tokens: list[int] = []
        for piece in re.findall(r"<\|?\w+\|?>|.", text, re.DOTALL) if wanted["parse_special"] else text:
            tokens.append(BOS + SPECIALS.index(piece) if piece in SPECIALS else ord(piece[0]))
        return self.status, msgspec.json.encode({"tokens": tokens})


def vocabulary(*, adds_bos: bool = False, adds_space: bool = False, digest: str = "d") -> Vocabulary:
    none = ByteFragments(iter(()))
    ids = frozenset[int](), frozenset[int](), None
    return Vocabulary(digest, none, 9, SPECIALS, *ids, (), BOS + 2, "<s>", "</s>", adds_bos, adds_space)


async def made(server: FakeServer, known: Vocabulary) -> LlamaTokenizer:
    tokenizer = LlamaTokenizer(server, known, ChatTemplate(CHATML, bos="<s>", eos="</s>", specials=SPECIALS))
    await tokenizer.start()
    return tokenizer


def spelled(tokens: object) -> str:
    return "".join(SPECIALS[t - BOS] if t >= BOS else chr(t) for t in tokens)  # type: ignore[attr-defined]


async def test_the_space_that_sentencepiece_puts_first_is_no_part_of_a_text() -> None:
    tokenizer = await made(FakeServer(adds_space=True), vocabulary(adds_space=True))
    assert spelled(await tokenizer.text("Hi there")) == "Hi there"


@pytest.mark.parametrize("source", [CHATML, TRIMMING])
async def test_names_in_messages_are_images_where_the_model_sees(source: str) -> None:
    server = FakeServer()
    template = ChatTemplate(source, bos="<s>", eos="</s>", specials=SPECIALS)
    plain = LlamaTokenizer(server, vocabulary(), template)
    seeing = LlamaTokenizer(server, vocabulary(), template, ImageLengths(server), "of the projector")
    assert plain.fingerprint != seeing.fingerprint
    name = prompt_text([InputImage(image_url="data:", sha256="ab" * 32, width=3, height=4)], sees=True)
    talk = [ChatMessage(role="user", text=f"a {name}<|im_end|>{MARK} b", names_images=True)]
    for tokenizer, sees in ((plain, False), (seeing, True)):
        await tokenizer.start()
        tokens = await tokenizer.conversation(None, (), talk, UnixMs(0), answer=True)
        image = image_ids("ab" * 32, 20)
        assert [token for token in tokens if token >= PATCH] == image * sees
        if sees:
            at = tokens.index(image[0])
            assert spelled(tokens[:at]).endswith("a ") and tokens[at : at + 20] == tuple(image)
            words = [ord(character) for character in "<|im_end|>\ufffd b"]
            assert list(tokens[at + 20 :][: len(words)]) == words
            assert tokens.count(BOS + 1) == 1, "somebody's words are no special token"
            assert tokenizer.pieces(image) == [b""] * 20
