"""The parts of a turn: images, what is screened and timed, what is kept, how a generation is reported."""

from __future__ import annotations

import asyncio
import hashlib
import random
from array import array
from itertools import takewhile
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.simulated import SimulatedEngine, SimulatedOptions
from sessions.machine.inputs_and_effects import GenerationFailed, GenerationFinished, GenerationStopped, Output
from sessions.machine.state import Open
from sessions.metrics import Metrics
from sessions.model.errors import BadInput, TooLarge, Unavailable
from sessions.model.generation import Chunk, EngineInfo, Finish, GenerationRequest, ThoughtMarks, drawn_seed
from sessions.model.inspection import JudgedTexts, Judgements, PromptMessage, PromptTokens, Question, TextTokens
from sessions.model.types import (
    LOCAL_PRINCIPAL,
    InputFile,
    InputImage,
    InputText,
    ResponseId,
    Sampling,
    SessionId,
    SessionKey,
    TenantId,
    TextOptions,
    Tokens,
    Tool,
)
from sessions.model.verdicts import PASS, Finding, Verdict
from sessions.schemas import InlineSchemaChecker
from sessions.turn.call_opening import LEFT_MIN, generate_behind
from sessions.turn.channels import END, FINAL, THOUGHT
from sessions.turn.generation_task import GenerationRun, GenerationTask
from sessions.turn.images import (
    FIRST,
    MARK,
    NAME_IDS,
    NEXT,
    PATCH,
    PATCHES_MAX,
    UNSEEN,
    ImageName,
    ImageRun,
    image_ids,
    image_runs,
    patches_of,
    prompt_text,
    split_names,
    whole_names,
)
from sessions.turn.inspector import Inspector
from sessions.turn.keyword_filter import KeywordFilterSet
from sessions.turn.ledger import PromptPlan
from sessions.turn.output_accumulator import GenerationLimits, OutputAccumulator
from sessions.turn.output_pipeline import Release
from sessions.turn.result_cache import ANSWER_BYTES_MAX, ResultLookup, is_deterministic, request_name
from sessions.turn.retokenisation import as_written, tail_ids
from sessions.turn.run_timing import RunTiming
from sessions.turn.screening import REDACTIONS_MAX, screened
from tests.support.machine.generation_fixture import GivenEngine, GivenFilters, GivenLedger, KeptInbox, open_response
from tests.support.machine.machine_fixture import KEY
from tests.support.virtual_time import passed, settled, virtual

OPENING = '{"name": "look", "arguments":'
UNFIT = BadInput("recovery_incompatible", "The grammar does not go on from there.")


def request_of(max_tokens: int = 100) -> GenerationRequest:
    return GenerationRequest(
        key=KEY,
        response_id=ResponseId("resp_1"),
        generation=1,
        prompt=array("I", list(b"hello")),
        sampling=Sampling(),
        seed=3,
        max_tokens=max_tokens,
    )


async def run(engine: GivenEngine, max_tokens: int = 100) -> list[Chunk | Finish]:
    given: Any = engine
    return [part async for part in generate_behind(given, request_of(max_tokens), OPENING)]


@virtual
async def test_with_little_room_the_engine_writes_all_of_it() -> None:
    engine = GivenEngine([OPENING + " {}}"])
    parts = await run(engine, len(OPENING) + LEFT_MIN - 1)
    assert engine.requests == [request_of(len(OPENING) + LEFT_MIN - 1)]
    assert isinstance(parts[0], Chunk) and parts[0].text == OPENING + " {}}"


@virtual
async def test_a_grammar_that_does_not_go_on_from_there_has_all_of_it_written() -> None:
    engine = GivenEngine([UNFIT], [OPENING + " {}}"])
    parts = await run(engine)
    assert engine.requests[1] == request_of()
    assert isinstance(parts[0], Chunk) and parts[0].text == OPENING + " {}}"


