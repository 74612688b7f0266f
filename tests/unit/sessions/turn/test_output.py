"""The output of a run: filtered, held back, its ledger and its tail; and the runs of one generation."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.machine.event_writer import CallBegin, Text, Thought
from sessions.machine.inputs_and_effects import Output
from sessions.metrics import Metrics
from sessions.model.errors import BadInput, Overloaded, Unavailable
from sessions.model.generation import Chunk, Finish, GenerationRequest, ThoughtMarks
from sessions.model.schema_bounds import SchemaSize
from sessions.model.types import LOCAL_PRINCIPAL, Json, SessionKey, TextOptions, Tokens, Tool, unpack_tokens
from sessions.model.verdicts import Verdict
from sessions.ports import OutputFilter
from sessions.schemas import InlineSchemaChecker
from sessions.turn.channels import END, FINAL, START, THOUGHT
from sessions.turn.generation_task import Attempts, AttemptsEnd, GenerationRun
from sessions.turn.keyword_filter import KeywordFilterSet, KeywordInputFilter, KeywordOutputFilter, KeywordRules, fold
from sessions.turn.output_accumulator import GenerationLimits, OutputAccumulator
from sessions.turn.output_pipeline import OutputPipeline, Release
from sessions.turn.tool_call_parser import MisfitCall
from tests.support.machine.generation_fixture import (
    ByteTokenizer,
    GivenEngine,
    GivenFilters,
    GivenLedger,
    KeptInbox,
    open_response,
)
from tests.support.machine.machine_fixture import KEY
from tests.support.output_text import Redactor, Vocabulary
from tests.support.virtual_time import virtual

# Few letters, so that stops and phrases really meet; two cases, folding that changes length, four widths of UTF-8.
ALPHABET = "abcABßſk\u212aé…😀 "
texts = st.text(ALPHABET, max_size=24)
needles = st.text(ALPHABET, min_size=1, max_size=4)


class Reader:
    """Keeps what the log would keep, and checks it at every release."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.text = ""
        self.tokens: list[int] = []
        self.tail = ""
        self.logprobs: list[int] = []
        self.ended: str | None = None

    def pipeline(self, stops: Sequence[str], filters: Sequence[OutputFilter]) -> OutputPipeline:
        """One for a run that goes on from here."""
        return OutputPipeline(stops, filters, tail=self.tail, tail_tokens=self.vocabulary.text(self.tail))

    def accept(self, release: Release | None) -> bool:
        """Takes a release; True when the pipeline is spent."""
        if release is None:
            return False
        self.text += release.text
        self.tokens += unpack_tokens(release.tokens)
        self.tail = release.tail
        self.logprobs += [each["id"] for each in release.logprobs]
        self.ended = release.ended
        assert self.vocabulary.decode(self.tokens) + self.tail == self.text
        return release.ended is not None or release.restart

    def read(self, pipeline: OutputPipeline, chunks: Sequence[Chunk]) -> bool:
        for chunk in chunks:
            if self.accept(pipeline.feed(chunk)):
                return True
        return self.accept(pipeline.finish())


def first_of(text: str, needles: Sequence[str]) -> int | None:
    found = [at for needle in needles if (at := text.find(needle)) >= 0]
    return min(found, default=None)


def reference(text: str, stops: Sequence[str], phrases: Sequence[str]) -> tuple[str, str | None]:
    """The text that may be seen, and how it ended."""
    stop = first_of(text, stops)
    text = text[:stop] if stop is not None else text
    phrase = first_of(fold(text), [fold(each) for each in phrases])
    if phrase is not None:
        return text[:phrase], "content_filter"
    return text, "stop" if stop is not None else None


def keyword_filters(lists: Sequence[Sequence[str]]) -> list[OutputFilter]:
    return [KeywordOutputFilter(KeywordRules(each)) for each in lists]


