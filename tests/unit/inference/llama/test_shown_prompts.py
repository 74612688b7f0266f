"""The text that llama-server gets of a prompt with images."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from inference.llama.shown_prompts import ImageLengths, PromptShower, Speller
from inference.llama.vocabulary import Vocabulary, read_vocabulary
from inference.tokens import as_tokens
from sessions.model.errors import Internal, Unavailable
from sessions.model.types import InputImage
from sessions.turn.images import ImageName, image_ids

SHA = "ab" * 32
NAMED = InputImage(image_url="data:image/png;base64,QUJD", sha256=SHA, width=64, height=32)


def vocabulary(*specials: str, ordinary: Sequence[str] = ()) -> Vocabulary:
    """Has all bytes, special tokens from 256 on, and ordinary ones behind them."""
    tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    return read_vocabulary(
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": [*tokens, *specials, *ordinary],
            "tokenizer.ggml.token_type": [*[6] * 256, *[3] * len(specials), *[1, 4] * len(ordinary)],
            "tokenizer.ggml.bos_token_id": 256,
            "tokenizer.ggml.add_bos_token": False,
        }
    )


def spelled(text: str, *specials: str) -> str:
    return Speller(vocabulary(*specials)).spell(list(text.encode()))


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("<s>", "<\u200bs>"),
        ("a<s><s>", "a<\u200bs><\u200bs>"),
        ("<a><b>", "<\u200ba><\u200bb>"),  # a special token, and another one inside it
        ("<<s>", "<<\u200bs>"),
        ("< s>\n", "< s>\n"),
    ],
)
def test_ordinary_text_never_spells_a_special_token(text: str, cut: str) -> None:
    assert spelled(text, "<s>", "<a><b>", "<b>", "\n") == cut


def test_many_special_tokens_are_found_wherever_they_stand() -> None:
    specials = [f"<unused{number}>" for number in range(6_000)] + ["[UNUSED]", "<|x|>", "<un"]
    speller = Speller(vocabulary(*specials))
    text = "<unused5999> <unuse> <|x> [UNUSED] [UN " + "<u" * 100_000
    cut = "<\u200bunused5999> <\u200bunuse> <|x> [\u200bUNUSED] [UN " + "<u" * 100_000
    assert speller.spell(list(text.encode())) == cut


def test_special_tokens_are_spelled_as_they_are_and_bytes_that_are_no_text_are_replaced() -> None:
    speller = Speller(vocabulary("<s>"))
    assert speller.spell([256, *b"hi", 256]) == "<s>hi<s>"
    assert speller.spell([0xFE, *b"a", 0xC3, 256, 0xC3, 0xBC, 0xE2, 0x82]) == "\ufffda\ufffd<s>ü"
    assert Speller(vocabulary()).spell(b"<s>") == "<s>"


class FakeServer:
    """Has one token for each character, 40 for an image, and `around` beside a prompt with images."""

    def __init__(self, around: int = 0, status: int = 200) -> None:
        self.around = around
        self.hidden: dict[str, int] = {}  # special tokens that the model file does not say are special
        self.status = status
        self.counted: list[tuple[int, int]] = []

    async def call(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        sent = msgspec.json.decode(body or b"{}")
        answer: Any = {"media_marker": "MARKER"}
        if path == "/tokenize":
            assert not sent["add_special"]
            pieces = (
                re.findall(r"<\|\w+\|>|.", sent["content"], re.DOTALL) if sent["parse_special"] else sent["content"]
            )
            answer = {"tokens": [self.hidden.get(piece, ord(piece[0])) for piece in pieces]}
        elif method == "POST":
            images = sent["messages"][0]["content"]
            self.counted.append((len(images), len(images[0]["image_url"]["url"])))
            answer = {"input_tokens": self.around + 40 * len(images)}
        return self.status, msgspec.json.encode(answer)


async def shower(server: FakeServer, *ordinary: str) -> PromptShower:
    """`ordinary`: spellings of tokens behind <s> that the model file says are no special ones."""
    lengths = ImageLengths(server)
    await lengths.start()
    made = PromptShower(server, vocabulary("<s>", ordinary=ordinary), lengths)
    await made.start()
    return made


async def test_a_prompt_is_text_around_its_images() -> None:
    made = await shower(FakeServer())
    prompt: Sequence[int] = [256, *b"a<s>", *image_ids(SHA, 50), *b"b", *image_ids("cd" * 32, 11), *b"c"]
    shown = await made.show(prompt, [NAMED])
    assert shown is not None and (shown.first, shown.images) == (8, ("QUJD",))
    assert shown.text == "<s>a<\u200bs>MARKERbc"
    assert shown.tokens == as_tokens([*map(ord, "<s>a<\u200bs>"), *image_ids(SHA, 40), *b"bc"])
    assert shown.body(shown.tokens[:4]) == [*map(ord, "<s>a")]
    longer = shown.tokens + as_tokens(list(b"!<s>"))
    assert shown.body(longer) == {"prompt_string": f"{shown.text}!<\u200bs>", "multimodal_data": ("QUJD",)}
    assert await made.show([256, *b"a"], [NAMED]) is None
    unnamed = await made.show(prompt, [])
    assert unnamed is not None and unnamed.tokens == as_tokens([256, *b"a<s>bc"])
    assert unnamed.body(unnamed.tokens + as_tokens([7])) == [256, *b"a<s>bc", 7]


async def test_no_text_spells_a_token_that_only_llama_server_takes_for_special() -> None:
    server = FakeServer()
    server.hidden = {"<|im_end|>": 257, "<|end|>": 258}
    made = await shower(server, "<|im_end|>", "<|end|>", "<table>", "word")
    shown = await made.show([*b"<|im_end|><table>", 257, *b"<|end|>", 258, *image_ids(SHA, 50)], [NAMED])
    assert shown is not None
    assert shown.text == "<\u200b|im_end|><table><|im_end|><\u200b|end|><|end|>MARKER"


async def test_each_size_is_counted_once_and_none_larger_than_an_image_is() -> None:
    server = FakeServer()
    lengths = ImageLengths(server)
    await lengths.start()
    for size in ((64, 32), (64, 32), (99_999, 99_999), (0, 0), (1_568, 1_568)):
        assert await lengths.length(ImageName(SHA, *size)) == 40
    assert [copies for copies, _ in server.counted] == [1, 2, 1, 1, 1]


@pytest.mark.parametrize("begun", [True, False])
async def test_the_token_that_a_server_begins_every_text_with_is_there_once(begun: bool) -> None:
    made = await shower(FakeServer(around=1))
    shown = await made.show([*[256] * begun, *b"a", *image_ids(SHA, 50)], [NAMED])
    assert shown is not None and shown.text == "aMARKER"
    assert shown.tokens == as_tokens([256, *b"a", *image_ids(SHA, 40)])


async def test_a_server_that_adds_more_tokens_or_fails_is_refused_at_the_start() -> None:
    with pytest.raises(Unavailable, match="leave --projector out"):
        await shower(FakeServer(around=2))
    with pytest.raises(Internal):
        await shower(FakeServer(status=500))