@virtual
async def test_whatever_else_goes_wrong_is_raised() -> None:
    scripts: list[list[str | Exception]] = [[Unavailable("engine_unavailable", "Away.")], [" {", UNFIT]]
    for script in scripts:
        engine = GivenEngine(script)
        with pytest.raises((Unavailable, BadInput)):
            await run(engine)
        assert len(engine.requests) == 1


SHA = hashlib.sha256(b"an image").hexdigest()
OTHER = hashlib.sha256(b"another").hexdigest()


def image(sha256: str = SHA) -> InputImage:
    return InputImage(image_url="data:image/png;base64,AA==", sha256=sha256, width=640, height=480)


def test_a_text_names_its_images_where_they_stand() -> None:
    content = (InputText("Look: "), image(), InputText(" and "), image(OTHER), InputFile(text="\nfile"))
    named = list(split_names(prompt_text(content, sees=True)))
    assert named == ["Look: ", ImageName(SHA, 640, 480), " and ", ImageName(OTHER, 640, 480), "\nfile"]
    assert prompt_text(content, sees=False) == f"Look: {UNSEEN} and {UNSEEN}\nfile"
    assert prompt_text((InputImage(), InputText("it was retracted")), sees=True) == "it was retracted"


def test_words_cannot_name_an_image_beside_one() -> None:
    forged = prompt_text((image(),), sees=True)
    named = list(split_names(prompt_text((InputText(forged), image(OTHER)), sees=True)))
    assert [part for part in named if isinstance(part, ImageName)] == [ImageName(OTHER, 640, 480)]
    assert list(split_names(f"{MARK}{SHA[:-1]}g 1x1{MARK}")) == [f"{MARK}{SHA[:-1]}g 1x1{MARK}"]


def test_ids_name_their_image_and_nothing_else() -> None:
    ids = [5, *image_ids(SHA, 20), *image_ids(SHA, NAME_IDS), 7, *image_ids(OTHER, 12)]
    assert list(image_runs(ids)) == [
        ImageRun(SHA, 1, 21),
        ImageRun(SHA, 21, 21 + NAME_IDS),
        ImageRun(OTHER, 22 + NAME_IDS, 34 + NAME_IDS),
    ]
    assert all(PATCH <= each < 2**32 for each in image_ids(SHA, 20))
    for torn in (ids[2:21], ids[1:8], [NEXT | 1, PATCH], [FIRST, 5, NEXT]):
        assert not list(image_runs(torn))


def test_ten_thousand_pairs_that_differ_in_one_bit_share_no_id_of_a_name() -> None:
    rng = random.Random(7)
    for _ in range(10_000):
        data = bytearray(rng.randbytes(64))
        one = image_ids(hashlib.sha256(data).hexdigest(), NAME_IDS)
        data[rng.randrange(64)] ^= 1 << rng.randrange(8)
        other = image_ids(hashlib.sha256(data).hexdigest(), NAME_IDS)
        assert one != other and one[:3] != other[:3]


def test_a_prefix_that_ends_within_a_name_ends_in_front_of_its_image() -> None:
    ids = [5, 6, *image_ids(SHA, 20), 7]
    named = [whole_names(ids, length) for length in range(len(ids) + 1)]
    assert named == [0, 1, 2, *[2] * (NAME_IDS - 1), *range(2 + NAME_IDS, len(ids) + 1)]


@pytest.mark.parametrize(
    ("width", "height", "patches"), [(1, 1, 1), (32, 32, 1), (33, 32, 2), (640, 480, 300), (9_999, 9_999, PATCHES_MAX)]
)
def test_an_image_counts_a_token_for_each_square(width: int, height: int, patches: int) -> None:
    assert patches_of(ImageName(SHA, width, height)) == patches


BYTES_MAX = 100
ENGINE = SimulatedEngine(SimulatedOptions(context_window=512))