@given(texts, st.lists(needles, max_size=3), st.lists(st.lists(needles, min_size=1, max_size=3), max_size=3), st.data())
def test_what_is_released_does_not_depend_on_how_the_engine_splits_it(
    text: str, stops: list[str], lists: list[list[str]], data: st.DataObject
) -> None:
    vocabulary = Vocabulary()
    reader = Reader(vocabulary)
    reader.read(reader.pipeline(stops, keyword_filters(lists)), vocabulary.chunks(text, data.draw))
    expected, ended = reference(text, stops, [phrase for each in lists for phrase in each])
    assert (reader.text, reader.ended) == (expected, ended)
    assert reader.logprobs == reader.tokens


@given(texts, st.lists(needles, max_size=3), st.lists(needles, max_size=3), st.data())
def test_a_run_that_ends_anywhere_is_continued_as_if_it_had_not(
    text: str, stops: list[str], phrases: list[str], data: st.DataObject
) -> None:
    vocabulary = Vocabulary()
    reader = Reader(vocabulary)
    lists = [phrases] if phrases else []
    for _ in range(data.draw(st.integers(0, 3), label="crashes")):
        pipeline = reader.pipeline(stops, keyword_filters(lists))
        chunks = vocabulary.chunks(text[len(reader.text) :], data.draw)
        for chunk in chunks[: data.draw(st.integers(0, len(chunks)))]:
            if reader.accept(pipeline.feed(chunk)):
                break
        if reader.ended:
            break
    else:
        reader.read(
            reader.pipeline(stops, keyword_filters(lists)), vocabulary.chunks(text[len(reader.text) :], data.draw)
        )
    assert (reader.text, reader.ended) == reference(text, stops, phrases)
    assert [t for t in reader.logprobs if t not in reader.tokens] == []


class Runs:
    """Runs an engine that means to say `text`, again behind each span that a filter replaced."""

    def __init__(self, text: str, phrase: str, filters: Callable[[], list[OutputFilter]]) -> None:
        self.vocabulary = Vocabulary()
        self.reader = Reader(self.vocabulary)
        self.rest, self.phrase, self.filters = text, phrase, filters

    def all(self, draw: Callable[[Any], Any]) -> None:
        while self.reader.read(self.reader.pipeline((), self.filters()), self.vocabulary.chunks(self.rest, draw)):
            if self.reader.ended is not None:
                return
            self.rest = self.rest[self.rest.index(self.phrase) + len(self.phrase) :]


@given(texts, st.text("abß", min_size=1, max_size=3), st.sampled_from(["", "[x]", "…"]), st.data())
def test_a_redaction_replaces_its_span_in_text_and_ledger(
    text: str, phrase: str, replacement: str, data: st.DataObject
) -> None:
    runs = Runs(text, phrase, lambda: [Redactor(phrase, replacement)])
    runs.all(data.draw)
    assert runs.reader.text == text.replace(phrase, replacement)
    assert [t for t in runs.reader.logprobs if t not in runs.reader.tokens] == []


@given(texts, st.text("ab", min_size=1, max_size=2), st.text("abc", min_size=1, max_size=4), st.booleans(), st.data())
def test_a_redaction_waits_for_what_another_filter_holds_back(
    text: str, phrase: str, forbidden: str, first: bool, data: st.DataObject
) -> None:
    """The text before a replaced span is neither lost nor released too early; the earlier verdict counts."""

    def filters() -> list[OutputFilter]:
        both = [Redactor(phrase, "[x]"), *keyword_filters([[forbidden]])]
        return both if first else both[::-1]

    runs = Runs(text, phrase, filters)
    runs.all(data.draw)
    expected, rest, ended = "", text, None
    while True:
        spot, blocked = rest.find(phrase), fold(rest).find(fold(forbidden))
        if blocked >= 0 and (spot < 0 or blocked <= spot):
            expected, ended = expected + rest[:blocked], "content_filter"
            break
        if spot < 0:
            expected += rest
            break
        expected, rest = expected + rest[:spot] + "[x]", rest[spot + len(phrase) :]
    assert (runs.reader.text, runs.reader.ended) == (expected, ended)


def feed(pipeline: OutputPipeline, *pieces: str) -> list[Release | None]:
    return [pipeline.feed(Chunk((index,), piece)) for index, piece in enumerate(pieces)]


