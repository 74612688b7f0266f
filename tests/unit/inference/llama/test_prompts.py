"""Prompts for llama-server: tokens, the text around images, pieces of a step."""

from __future__ import annotations

import array
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from inference.chat_template import CHATML, ChatTemplate
from inference.http_client import HttpClient
from inference.llama.completion import LlamaCompletion
from inference.llama.prefill import SlotPrefill, SlotRun
from inference.llama.scheduling import EngineRun, Scheduler
from inference.llama.schema_probe import SchemaProbe
from inference.llama.shown_prompts import ImageLengths, PromptShower, ShownPrompt, Speller
from inference.llama.slot_kv import SlotKv
from inference.llama.slot_usage import SlotUsage
from inference.llama.slots import SlotTable
from inference.llama.tokenizer import LlamaTokenizer
from inference.llama.vocabulary import ByteFragments, Vocabulary, read_vocabulary
from inference.step_budget import StepBudget
from inference.tokens import as_tokens
from sessions.model.errors import BadInput, Internal, Unavailable
from sessions.model.generation import Chunk, Finish
from sessions.model.types import InputImage, UnixMs
from sessions.ports import ChatMessage
from sessions.turn.images import MARK, PATCH, ImageName, image_ids, prompt_text
from tests.support.engines.kv import key, make_tiers

# -- tokenizer
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


async def test_a_model_that_wants_a_beginning_gets_one_and_not_two() -> None:
    tokenizer = await made(FakeServer(), vocabulary(adds_bos=True))
    assert spelled(await tokenizer.opening("x", ())).startswith("<s><|im_start|>")
    assert spelled(await tokenizer.opening(None, ())) == "<s>"


async def test_the_fingerprint_is_of_vocabulary_and_template() -> None:
    template = ChatTemplate(CHATML, bos="", eos="")
    other = ChatTemplate(CHATML.replace("<|im_end|>", "<|end|>"), bos="", eos="")
    fingerprints = {
        LlamaTokenizer(FakeServer(), vocabulary(digest=digest), source).fingerprint
        for digest in ("d", "e")
        for source in (template, other)
    }
    assert len(fingerprints) == 4


async def test_a_tokenizer_that_fails_is_an_error_of_ours() -> None:
    server = FakeServer()
    tokenizer = await made(server, vocabulary())
    server.status = 500
    with pytest.raises(Internal):
        await tokenizer.text("x")


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


# -- shown prompts
SHA = "ab" * 32
NAMED = InputImage(image_url="data:image/png;base64,QUJD", sha256=SHA, width=64, height=32)


def vocabulary_of(*specials: str, ordinary: Sequence[str] = ()) -> Vocabulary:
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


def spelled_prompt(text: str, *specials: str) -> str:
    return Speller(vocabulary_of(*specials)).spell(list(text.encode()))


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
    assert spelled_prompt(text, "<s>", "<a><b>", "<b>", "\n") == cut


def test_many_special_tokens_are_found_wherever_they_stand() -> None:
    specials = [f"<unused{number}>" for number in range(6_000)] + ["[UNUSED]", "<|x|>", "<un"]
    speller = Speller(vocabulary_of(*specials))
    text = "<unused5999> <unuse> <|x> [UNUSED] [UN " + "<u" * 100_000
    cut = "<\u200bunused5999> <\u200bunuse> <|x> [\u200bUNUSED] [UN " + "<u" * 100_000
    assert speller.spell(list(text.encode())) == cut


def test_special_tokens_are_spelled_as_they_are_and_bytes_that_are_no_text_are_replaced() -> None:
    speller = Speller(vocabulary_of("<s>"))
    assert speller.spell([256, *b"hi", 256]) == "<s>hi<s>"
    assert speller.spell([0xFE, *b"a", 0xC3, 256, 0xC3, 0xBC, 0xE2, 0x82]) == "\ufffda\ufffd<s>ü"
    assert Speller(vocabulary_of()).spell(b"<s>") == "<s>"


class CountingServer:
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


async def shower(server: CountingServer, *ordinary: str) -> PromptShower:
    """`ordinary`: spellings of tokens behind <s> that the model file says are no special ones."""
    lengths = ImageLengths(server)
    await lengths.start()
    made = PromptShower(server, vocabulary_of("<s>", ordinary=ordinary), lengths)
    await made.start()
    return made


async def test_a_prompt_is_text_around_its_images() -> None:
    made = await shower(CountingServer())
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
    server = CountingServer()
    server.hidden = {"<|im_end|>": 257, "<|end|>": 258}
    made = await shower(server, "<|im_end|>", "<|end|>", "<table>", "word")
    shown = await made.show([*b"<|im_end|><table>", 257, *b"<|end|>", 258, *image_ids(SHA, 50)], [NAMED])
    assert shown is not None
    assert shown.text == "<\u200b|im_end|><table><|im_end|><\u200b|end|><|end|>MARKER"


async def test_each_size_is_counted_once_and_none_larger_than_an_image_is() -> None:
    server = CountingServer()
    lengths = ImageLengths(server)
    await lengths.start()
    for size in ((64, 32), (64, 32), (99_999, 99_999), (0, 0), (1_568, 1_568)):
        assert await lengths.length(ImageName(SHA, *size)) == 40
    assert [copies for copies, _ in server.counted] == [1, 2, 1, 1, 1]