async def test_judgements_are_the_findings_of_the_filters_for_messages() -> None:
    inspector = Inspector(ENGINE, KeywordFilterSet(input_phrases=["night"]), BYTES_MAX)
    found = await inspector.inspect(LOCAL_PRINCIPAL, JudgedTexts(("by night", "by day")))
    assert isinstance(found, Judgements) and found.detectors == ("keywords",)
    assert [each.scores for each in found.texts] == [{"keyword": 1.0}, {}]


@pytest.mark.parametrize(
    "question",
    [
        TextTokens("\u00e4" * 51),
        PromptTokens(messages=(PromptMessage(role="user", text="a" * 101),)),
        PromptTokens(instructions="a" * 101, messages=()),
        JudgedTexts(("a", "a" * 101)),
    ],
)
async def test_a_text_that_no_message_may_have_is_too_large(question: Question) -> None:
    with pytest.raises(TooLarge) as caught:
        await Inspector(ENGINE, KeywordFilterSet(input_phrases=["night"]), BYTES_MAX).inspect(LOCAL_PRINCIPAL, question)
    assert caught.value.code == "content_too_large"


LIMITS = GenerationLimits(rollup_s=1.0, rollup_bytes=8)
FINDING = Finding(category="c", action="flag", start=0, end=1)


def accumulator(inbox: KeptInbox, *, whole: bool = False) -> OutputAccumulator:
    return OutputAccumulator(open_response(), 1, inbox, LIMITS, whole=whole)


def released(text: str, tail: str = "") -> Release:
    return Release(text, b"\x01\0\0\0" * len(text), tail)


@virtual
async def test_findings_go_with_what_is_taken_or_are_left_for_the_end() -> None:
    inbox = KeptInbox(busy=True)
    output = accumulator(inbox)
    output.findings.append(FINDING)
    output.accept(released("a"))
    assert output.take_last_findings() == (), "the actor is about to take them"
    taken = output.take()
    assert taken is not None and taken.findings == (FINDING,)
    output.findings.append(FINDING)
    assert output.take_last_findings() == (FINDING,) and output.findings == []


@virtual
async def test_a_whole_answer_that_is_broken_off_is_dropped() -> None:
    inbox = KeptInbox()
    output = accumulator(inbox, whole=True)
    output.accept(released("a"))
    output.flush()
    assert inbox.notified == 0 and output.take() is None


@virtual
async def test_a_retraction_waits_until_the_actor_has_taken_it() -> None:
    inbox = KeptInbox(busy=True)
    output = accumulator(inbox)
    output.accept(released("a secret"))
    verdict = Verdict(action="retract", start=2, end=8)
    retracting = asyncio.ensure_future(output.retract(verdict))
    await passed(0.1)
    assert not retracting.done()
    taken = output.take()
    assert taken is not None and taken.retracted is verdict
    await retracting
    assert output.written == b""


class Flagging:
    def feed(self, text: str) -> tuple[int, Verdict]:
        return 0, Verdict(action="flag", findings=(FINDING,))

    def finish(self) -> tuple[int, Verdict]:
        return 10**6, Verdict(action="pass")


def task(
    engine: Any, inbox: KeptInbox, *, filters: Any = None, ledger: GivenLedger | None = None, **more: Any
) -> GenerationTask:
    given: Any = ledger or GivenLedger()
    return GenerationTask(
        GenerationRun(key=KEY, open_=open_response(**more), generation=1),
        given,
        engine=engine,
        schemas=InlineSchemaChecker(),
        filters=filters or GivenFilters(),
        inbox=inbox,
        limits=GenerationLimits(),
        metrics=Metrics(),
    )


@virtual
async def test_an_answer_that_is_shown_whole_is_withheld_whole() -> None:
    class Blocking(Flagging):
        def finish(self) -> tuple[int, Verdict]:
            return 0, Verdict(action="block", message="no", start=3, end=4, findings=(FINDING,))

    inbox = KeptInbox()
    await task(GivenEngine("well"), inbox, filters=GivenFilters(Blocking, whole=True)).run()
    (end,) = inbox.inputs
    assert isinstance(end, GenerationFinished) and end.refusal == "no"
    assert (end.usage.output_tokens, end.withheld_tokens) == (0, 4)