def test_a_tail_goes_to_the_ledger_with_the_first_token_that_follows_it() -> None:
    """What was released beyond the ledger before this run is not forgotten when the run's own tokens arrive."""
    pipeline = OutputPipeline((), (), tail="ab", tail_tokens=(7, 8))
    (release,) = feed(pipeline, "c")
    assert release is not None and list(unpack_tokens(release.tokens)) == [7, 8, 0] and release.tail == ""


def test_the_logprobs_of_a_withheld_token_are_not_released() -> None:
    pipeline = OutputPipeline((), keyword_filters([["bad"]]))
    release = pipeline.feed(Chunk((1, 2), "so ba", ({"token": "so "}, {"token": "ba"})))
    assert release is not None and release.text == "so " and release.logprobs == ()


def test_half_a_character_that_is_withheld_is_counted_once() -> None:
    """It ends nowhere: withheld for a verdict's sake, it is not left over as well."""
    pipeline = OutputPipeline((), keyword_filters([["bad", "xbadly"]]))
    assert feed(pipeline, "x", "bad", "") == [None, None, None]
    release = pipeline.finish()
    assert release is not None
    assert (release.ended, release.withheld_tokens, pipeline.num_mute) == ("content_filter", 2, 0)


@pytest.mark.parametrize(
    ("phrase", "text"),
    [("Straße", "STRAßE"), ("Straße", "STRAẞE"), ("secret", "ſecret"), ("kelvin", "\u212aelvin"), ("İx", "İx")],
)
async def test_folding_is_the_same_on_the_way_in_and_out(phrase: str, text: str) -> None:
    """No phrase misses its own spelling, and none slips through by a letter that folds to another."""
    verdict = await KeywordInputFilter([phrase]).check(LOCAL_PRINCIPAL, text)
    assert (verdict.action, verdict.start, verdict.end) == ("block", 0, len(text))
    output = KeywordOutputFilter(KeywordRules([phrase]))
    answers = [output.feed(character) for character in text]
    assert [limit for limit, _ in answers] == [0] * len(text)
    assert answers[-1][1].action == "block"


LOOK = Tool(name="look", parameters={"type": "object", "properties": {}}, strict=True)
LOOK_CALL = ['<tool_call>{"name": "look", "arguments": {}}</tool_call>']
assert isinstance(KEY, SessionKey)


class FailingSchemaChecker(InlineSchemaChecker):
    """Raises these, one a call, before it judges."""

    def __init__(self, *errors: Exception) -> None:
        super().__init__()
        self.errors = list(errors)

    async def judge(self, schema: dict[str, Json]) -> SchemaSize:
        return SchemaSize(1, 1, 0)

    async def value_problem(self, schema: dict[str, Json], value: str) -> str | None:
        if self.errors:
            raise self.errors.pop(0)
        return await super().value_problem(schema, value)


class Attempted:
    """One generation up to the end of its attempts."""

    def __init__(
        self,
        engine: GivenEngine,
        *,
        filters: Any = None,
        ledger: GivenLedger | None = None,
        schemas: InlineSchemaChecker | None = None,
        **sampling: Any,
    ) -> None:
        self.inbox = KeptInbox()
        self.engine = engine
        self.run = GenerationRun(key=KEY, open_=open_response(**sampling), generation=1)
        self.ledger = ledger or GivenLedger()
        limits = GenerationLimits(rollup_s=0.0)
        self.output = OutputAccumulator(self.run.open_, 1, self.inbox, limits, whole=False)
        given: Any = engine
        planner: Any = self.ledger
        self.attempts = Attempts(
            self.run,
            planner,
            self.output,
            engine=given,
            schemas=schemas or InlineSchemaChecker(),
            filters=filters or GivenFilters(),
            inbox=self.inbox,
            metrics=Metrics(),
        )

    async def end(self) -> AttemptsEnd:
        plan = await self.ledger.plan(self.run.open_)
        self.attempts.counts.prompt = plan.num_input
        ended = await self.attempts.generate(plan)
        self.output.flush()
        return ended


