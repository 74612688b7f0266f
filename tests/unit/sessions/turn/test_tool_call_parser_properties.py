"""The tool stage behind the pipeline, over any text, any tokens and any number of deaths.

Two things must hold at every moment: what has been written does not depend on how the engine splits its text, and the
ledger with its tail stands for exactly what was written. The second is what recovery relies on: a fresh parser that
reads the ledger's text comes to where the log ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from sessions.machine import event_writer
from sessions.model.errors import Internal
from sessions.model.generation import ThoughtMarks
from sessions.model.types import Tool, unpack_tokens
from sessions.turn.call_formats import FIELD_MARKS, FIELD_THOUGHT_CLOSE, FIELD_THOUGHT_OPEN, FORMATS
from sessions.turn.output_pipeline import OutputPipeline, Release
from sessions.turn.tool_call_parser import ParsedRelease, ToolCallParser, state_at_ledger
from tests.support.output_text import Vocabulary

TOOLS = (Tool(name="f", parameters={"type": "object", "properties": {"a": {"type": "integer"}}}), Tool(name="g"))
CALLS = [
    '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>',
    '<tool_call>\n{"name": "g", "arguments": {"b": {"c": ["}", "\\""]}}}\n</tool_call>',
    '<tool_call>{"arguments": {"a": 2}, "name": "f"}</tool_call>',
    '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
    "<tool_call>not a call</tool_call>",
]
ODDS = ["so ", "é", "\n", " ", "<tool", "<", "<tool_call>", "</tool_call>", '{"name": "f"', "…", "}"]
texts = st.lists(st.sampled_from([*CALLS * 2, *ODDS, "well "]), max_size=7).map("".join)
MARKS = ThoughtMarks("<think>", "</think>")
THOUGHTS = ["Hm.", " wait", "\n", "<", "</", "<tool_call>", CALLS[0], "é", "…"]
thoughts = st.lists(st.sampled_from(THOUGHTS), max_size=5).map(lambda parts: f"<think>\n{''.join(parts)}\n</think>\n\n")


def together(pieces: Sequence[event_writer.Piece]) -> list[event_writer.Piece]:
    """Neighbours of one kind as one, without empty ones: how a reader sees them."""
    merged: list[event_writer.Piece] = []
    for piece in pieces:
        last = merged[-1] if merged else None
        if isinstance(piece, event_writer.Text) and isinstance(last, event_writer.Text):
            merged[-1] = event_writer.Text(last.text + piece.text)
        elif isinstance(piece, event_writer.Thought) and isinstance(last, event_writer.Thought):
            merged[-1] = event_writer.Thought(last.text + piece.text)
        elif isinstance(piece, event_writer.CallArguments) and isinstance(last, event_writer.CallArguments):
            merged[-1] = event_writer.CallArguments(last.text + piece.text)
        else:
            merged.append(piece)
    return [piece for piece in merged if isinstance(piece, event_writer.CallBegin) or piece.text]


def fed_at_once(text: str, **how: Any) -> tuple[ToolCallParser, list[event_writer.Piece]]:
    stage = ToolCallParser(TOOLS, **how)
    passed = stage.accept(Release(text, b"", text))
    return stage, list(passed.pieces)


def whole(text: str, **how: Any) -> list[event_writer.Piece] | None:
    """What the whole text comes to; None: an invalid call."""
    try:
        stage, pieces = fed_at_once(text, **how)
        return together([*pieces, *stage.finish("stop").pieces])
    except Internal:
        return None


class Log:
    """What stands written of one response, over all its runs."""

    def __init__(self, **how: Any) -> None:
        self.vocabulary = Vocabulary()
        self.how = how
        self.pieces: list[event_writer.Piece] = []
        self.tokens: list[int] = []
        self.tail = ""

    @property
    def ledger(self) -> str:
        return self.vocabulary.decode(self.tokens) + self.tail

    def write(self, passed: ParsedRelease) -> None:
        self.tokens += unpack_tokens(passed.tokens)
        self.tail = passed.tail
        self.pieces += passed.pieces

    def check(self) -> None:
        """A parser that reads the ledger comes to where the log ends. What could begin a call at its end is text if the
        answer went on with something else."""
        ends = []
        for reason in ("max_output_tokens", "stop"):
            stage, pieces = fed_at_once(self.ledger, **self.how)
            with suppress(Internal):
                ends.append(together([*pieces, *stage.finish(reason).pieces]))
        assert together(self.pieces) in ends

    def run(self, text: str, draw: Callable[[Any], Any], *, stops: Sequence[str] = (), dies: bool) -> bool:
        """One run of an engine that means to say `text` behind the ledger. True: the answer is whole."""
        said = bool(self.pieces) and isinstance(self.pieces[-1], event_writer.Text)
        thought = bool(self.pieces) and isinstance(self.pieces[-1], event_writer.Thought)
        thinking, said = state_at_ledger(
            self.how.get("thoughts"),
            self.tail,
            begun=bool(self.pieces),
            thinking=thought,
            in_text=said,
            opens=self.how.get("written", FORMATS["hermes"]).opens,
        )
        how = {**self.how, "thinking": thinking, "heading": not self.tokens or not (self.tail or thinking or said)}
        stage = ToolCallParser(TOOLS, tail=self.tail, in_text=said, **how)
        if stage.ended:
            return True
        pipeline = OutputPipeline(stops, (), tail=self.tail, tail_tokens=self.vocabulary.text(self.tail))
        chunks = self.vocabulary.chunks(text, draw)
        for chunk in chunks[: draw(st.integers(0, len(chunks)))] if dies else chunks:
            release = pipeline.feed(chunk)
            if release is not None:
                self.write(stage.accept(release))
                self.check()
                if stage.ended or release.ended:
                    break
        else:
            if dies:
                return False
            release = pipeline.finish()
            if release is not None:
                self.write(stage.accept(release))
                self.check()
        self.write(stage.finish("stop"))
        return True

    def write_all(self, text: str, draw: Callable[[Any], Any], *, deaths: int) -> list[event_writer.Piece]:
        """Runs the engine until the answer is whole, and returns what a reader sees of it; the first runs die."""
        while True:
            assert text.startswith(self.ledger)
            if self.run(text[len(self.ledger) :], draw, dies=deaths > 0):
                return together(self.pieces)
            deaths -= 1


@given(texts, st.booleans(), st.integers(0, 3), st.data())
def test_calls_and_text_come_out_the_same_however_they_are_split_and_whoever_dies(
    text: str, parallel: bool, deaths: int, data: st.DataObject
) -> None:
    expected = whole(text, parallel=parallel)
    try:
        assert Log(parallel=parallel).write_all(text, data.draw, deaths=deaths) == expected
    except Internal:
        assert expected is None


@given(thoughts, texts, st.booleans(), st.integers(0, 3), st.data())
def test_thoughts_come_out_the_same_however_they_are_split_and_whoever_dies(
    thought: str, answer: str, opened: bool, deaths: int, data: st.DataObject
) -> None:
    text = (thought.removeprefix("<think>") if opened else thought) + answer
    how: dict[str, Any] = {"thoughts": msgspec.structs.replace(MARKS, opened=opened), "thinking": opened}
    log, expected = Log(**how), whole(text, **how)
    words = thought.removeprefix("<think>").rstrip().removesuffix("</think>").strip()
    try:
        assert log.write_all(text, data.draw, deaths=deaths) == expected
    except Internal:
        assert expected is None
        return
    assert "".join(piece.text for piece in log.pieces if isinstance(piece, event_writer.Thought)) == words
    assert log.vocabulary.decode(log.tokens) + log.tail == log.ledger


FAMILIES = {
    "field": ['\ufdd0"f"\n{"a": 1}\ufdd1', '\ufdd0"g"\n{"b": "ü}"}\ufdd1', '\ufdd0"g"\n\ufdd1'],
    "llama3": ['<|python_tag|>{"name": "f", "parameters": {"a": 1}}', '{"name": "g", "parameters": {"b": "ü}"}}', "; "],
    "mistral": [
        '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]',
        '[TOOL_CALLS]f[ARGS]{"a": 1}',
        '[{"name": "f", "arguments": {"a": 1}}]',
    ],
    "qwen_xml": [
        "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
        '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>',
    ],
    "json_list": ['<|tool_call|>[{"name": "f", "arguments": {"a": 1}}]', '<|tool_call|>[{"name": "g"}]<|/tool_call|>'],
    "command_r": ['<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters": {"a": 1}}]<|END_ACTION|>'],
    "deepseek": [
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"a": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'  # noqa: E501
    ],
    "lfm2": ['<|tool_call_start|>[f(a=1), g(b="ü")]<|tool_call_end|>'],
    "gemma4": [
        "<|tool_call>call:f{a:1}<tool_call|>",
        '<|tool_call>call:g{b:<|"|>ü, {"x"}: 1<|"|>,c:[1,true,{d:<|"|><|"|>}],e:{}}<tool_call|>',
    ],
}
FIELD: dict[str, Any] = {"written": FORMATS["field"], "thoughts": ThoughtMarks(FIELD_THOUGHT_OPEN, FIELD_THOUGHT_CLOSE)}
FIELD_PARTS = ["\ufdd2Hm, </think>\ufdd3", "\ufdd2 \ufdd3", "\ufdd2And <think> so.\n\ufdd3\n", *FAMILIES["field"]]
FOREIGN = ["so ", "é", "\n", "<", "[", "{", '{"a": 1}', '{"name', "[TOOL", "</tool_call>", "…", "}", "; "]


@given(st.sampled_from([*FAMILIES]), st.booleans(), st.integers(0, 3), st.data())
def test_calls_of_each_family_come_out_the_same_however_they_are_split_and_whoever_dies(
    family: str, parallel: bool, deaths: int, data: st.DataObject
) -> None:
    parts = st.lists(st.sampled_from([*FAMILIES[family] * 3, *FOREIGN, *FORMATS[family].opens]), max_size=6)
    text = "".join(data.draw(parts))
    how: dict[str, Any] = {"written": FORMATS[family], "parallel": parallel}
    assert Log(**how).write_all(text, data.draw, deaths=deaths) == whole(text, **how)


@given(st.lists(st.sampled_from([*FIELD_PARTS, "so ", "</think>", " ", "é"]), max_size=7), st.integers(0, 3), st.data())
def test_thoughts_from_a_field_come_out_the_same_wherever_they_stand_and_whoever_dies(
    parts: list[str], deaths: int, data: st.DataObject
) -> None:
    text = "".join(parts)
    pieces = Log(**FIELD).write_all(text, data.draw, deaths=deaths)
    assert pieces == whole(text, **FIELD)
    shown = "".join(piece.text for piece in pieces if not isinstance(piece, event_writer.CallBegin))
    assert not any(mark in shown for mark in FIELD_MARKS)


HARMONY: dict[str, Any] = {
    "thoughts": ThoughtMarks("<|channel|>analysis<|message|>", "<|end|>", channels=True),
    "written": FORMATS["harmony"],
    "heading": True,
}
MESSAGES = [
    "<|channel|>analysis<|message|>Hm, \n2 + 2.<|end|>",
    "<|channel|>commentary<|message|>I look.<|end|>",
    '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>',
    ' to=functions.g<|channel|>commentary json<|message|>{"b": {"c": ["}", "<|call|>"]}}<|call|>',
    "<|channel|>commentary to=functions.g<|message|><|call|>",
    "<|channel|>analysis to=python code<|message|>print(1)<|call|>",
    "<|channel|>final<|message|>Four, é.<|return|>",
    "<|channel|>final<|message|>",
]
MARKS_OF_CHANNELS = ["<|", "<|end|>", "<|message|>", "<|channel|>", "<|start|>", "<|constrain|>"]
BROKEN = [*MARKS_OF_CHANNELS, "so ", "é", "\n", "…", "to=", "{"]


@given(st.lists(st.sampled_from([*MESSAGES * 2, *BROKEN]), max_size=6), st.booleans(), st.integers(0, 3), st.data())
def test_messages_in_channels_come_out_the_same_however_they_are_split_and_whoever_dies(
    messages: list[str], parallel: bool, deaths: int, data: st.DataObject
) -> None:
    text = "<|start|>assistant".join(messages)
    how: dict[str, Any] = {**HARMONY, "parallel": parallel}
    assert Log(**how).write_all(text, data.draw, deaths=deaths) == whole(text, **how)


@given(texts, st.sampled_from(["max_output_tokens", "content_filter"]), st.data())
def test_an_answer_that_is_cut_anywhere_is_remembered_as_far_as_it_was_written(
    text: str, reason: Any, data: st.DataObject
) -> None:
    """The tokens of a call that nobody was shown are not the model's to remember."""
    text = text[: data.draw(st.integers(0, len(text)))]
    log = Log()
    stage = ToolCallParser(TOOLS)
    pipeline = OutputPipeline((), ())
    try:
        for chunk in log.vocabulary.chunks(text, data.draw):
            release = pipeline.feed(chunk)
            if release is not None:
                log.write(stage.accept(release))
    except Internal:
        return
    log.write(stage.finish(reason))
    assert text.startswith(log.ledger)
    stage, pieces = fed_at_once(log.ledger)
    assert together([*pieces, *stage.finish(reason).pieces]) == together(log.pieces)
    shown = "".join(piece.text for piece in log.pieces if not isinstance(piece, event_writer.CallBegin))
    calls = sum(isinstance(piece, event_writer.CallBegin) for piece in log.pieces)
    assert log.ledger.count("<tool_call>") == calls + shown.count("<tool_call>")