@virtual
async def test_a_schema_error_names_the_tools_that_it_was_made_of() -> None:
    look = Tool(name="look", parameters={"type": "object"})
    error = BadInput("invalid_schema", "too deep")
    for choice, named in (("required", True), ("auto", False)):
        inbox = KeptInbox()
        engine = GivenEngine([error], tool_format="hermes")
        await task(engine, inbox, ledger=GivenLedger(tools=(look,)), tool_choice=choice).run()
        (end,) = inbox.inputs
        assert isinstance(end, GenerationFailed) and ("look" in end.error.public_message) == named


@virtual
async def test_a_cancelled_one_hands_over_its_output_and_findings() -> None:
    class Stuck(GivenEngine):
        async def generate(self, request: Any) -> Any:
            yield (await anext(aiter(super().generate(request))))
            await asyncio.get_running_loop().create_future()

    for filters, last in ((GivenFilters(), Output), (GivenFilters(Flagging), GenerationStopped)):
        inbox = KeptInbox()
        running = asyncio.ensure_future(task(Stuck("well"), inbox, filters=filters).run())
        await settled()
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled() and isinstance(inbox.inputs[-1], last)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def timed(metrics: Metrics, *moments: float, whole: bool = True) -> RunTiming:
    """A run that began at 0 and made a token at each moment."""
    now = [0.0]
    timing = RunTiming(metrics, lambda: now[0], whole=whole)
    for moment in moments:
        now[0] = moment
        timing.record_tokens(1)
    return timing


def test_a_run_counts_its_first_token_and_what_lies_between_the_others(metrics: Metrics) -> None:
    timing = timed(metrics, 0.5, 0.7, 0.9)
    assert metrics.num_decoding == 1
    timing.end()
    assert metrics.num_decoding == 0
    assert (metrics.ttft_s.sum, metrics.itl_s.count) == (0.5, 2)
    assert metrics.tpot_s.sum == pytest.approx(0.2)
    assert metrics.in_target.values["true",] == 1


@pytest.mark.parametrize(("moments", "between"), [((50.0, 50.1), 1), ((), 0)], ids=["continued", "without tokens"])
def test_only_a_run_from_its_beginning_has_a_first_token(
    metrics: Metrics, moments: tuple[float, ...], between: int
) -> None:
    timed(metrics, *moments, whole=not moments).end()
    assert (metrics.ttft_s.count, metrics.itl_s.count, metrics.in_target.total) == (0, between, 0)
    assert metrics.num_decoding == 0


class Redacts:
    """Replaces a word; one that is to find it again for ever."""

    def __init__(self, word: str, replacement: str) -> None:
        self.word, self.replacement = word, replacement

    def feed(self, text: str) -> tuple[int, Verdict]:
        at = text.find(self.word)
        if at < 0:
            return len(text), PASS
        end = at + len(self.word)
        return at, Verdict(action="redact", start=at, end=end, replacement=self.replacement)

    def finish(self) -> tuple[int, Verdict]:
        return 0, PASS


@pytest.mark.parametrize(
    ("filters", "text", "left"),
    [
        (GivenFilters(), "as it is", "as it is"),
        (GivenFilters(lambda: Redacts("Ana", "[name]")), "Ana and Ana", "[name] and [name]"),
        (GivenFilters(lambda: Redacts("Ana", "Ana")), "Ana", ""),
        (KeywordFilterSet(output_phrases=["forbidden"]), "a forbidden word", ""),
        (KeywordFilterSet(output_phrases=["forbidden"]), "a fine word", "a fine word"),
    ],
)
async def test_a_whole_text_is_judged(filters: Any, text: str, left: str) -> None:
    assert await screened(filters, LOCAL_PRINCIPAL, text) == left
    assert text.count("Ana") < REDACTIONS_MAX