@virtual
async def test_without_room_nothing_runs() -> None:
    made = Attempted(GivenEngine(), ledger=GivenLedger(max_tokens=0))
    assert (await made.end()).reason == "max_output_tokens" and made.engine.requests == []


FORM = TextOptions(format={"type": "json_object"})


@virtual
async def test_a_run_that_may_begin_with_a_call_is_dropped_if_it_ends_without_one() -> None:
    """Also the beginning of a mark, which only the end shows to be text, and one that is all that the limit allows."""
    ledger = GivenLedger(tools=(LOOK,))
    engine = GivenEngine("<tool_c", "{}", tool_format="hermes")
    made = Attempted(engine, ledger=ledger, text=FORM)
    assert await made.end() == AttemptsEnd("stop")
    assert made.inbox.text == "{}" and [request.sampling.text for request in engine.requests] == [None, FORM]
    assert made.attempts.counts.usage().output_tokens == 2
    engine = GivenEngine(" <tool", "{}", tool_format="hermes")
    limited = Attempted(engine, ledger=GivenLedger(tools=(LOOK,), max_tokens=6), text=FORM)
    assert await limited.end() == AttemptsEnd("stop")
    assert limited.inbox.text == "{}" and [request.max_tokens for request in engine.requests] == [6, 6]
    assert limited.attempts.counts.usage().output_tokens == 2


HARMONY = ThoughtMarks(THOUGHT, END, none=FINAL, end=f"{END}{START}assistant{FINAL}", channels=True, apart=True)


class ChannelEngine(GivenEngine):
    """Writes in channels. A script's part is one chunk; "" stands for a token in the middle of a character."""

    def __init__(self, *scripts: list[str | Exception], **more: Any) -> None:
        super().__init__(*scripts, tool_format="hermes", sampling=("text",), thoughts=HARMONY, **more)
        self.info = msgspec.structs.replace(self.info, call_format="harmony")

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Any]:
        async for part in super().generate(request):
            yield Chunk((240,), "") if isinstance(part, Chunk) and not part.text else part


def in_channels(engine: GivenEngine, *, max_tokens: int = 200, **more: Any) -> Attempted:
    return Attempted(engine, ledger=GivenLedger(tools=(LOOK,), max_tokens=max_tokens), text=FORM, **more)


@virtual
async def test_thoughts_that_reach_the_limit_before_a_call_leave_the_whole_limit_to_the_answer() -> None:
    thoughts = f"{THOUGHT}Hm."
    engine = ChannelEngine([thoughts], ["{}"])
    made = in_channels(engine, max_tokens=len(thoughts))
    assert await made.end() == AttemptsEnd("stop") and made.inbox.text == "{}"
    assert [request.max_tokens for request in engine.requests] == [len(thoughts)] * 2
    usage = made.attempts.counts.usage()
    assert (usage.output_tokens, usage.reasoning_tokens) == (2, 0)


@virtual
async def test_a_dropped_run_that_ends_inside_a_character_is_counted_once() -> None:
    for number in range(4):
        made = in_channels(ChannelEngine([f"{THOUGHT}Hm.", *[""] * number], ["{}"]))
        assert await made.end() == AttemptsEnd("stop") and made.inbox.text == "{}"
        assert made.attempts.counts.usage().output_tokens == 2


@virtual
async def test_a_filter_that_ends_a_run_before_its_call_ends_the_answer() -> None:
    thinking = ChannelEngine([f"{THOUGHT}Hm, so", " bad word."])
    for engine, shown in ((GivenEngine("bad word", tool_format="hermes"), ""), (thinking, "Hm, so")):
        made = in_channels(engine, filters=KeywordFilterSet(output_phrases=["bad"]))
        ended = await made.end()
        assert ended.reason == "content_filter" and ended.refusal
        assert made.inbox.text == shown and len(engine.requests) == 1
        assert made.attempts.counts.usage().output_tokens >= 0