@pytest.mark.parametrize("begun", [True, False])
async def test_the_token_that_a_server_begins_every_text_with_is_there_once(begun: bool) -> None:
    made = await shower(CountingServer(around=1))
    shown = await made.show([*[256] * begun, *b"a", *image_ids(SHA, 50)], [NAMED])
    assert shown is not None and shown.text == "aMARKER"
    assert shown.tokens == as_tokens([256, *b"a", *image_ids(SHA, 40)])


async def test_a_server_that_adds_more_tokens_or_fails_is_refused_at_the_start() -> None:
    with pytest.raises(Unavailable, match="leave --projector out"):
        await shower(CountingServer(around=2))
    with pytest.raises(Internal):
        await shower(CountingServer(status=500))


# -- prefill
PROMPT = as_tokens(range(100))


class Completions:
    """Runs that are over at once: which prompts were sent with which parameters, and what was there before."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, int, dict[str, Any]]] = []
        self.first_text = "{"

    def __call__(
        self,
        guide: object,
        slot_number: int,
        prompt: array.array[int],
        resident: int,
        cached_max: int,
        shown: object,
    ) -> FinishedCompletion:
        return FinishedCompletion(self, len(prompt), resident)


class FinishedCompletion:
    finished = True
    prefill_s = 0.01

    def __init__(self, owner: Completions, length: int, resident: int) -> None:
        self._owner = owner
        self._length = length
        self._chunks: list[Chunk] = []
        self.cached_tokens = resident
        self.evaluated_tokens = length - resident

    async def open(self, parameters: dict[str, Any]) -> None:
        self._owner.sent.append((self._length, self.cached_tokens, parameters))
        if parameters["n_predict"]:
            self._chunks = [Chunk((5,), self._owner.first_text)]

    async def next(self) -> Chunk | Finish:
        return self._chunks.pop() if self._chunks else Finish("length", self._length, self.cached_tokens)

    def close(self) -> None:
        return


class Ground:
    def __init__(self, folder: Path) -> None:
        self.table = SlotTable(1)
        self.scheduler = Scheduler(self.table, 4)
        self.completions = Completions()
        tiers = make_tiers(folder, 1 << 20)
        usage = SlotUsage(self.table, tiers.catalog, 8)
        self.slot_kv = SlotKv(cast(HttpClient, None), tiers, usage, worth_tokens=1_000)
        self.closed = False

    def prefill(self, step_tokens: int = 1000) -> SlotPrefill:
        budget = StepBudget(3_600.0, step_tokens)
        budget.measured(1_000, 1.0)
        return SlotPrefill(
            self.scheduler,
            cast(Any, self.completions),
            self.slot_kv,
            SchemaProbe(90),
            turn_opening_tokens=2,
            budget=budget,
            check=self._check,
        )

    def _check(self) -> None:
        if self.closed:
            raise Unavailable("engine_unavailable", "closed")

    async def begin(
        self, prefill: SlotPrefill, shown: ShownPrompt | None = None, **parameters: Any
    ) -> LlamaCompletion | None:
        run = EngineRun(key("a"), PROMPT, shown=shown)
        slot_run = SlotRun(await self.scheduler.acquire(run), run)
        try:
            return await prefill.begin(slot_run, PROMPT, 0, {"n_predict": 8, **parameters})
        finally:
            slot_run.slot.tokens = PROMPT
            self.scheduler.leave(run)


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path)


async def test_a_prompt_goes_in_pieces_and_its_last_one_with_the_run(ground: Ground) -> None:
    await ground.begin(ground.prefill(30))
    sent = [(length, resident, parameters["n_predict"]) for length, resident, parameters in ground.completions.sent]
    assert sent == [(30, 0, 0), (60, 30, 0), (90, 60, 0), (100, 90, 8)]


@pytest.mark.parametrize(
    ("first", "pieces"),
    [(0, [(100, 0)]), (20, [(100, 0)]), (30, [(30, 0), (100, 30)]), (75, [(30, 0), (60, 30), (100, 60)])],
)
async def test_what_begins_with_an_image_is_one_piece(
    ground: Ground, first: int, pieces: list[tuple[int, int]]
) -> None:
    shown = ShownPrompt(PROMPT, first, "", (), cast(Speller, None))
    await ground.begin(ground.prefill(30), shown)
    assert [(length, resident) for length, resident, _ in ground.completions.sent] == pieces


async def test_a_new_schema_is_tried_for_one_token_first_and_a_bad_one_refused(ground: Ground) -> None:
    prefill = ground.prefill()
    await ground.begin(prefill, json_schema={"type": "object"})
    assert [parameters["n_predict"] for _, _, parameters in ground.completions.sent] == [1, 8]
    await ground.begin(prefill, json_schema={"type": "object"})
    assert len(ground.completions.sent) == 3, "a good one is remembered"
    ground.completions.first_text = "Z"
    with pytest.raises(BadInput, match=r"^invalid_schema: "):
        await ground.begin(prefill, json_schema={"type": "bogus"})


async def test_measuring_teaches_what_computing_takes(ground: Ground) -> None:
    cost = ground.slot_kv.tiers.cost
    assert cost.prefill_s(0, 100) == float("inf")
    await ground.prefill().measure()
    assert 0 < cost.prefill_s(0, 100) < 1
