"""Answers of models that write in channels (gpt-oss, Gemma 4), as these families' own descriptions show them: cut at
every byte, the pieces joined are those of the whole, without a mark in a text or a text in a call."""

from __future__ import annotations

import json
from typing import Final

import pytest

from sessions.model.generation import ThoughtMarks
from sessions.turn.call_formats import FORMATS
from sessions.turn.call_text import CallReading, Calls
from sessions.turn.channels import END, THOUGHT, Header, read_header
from tests.support.engines.family_answers import AnswerParts, cuts, read_answer

Dialect = tuple[str, ThoughtMarks]
HARMONY: Final[Dialect] = ("harmony", ThoughtMarks(THOUGHT, END, channels=True))
GEMMA: Final[Dialect] = ("gemma4", ThoughtMarks("<|channel>thought", "<channel|>"))
NEXT: Final = "<|start|>assistant"
HARMONY_CALL: Final = (
    "<|channel|>analysis<|message|>Need to use function get_weather.<|end|>"
    "<|start|>assistant<|channel|>commentary"
    ' to=functions.get_weather <|constrain|>json<|message|>{"location":"San Francisco"}<|call|>'
)
ANSWERS: Final[dict[str, tuple[Dialect, str, AnswerParts]]] = {
    "a thought and text": (
        HARMONY,
        (
            "<|channel|>analysis<|message|>User asks: “What is 2 + 2?” Simple arithmetic.<|end|>"
            "<|start|>assistant<|channel|>final<|message|>2 + 2 = 4.<|return|>"
        ),
        [("thought", "User asks: “What is 2 + 2?” Simple arithmetic."), ("text", "2 + 2 = 4.")],
    ),
    "a call": (
        HARMONY,
        HARMONY_CALL,
        [
            ("thought", "Need to use function get_weather."),
            ("call", "get_weather"),
            ("arguments", '{"location":"San Francisco"}'),
        ],
    ),
    "its recipient before the channel": (
        HARMONY,
        ' to=functions.get_weather<|channel|>commentary json<|message|>{"location": "Tokyo"}<|call|>',
        [("call", "get_weather"), ("arguments", '{"location": "Tokyo"}')],
    ),
    "a preamble and several calls": (
        HARMONY,
        (
            "<|channel|>analysis<|message|>Both.<|end|>"
            f"{NEXT}<|channel|>commentary<|message|>**Action plan**:\n1. Look<|end|>"
            f"{NEXT}<|channel|>commentary to=functions.look<|constrain|>json<|message|>"
            '{"q": "<|end|> \\" }"}<|call|>'
            f"{NEXT}<|channel|>commentary to=functions.look <|constrain|>json<|message|><|call|>"
        ),
        [
            ("thought", "Both."),
            ("text", "**Action plan**:\n1. Look"),
            ("call", "look"),
            ("arguments", '{"q": "<|end|> \\" }"}'),
            ("call", "look"),
            ("arguments", "{}"),
        ],
    ),
    "texts in a row": (
        HARMONY,
        f"<|channel|>commentary<|message|>I look.<|end|>{NEXT}<|channel|>final <|constrain|>json<|message|>{{}}",
        [("text", "I look.\n\n{}")],
    ),
    "tools of others are thoughts": (
        HARMONY,
        f"<|channel|>analysis to=python code<|message|>print(1)<|call|>{NEXT}<|channel|>final<|message|>1<|return|>",
        [("thought", "print(1)"), ("text", "1")],
    ),
    "ends that an engine left out": (
        HARMONY,
        f"<|channel|>analysis<|message|>Hm.{NEXT}<|channel|>final<|message|>Yes.",
        [("thought", "Hm."), ("text", "Yes.")],
    ),
    "no header at all": (HARMONY, "Just <b>text</b>, to=day.", [("text", "Just <b>text</b>, to=day.")]),
    "Gemma's thought and text": (
        GEMMA,
        "<|channel>thought\nTwo plus two.\n<channel|>Four.",
        [("thought", "Two plus two."), ("text", "Four.")],
    ),
    "Gemma's empty thought": (GEMMA, "<|channel>thought\n<channel|>Four.", [("text", "Four.")]),
    "Gemma's calls": (
        GEMMA,
        (
            "<|channel>thought\nBoth.\n<channel|>"
            '<|tool_call>call:get_weather{location:<|"|>Paris, "x" {y}<|"|>,days:3,deep:'
            "{a:[true,null,-1.5]}}<tool_call|>"
            "<|tool_call>call:look{}<tool_call|>"
        ),
        [
            ("thought", "Both."),
            ("call", "get_weather"),
            ("arguments", '{"location": "Paris, \\"x\\" {y}", "days": 3, "deep": {"a": [true, null, -1.5]}}'),
            ("call", "look"),
            ("arguments", "{}"),
        ],
    ),
    "Gemma's call in a thought": (
        GEMMA,
        '<|channel>thought\nLook.<|tool_call>call:look{"q":"x",<|"|>r<|"|>:word}<tool_call|>',
        [("thought", "Look."), ("call", "look"), ("arguments", '{"q": "x", "r": "word"}')],
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_read_the_same_wherever_it_is_cut(name: str) -> None:
    dialect, text, expected = ANSWERS[name]
    for parts in ([text], list(text), *cuts(text)):
        assert read_answer(parts, *dialect) == expected


def test_behind_a_header_of_the_prompts_the_text_begins_at_once() -> None:
    text = "Four.<|end|><|start|>assistant<|channel|>analysis<|message|>Hm."
    for parts in ([text], list(text), *cuts(text)):
        assert read_answer(parts, *HARMONY, heading=False) == [("text", "Four."), ("thought", "Hm.")]


@pytest.mark.parametrize(
    ("text", "header"),
    [
        ("<|channel|>final<|message|>x", Header(27, "final")),
        (" to=functions.a.b<|channel|>commentary json<|message|>", Header(54, "commentary", "functions.a.b")),
        ("<|start|>user<|message|>", Header(24)),
        ("<|channel|>final<|end|>", Header(16, whole=False)),
        ("", None),
        (" ", None),
        ("<|chan", None),
        ("assistant", None),
        ("<|channel|>final", None),
    ],
)
def test_headers_are_read(text: str, header: Header | None) -> None:
    assert read_header(text) == header


@pytest.mark.parametrize("text", ["Hello", "assistants", "<b>", "to=" + "x" * 600, "<|channel|>" + "x" * 600])
def test_what_can_be_no_header_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="header"):
        read_header(text)


def calls_in(written: str, text: str) -> Calls | None:
    read = FORMATS[written].read
    assert read is not None
    return CallReading(read, {}).feed(text, ends=True)


def test_a_number_that_json_has_no_word_for_is_text() -> None:
    made = calls_in("gemma4", "call:f{a:NaN,b:1e999,c:-2.5,d:7}")
    assert made is not None and json.loads(made[0][1]) == {"a": "NaN", "b": "1e999", "c": -2.5, "d": 7}


@pytest.mark.parametrize("value", ["NaN", "1e999", '"\\ud800"'])
def test_what_json_cannot_hold_makes_no_call(value: str) -> None:
    assert calls_in("mistral", 'f{"a": 1}') == [("f", '{"a": 1}')]
    with pytest.raises(ValueError, match=r"."):
        calls_in("mistral", f'f{{"a": {value}}}')