@virtual
async def test_a_call_that_the_limit_cuts_before_its_end_is_not_made_in_the_place_of_a_format() -> None:
    engine = GivenEngine('<tool_call>{"name": "look", "arguments": {}}', "{", tool_format="hermes", finish="length")
    made = in_channels(engine)
    assert await made.end() == AttemptsEnd("max_output_tokens")
    assert made.inbox.text == "{" and engine.requests[-1].sampling.text == FORM


LOOKED = f"{THOUGHT}Look.{END}{START}assistant<|channel|>commentary to=functions.look <|constrain|>json<|message|>"


@virtual
async def test_thoughts_are_written_only_with_the_call_that_was_checked() -> None:
    """A replica that takes over an answer with nothing but a thought would go on without the format."""

    class Watching(InlineSchemaChecker):
        async def value_problem(self, schema: dict[str, Json], value: str) -> str | None:
            assert not made.inbox.inputs and not made.output.begun
            return await super().value_problem(schema, value)

    made = in_channels(ChannelEngine([LOOKED, "{}", "<|call|>"]), schemas=Watching())
    assert await made.end() == AttemptsEnd("stop")
    pieces = [piece for each in made.inbox.inputs if isinstance(each, Output) for piece in each.pieces]
    assert pieces[0] == Thought("Look.") and CallBegin("look") in pieces


@virtual
async def test_thoughts_before_a_call_that_does_not_fit_are_dropped_with_it() -> None:
    engine = ChannelEngine([LOOKED, '{"at": "here"}', "<|call|>"], ['{"name": "look", "arguments": {"at": 5}}'])
    made = Attempted(engine, ledger=GivenLedger(tools=(AT,), max_tokens=200), text=FORM)
    assert await made.end() == AttemptsEnd("stop") and made.inbox.text == '{"at": 5}'
    usage = made.attempts.counts.usage()
    assert (usage.output_tokens, usage.reasoning_tokens) == (len('{"name": "look", "arguments": {"at": 5}}'), 0)
    assert [request.max_tokens for request in engine.requests] == [200, 200]


MISFIT = '<tool_call>{"name": "look", "arguments": {"at": "here"}}</tool_call>'
AT = Tool(name="look", parameters={"type": "object", "properties": {"at": {"type": "integer"}}}, strict=True)


@virtual
async def test_a_call_that_does_not_fit_is_dropped_and_the_model_is_held_to_it() -> None:
    engine = GivenEngine(
        "I look. " + MISFIT, '{"name": "look", "arguments": {"at": 5}}', tool_format="hermes", sampling=("text",)
    )
    made = Attempted(engine, ledger=GivenLedger(tools=(AT,)))
    assert await made.end() == AttemptsEnd("stop")
    assert made.inbox.text == 'I look.{"at": 5}'
    free, held = engine.requests
    assert bytes(list(held.prompt)) == b"helloI look." and not len(held.emitted), "its grammar begins with the call"
    assert free.sampling.text is None and held.sampling.text is not None
    assert made.attempts.counts.withheld == len("I look. " + MISFIT) - len("I look.")


@virtual
async def test_a_grammar_that_the_engine_cannot_follow_is_no_reason_to_blame_the_request() -> None:
    engine = GivenEngine(MISFIT, [BadInput("invalid_schema", "Too deep.")], tool_format="hermes", sampling=("text",))
    with pytest.raises(MisfitCall) as caught:
        await Attempted(engine, ledger=GivenLedger(tools=(AT,))).end()
    assert caught.value.code == "tool_call_invalid"


@virtual
async def test_what_a_required_call_begins_with_is_not_written_where_its_grammar_goes_on_from_there() -> None:
    for logprobs in (False, True):
        opened = not logprobs
        opening = '{"name": "look", "arguments":'
        engine = GivenEngine([" {}}" if opened else opening + " {}}"], tool_format="hermes", continues_formats=True)
        made = Attempted(engine, ledger=GivenLedger(tools=(LOOK,)), tool_choice="required", logprobs=logprobs)
        assert await made.end() == AttemptsEnd("stop")
        assert made.inbox.text == "{}"
        assert bytes(list(engine.requests[0].emitted)).decode() == (opening if opened else "")
        assert made.attempts.counts.usage().output_tokens == len(opening + " {}}")
        assert made.inbox.prompts == [(5, 1)]