PIECES = ("a", "b", "ab", "ba", "aab")


def segmentations() -> st.SearchStrategy[tuple[list[int], list[int]]]:
    """Two ways to write one text in pieces."""

    def both(text: str) -> st.SearchStrategy[tuple[list[int], list[int]]]:
        one = st.randoms(use_true_random=False).map(lambda rng: split(text, rng))
        return st.tuples(one, one)

    return st.text("ab", max_size=20).flatmap(both)


def split(text: str, rng: random.Random) -> list[int]:
    pieces = []
    while text:
        pieces.append(rng.choice([number for number, piece in enumerate(PIECES) if text.startswith(piece)]))
        text = text[len(PIECES[pieces[-1]]) :]
    return pieces


def joined(pieces: list[int]) -> str:
    return "".join(PIECES[piece] for piece in pieces)


def common(left: list[int], right: list[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))


@given(segmentations(), st.integers(0, 20), st.lists(st.integers(0, len(PIECES) - 1), max_size=5))
def test_an_answer_that_was_changed_keeps_its_text_and_the_ids_that_it_was_written_with(
    both: tuple[list[int], list[int]], cut: int, more: list[int]
) -> None:
    read, written = both
    changed = [*read[:cut], *more]
    made = as_written(changed, read, written)
    if made is not None:
        assert joined(made) == joined(changed)
    behind = common(read[::-1], written[::-1])
    shared = common(changed, read)
    if read != written and shared >= len(read) - behind:
        kept = len(written) - (len(read) - shared)
        assert made is not None and made[:kept] == written[:kept], "what stands before the change is as it was written"


class Marking:
    """A tokenizer whose scaffold is one id, 1, and whose texts are their characters."""

    async def text(self, text: str) -> Tokens:
        return [ord(letter) for letter in text]

    async def scaffold(self, text: str) -> Tokens:
        return [1] * bool(text)


async def test_marks_of_channels_behind_the_ledger_are_special_tokens_again() -> None:
    marks = ThoughtMarks(THOUGHT, END, none=FINAL, channels=True)
    info = EngineInfo(
        model="m", build="b", model_fingerprint="f", context_window=100, slots=1, sampling=frozenset(), thoughts=marks
    )
    harmony, tokenizer = msgspec.structs.replace(info, call_format="harmony"), cast(Any, Marking())
    x = ord("x")
    assert await tail_ids(tokenizer, harmony, f"x{END}x") == [x, 1, x]
    assert await tail_ids(tokenizer, harmony, f"{END}x", first=True) == [1, x], "it has the marks that it needs"
    assert await tail_ids(tokenizer, harmony, "x", first=True) == [1, x], "what was rewritten gets a header"
    assert await tail_ids(tokenizer, harmony, "", first=True) == []
    assert await tail_ids(tokenizer, info, "<|") == [ord("<"), ord("|")]


INFO = EngineInfo(
    model="m", build="b", model_fingerprint="f", context_window=100, slots=1, sampling=frozenset({"temperature"})
)
CONTEXT: dict[str, Any] = {"engine": INFO, "tokenizer": "t", "policy": "p", "tools": (), "adapter": ""}
RESULT_CACHE_KEY = SessionKey(TenantId("acme"), SessionId("s"))
PLAN = PromptPlan(array("I", [1, 2, 3]), array("I"), 1, 50, 0, None)
OTHER_SAMPLING: dict[str, Any] = {
    "thinking": False,
    "thinking_tokens": 7,
    "effort": "low",
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 5,
    "min_p": 0.1,
    "frequency_penalty": 0.5,
    "presence_penalty": 0.5,
    "repeat_penalty": 1.5,
    "seed": 7,
    "max_output_tokens": 9,
    "stop": "x",
    "ignore_eos": True,
    "min_tokens": 3,
    "stop_token_ids": (4,),
    "logit_bias": {"5": 1.0},
    "logprobs": True,
    "top_logprobs": 2,
    "tool_choice": "none",
    "parallel_tool_calls": False,
    "text": TextOptions(format={"type": "json_object"}),
}


