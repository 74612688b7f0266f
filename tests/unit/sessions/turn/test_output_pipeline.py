"""The output pipeline: whatever an engine's chunks look like, what is released is what the whole text says.

The reference looks at the finished text: it ends before the first stop string, and then before the first forbidden
phrase in what is left. Ledger and tail must stand for exactly what was released, after every single release.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.model.generation import Chunk
from sessions.model.types import LOCAL_PRINCIPAL, unpack_tokens
from sessions.ports import OutputFilter
from sessions.turn.keyword_filter import KeywordInputFilter, KeywordOutputFilter, KeywordRules, fold
from sessions.turn.output_pipeline import OutputPipeline, Release
from tests.support.output_text import Redactor, Vocabulary

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