@virtual
async def test_an_answer_that_is_computed_waits_until_its_arguments_can_be_checked() -> None:
    full = Overloaded("overloaded", "Too many schemas wait to be checked.", retry_after_ms=1_000)
    away = Unavailable("schemas_unavailable", "Schemas cannot be checked at the moment.", retry_after_ms=1_000)
    schemas = FailingSchemaChecker(full, away, full)
    made = Attempted(GivenEngine(LOOK_CALL, tool_format="hermes"), ledger=GivenLedger(tools=(LOOK,)), schemas=schemas)
    assert await made.end() == AttemptsEnd("stop")
    assert made.inbox.text == "{}" and not schemas.errors


@virtual
async def test_arguments_that_can_never_be_checked_fail_the_answer_in_the_end() -> None:
    schemas = FailingSchemaChecker(*[Unavailable("schemas_unavailable", "away", retry_after_ms=1_000)] * 1_000)
    made = Attempted(GivenEngine(LOOK_CALL, tool_format="hermes"), ledger=GivenLedger(tools=(LOOK,)), schemas=schemas)
    with pytest.raises(Unavailable):
        await made.end()
    assert 10 < 1_000 - len(schemas.errors) < 100


THINK = ThoughtMarks("<think>", "</think>")


@virtual
async def test_thoughts_are_pieces_of_their_own_and_counted() -> None:
    for opened, script in ((False, "<think>\nHm.\n</think>\n\nFour"), (True, "Hm.\n</think>\n\nFour")):
        made = Attempted(GivenEngine(script, thoughts=msgspec.structs.replace(THINK, opened=opened)))
        assert await made.end() == AttemptsEnd("stop")
        pieces = [piece for each in made.inbox.inputs if isinstance(each, Output) for piece in each.pieces]
        assert "".join(piece.text for piece in pieces if isinstance(piece, Thought)) == "Hm."
        assert "".join(piece.text for piece in pieces if isinstance(piece, Text)) == "Four"
        assert bytes(made.output.written[::4]).decode() == script, "the ledger has what the model wrote"
        usage = made.attempts.counts.usage()
        assert usage.reasoning_tokens == len(script.removeprefix("<think>").removesuffix("\n\nFour"))
        assert usage.output_tokens == len(script)


@virtual
async def test_a_filter_ends_an_answer_also_where_its_thought_has_used_up_its_budget() -> None:
    class Blocking:
        text = ""

        def feed(self, text: str) -> tuple[int, Verdict]:
            self.text += text
            at = self.text.find("bad")
            return 0, Verdict(action="pass") if at < 0 else Verdict(action="block", message="no", start=at, end=at + 3)

    engine = GivenEngine(["<think>abc", " bad"], thoughts=THINK)
    made = Attempted(engine, filters=GivenFilters(Blocking), thinking_tokens=2)
    assert await made.end() == AttemptsEnd("content_filter", "no")
    assert made.inbox.text == "abc" and len(engine.requests) == 1


class MarkTokenizer(ByteTokenizer):
    """Has the mark behind a thought as a token."""

    async def scaffold(self, text: str) -> Tokens:
        return [MARK_TOKEN] if text == THINK.close else await self.text(text)

    def pieces(self, tokens: Tokens) -> list[bytes]:
        return [THINK.close.encode() if token == MARK_TOKEN else bytes([token]) for token in tokens]


MARK_TOKEN = 300
MARK = "\N{SYMBOL FOR END OF TRANSMISSION}"  # stands for the token in a script