def greedy(**sampling: Any) -> Open:
    return open_response(temperature=0, **sampling)


@pytest.mark.parametrize("field", Sampling.__struct_fields__)
def test_every_sampling_parameter_changes_the_name(field: str) -> None:
    """A new one without a value here fails: it must be considered."""
    open_ = greedy()
    changed = msgspec.structs.replace(open_.sampling, **{field: OTHER_SAMPLING[field]})
    other = msgspec.structs.replace(open_, sampling=changed)
    assert request_name(open_, PLAN, **CONTEXT) != request_name(other, PLAN, **CONTEXT)


@pytest.mark.parametrize(
    "change",
    [
        {"engine": msgspec.structs.replace(INFO, model="other")},
        {"engine": msgspec.structs.replace(INFO, build="other")},
        {"engine": msgspec.structs.replace(INFO, model_fingerprint="other")},
        {"tokenizer": "other"},
        {"policy": "other"},
        {"adapter": "other"},
        {"tools": (Tool(name="f"),)},
    ],
)
def test_what_it_depends_on_besides_changes_the_name(change: dict[str, Any]) -> None:
    open_ = greedy()
    assert request_name(open_, PLAN, **CONTEXT) != request_name(open_, PLAN, **{**CONTEXT, **change})


def test_no_field_runs_into_the_next() -> None:
    """However names are cut, two different requests have two names."""
    names = set()
    for text in ("ab|c", 'ab"c', "ab\0c", "ab,c", "abc"):
        for cut in range(len(text) + 1):
            engine = msgspec.structs.replace(INFO, model=text[:cut], build=text[cut:])
            for context in (
                {**CONTEXT, "engine": engine},
                {**CONTEXT, "tokenizer": text[:cut], "policy": text[cut:]},
                {**CONTEXT, "tokenizer": text[:cut], "adapter": text[cut:], "policy": ""},
            ):
                names.add((repr(sorted(context.items())), request_name(greedy(), PLAN, **context)))
    assert len({name for _, name in names}) == len({context for context, _ in names})


def test_what_is_discarded_or_too_long_is_not_kept() -> None:
    recorder = ResultLookup(RESULT_CACHE_KEY, b"name", PLAN, None)
    recorder.record(Chunk((1,), "x"))
    recorder.discard()
    recorder.record(Chunk((1,), "x"))
    recorder.close()
    assert recorder.recorded is None
    long = ResultLookup(RESULT_CACHE_KEY, b"name", PLAN, None)
    long.record(Chunk((1,), "x" * (ANSWER_BYTES_MAX + 1)))
    long.close()
    assert long.recorded is None


def test_the_response_and_a_seed_that_was_drawn_for_it_are_no_part_of_the_name() -> None:
    one, other = greedy(), greedy()
    other = msgspec.structs.replace(other, body=msgspec.structs.replace(other.body, id="resp_other", created_at=99))
    other.sampling = msgspec.structs.replace(other.sampling, seed=drawn_seed(other.id))
    assert one.sampling.seed != other.sampling.seed
    assert request_name(one, PLAN, **CONTEXT) == request_name(other, PLAN, **CONTEXT)


@pytest.mark.parametrize(
    ("sampling", "deterministic"),
    [({"temperature": 0}, True), ({"temperature": 1.0}, False), ({}, False), ({"temperature": 1.0, "seed": 3}, True)],
)
def test_greedy_answers_and_those_of_a_chosen_seed_are_deterministic(
    sampling: dict[str, Any], deterministic: bool
) -> None:
    assert is_deterministic(open_response(**sampling)) is deterministic