class MarkEngine(GivenEngine):
    """Yields chunks of characters and of the mark's token."""

    def __init__(self, *script: str, opened: bool) -> None:
        super().__init__(script, thoughts=msgspec.structs.replace(THINK, opened=opened))
        self.tokenizer = MarkTokenizer()

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk | Finish]:
        self.requests.append(request)
        for part in self._scripts.pop(0):
            tokens = tuple(MARK_TOKEN if letter == MARK else ord(letter) for letter in str(part))
            yield Chunk(tokens, str(part).replace(MARK, THINK.close), cached_tokens=1)
        yield Finish("stop", len(request.prompt), 1)


class Holding:
    """Holds back the last characters, as a filter does that waits for the rest of a phrase."""

    def __init__(self, num_held: int) -> None:
        self.num_held = num_held
        self.num_fed = 0

    def feed(self, text: str) -> tuple[int, Verdict]:
        self.num_fed += len(text)
        return max(0, self.num_fed - self.num_held), Verdict(action="pass")

    def finish(self) -> tuple[int, Verdict]:
        return self.num_fed, Verdict(action="pass")


def shown_as(made: Attempted, kind: type[Text | Thought]) -> str:
    outputs = (each for each in made.inbox.inputs if isinstance(each, Output))
    return "".join(piece.text for each in outputs for piece in each.pieces if isinstance(piece, kind))


quoting = st.lists(st.sampled_from((*"abc<>/", "<", "</think>", "think>", "</thi")), max_size=8).map("".join)


@given(quoting, quoting, st.lists(st.integers(1, 12), max_size=30), st.integers(0, 12), st.booleans())
@virtual
async def test_only_the_token_ends_a_thought_where_the_mark_is_one(
    thought: str, answer: str, sizes: list[int], num_held: int, opened: bool
) -> None:
    """However its text is split into chunks, and whatever holds it back."""
    script, rest = [], f"{'' if opened else '<think>'}x{thought}y{MARK}z{answer}"
    for size in sizes:
        script.append(rest[:size])
        rest = rest[size:]
    engine = MarkEngine(*(part for part in (*script, *rest) if part), opened=opened)
    made = Attempted(engine, filters=GivenFilters(lambda: Holding(num_held)))
    assert await made.end() == AttemptsEnd("stop")
    assert (shown_as(made, Thought), shown_as(made, Text)) == (f"x{thought}y", f"z{answer}")


@virtual
async def test_a_mark_that_a_run_before_took_for_text_ends_no_thought() -> None:
    """It stands in the tail, because the tokens of the chunk were not all released."""
    for first, second, thought, answer in (
        ("I say </think> secret", f" more {MARK}4 </think>", "I say </think> [x] more", "4 </think>"),
        (f"I say </think>{MARK} a secret", " and </think> more", "I say </think>", "a [x] and </think> more"),
    ):
        engine = MarkEngine(first, opened=True)
        engine._scripts.append([second])
        made = Attempted(engine, filters=GivenFilters(lambda: Redactor("secret", "[x]")))
        assert await made.end() == AttemptsEnd("stop")
        assert (shown_as(made, Thought), shown_as(made, Text)) == (thought, answer)


@virtual
async def test_a_token_whose_text_comes_later_ends_the_thought_too() -> None:
    engine = MarkEngine("Hm.", opened=True)
    chunks = [Chunk(tuple(b"</think> Hm."), "</think> Hm."), Chunk((MARK_TOKEN,), ""), Chunk(tuple(b"4"), "</think>4")]
    engine.generate = lambda request: _yielded(chunks)  # type: ignore[method-assign]
    made = Attempted(engine)
    assert await made.end() == AttemptsEnd("stop")
    assert (shown_as(made, Thought), shown_as(made, Text)) == ("</think> Hm.", "4")


async def _yielded(chunks: list[Chunk]) -> AsyncIterator[Chunk | Finish]:
    for chunk in chunks:
        yield chunk
    yield Finish("stop", 5, 1)


@virtual
async def test_the_first_mark_ends_a_thought_where_it_is_no_token() -> None:
    made = Attempted(GivenEngine("The </think> mark", thoughts=msgspec.structs.replace(THINK, opened=True)))
    assert await made.end() == AttemptsEnd("stop")
    assert (shown_as(made, Thought), shown_as(made, Text)) == ("The", "mark")
