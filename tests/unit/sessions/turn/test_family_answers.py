"""Thoughts and calls as each family of docs/models.md writes them: the examples that the families publish, and answers
made at random, cut at every byte. The pieces joined are those of the whole: no mark in a text, no text in a call."""

from __future__ import annotations

import re
from collections.abc import Iterator
from random import Random
from typing import Any, Final, NamedTuple

import pytest

from inference.chat_template import ChatTemplate
from sessions.model.generation import ThoughtMarks
from sessions.turn import call_formats, call_text
from sessions.turn.call_formats import FORMATS
from tests.support.engines.chat_templates import FAMILIES
from tests.support.engines.family_answers import AnswerParts, FamilyAnswer, cuts, family_answer, read_answer

ANSWERS_MAX: Final = 2_000
QUICK: Final = ANSWERS_MAX // 10


class Dialect(NamedTuple):
    """How a family writes: the format of its calls, and the marks of its thoughts."""

    written: str
    marks: ThoughtMarks | None


def dialect_of(family: str) -> Dialect:
    template = ChatTemplate(FAMILIES[family], bos="<s>", eos="</s>")
    return Dialect(template.call_format(), template.thoughts())


DIALECTS: Final[dict[Dialect, str]] = {}  # with the first family of each
for each in FAMILIES:
    DIALECTS.setdefault(dialect_of(each), each)
FIELD: Final = Dialect("field", ThoughtMarks("\ufdd2", "\ufdd3"))
DIALECTS[FIELD] = "a provider of chat completions"
DIALECTS[Dialect("deepseek", ThoughtMarks("<think>", "</think>"))] = "deepseek with tools"
TRIED: Final = pytest.mark.parametrize("dialect", DIALECTS, ids=[name.replace(" ", "-") for name in DIALECTS.values()])


def answers(dialect: Dialect, count: int) -> Iterator[FamilyAnswer]:
    random = Random(f"{dialect.written} {dialect.marks}")
    for _ in range(count):
        yield family_answer(*dialect, random)


@TRIED
def test_answers_made_at_random_say_what_was_written_however_they_come(dialect: Dialect) -> None:
    for number, (text, expected) in enumerate(answers(dialect, QUICK)):
        assert read_answer([text], *dialect) == expected, text
        assert read_answer(list(text), *dialect) == expected, text
        for parts in cuts(text) if number < 3 else ():
            assert read_answer(parts, *dialect) == expected, parts


@pytest.mark.slow
@TRIED
def test_two_thousand_answers_say_what_was_written_wherever_they_are_cut(dialect: Dialect) -> None:
    for text, expected in answers(dialect, ANSWERS_MAX):
        assert read_answer(list(text), *dialect) == expected, text
        for parts in cuts(text):
            assert read_answer(parts, *dialect) == expected, parts


@TRIED
def test_an_answer_that_ends_anywhere_shows_no_whole_mark(dialect: Dialect) -> None:
    form, marks = FORMATS[dialect.written], dialect.marks
    own = [*form.opens, *form.closes, *form.specials, *(() if marks is None else (marks.open, marks.close))]
    random = Random(0)
    for text, _ in answers(dialect, QUICK):
        for kind, part in read_answer([text[: random.randint(0, len(text))]], *dialect, reason="max_output_tokens"):
            assert kind not in ("text", "thought") or not any(mark in part for mark in own), text


def called(name: str, arguments: str) -> AnswerParts:
    return [("call", name), ("arguments", arguments)]


ROME: Final = called("get_weather", '{"city": "Rome"}')
PUBLISHED: Final[list[tuple[str, str, AnswerParts]]] = [
    (
        "qwen2.5",
        (
            '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>\n'
            '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
        ),
        [*ROME, *called("look", "{}")],
    ),
    ("hermes3", '<tool_call>\n{"arguments": {"city": "Rome"}, "name": "get_weather"}\n</tool_call>', ROME),
    (
        "qwen3",
        '<think>\nThey want weather.\n</think>\n\n<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>',
        [("thought", "They want weather."), *called("look", "{}")],
    ),
    ("llama3.1", '{"name": "get_weather", "parameters": {"city": "Rome"}}', ROME),
    ("llama3.1", '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Rome"}}', ROME),
    ("mistral", '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Rome"}, "id": "VvvODy9mT"}]', ROME),
    ("ministral3", '[THINK]Hm.[/THINK][TOOL_CALLS]get_weather[ARGS]{"city": "Rome"}', [("thought", "Hm."), *ROME]),
    ("mistral", '[TOOL_CALLS]get_weather[CALL_ID]VvvODy9mT[ARGS]{"city": "Rome"}', ROME),
    (
        "qwen3-coder",
        (
            "I look.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n"
            "</function>\n</tool_call>"
        ),
        [("text", "I look."), *ROME],
    ),
    ("granite3", '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Rome"}}]', ROME),
    ("granite3", '<tool_call>[{"name": "get_weather", "arguments": {"city": "Rome"}}]', ROME),
    ("phi4-mini", '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Rome"}}]<|/tool_call|>', ROME),
    (
        "nemotron-nano2",
        'Hm.\n</think>\n\n<TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Rome"}}]</TOOLCALL>',
        [("thought", "Hm."), *ROME],
    ),
    (
        "command-r7b",
        (
            '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Rome"}}'
            "\n]<|END_ACTION|>"
        ),
        ROME,
    ),
    ("lfm2", '<|tool_call_start|>[get_weather(city="Rome")]<|tool_call_end|>I look.', [*ROME, ("text", "I look.")]),
    (
        "glm4.6",
        "\n<think>Hm.</think>\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n</tool_call>",
        [("thought", "Hm."), *ROME],
    ),
    (
        "minimax-m2",
        (
            'Hm.\n</think>\n\n<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Rome</parameter>'
            '\n</invoke>\n<invoke name="look">\n<parameter name="n">3</parameter>\n</invoke>\n</minimax:tool_call>'
        ),
        [("thought", "Hm."), *ROME, *called("look", '{"n": 3}')],
    ),
    (
        "kimi-k2",
        (
            "I look.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
            '{"city": "Rome"}<|tool_call_end|><|tool_calls_section_end|>'
        ),
        [("text", "I look."), *ROME],
    ),
    ("functionary", '<function=get_weather>{"city": "Rome"}</function>', ROME),
    (
        "gemma4",
        '<|channel>thought\nHm.\n<channel|><|tool_call>call:get_weather{city:<|"|>Rome<|"|>}<tool_call|>',
        [("thought", "Hm."), *ROME],
    ),
    (
        "gpt-oss",
        (
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather "
            '<|constrain|>json<|message|>{"city": "Rome"}<|call|>'
        ),
        [("thought", "Hm."), *ROME],
    ),
    (
        "apertus",
        (
            '<|inner_prefix|>Hm.<|inner_suffix|>I look.<|tools_prefix|>[{"get_weather": {"city": "Rome"}}, '
            '{"look": {}}]<|tools_suffix|>'
        ),
        [("thought", "Hm."), ("text", "I look."), *ROME, *called("look", "{}")],
    ),
    (
        "hy3",
        (
            "I look.\n<tool_calls>\n<tool_call>get_weather<tool_sep>\n<arg_key>city</arg_key>\n"
            "<arg_value>Rome</arg_value>\n</tool_call>\n<tool_call>look<tool_sep>\n</tool_call>\n</tool_calls>"
        ),
        [("text", "I look."), *ROME, *called("look", "{}")],
    ),
    (
        "hy3",
        (
            "<tool_calls:opensource><tool_call:opensource>look<tool_sep:opensource><arg_key:opensource>n"
            "</arg_key:opensource><arg_value:opensource>3</arg_value:opensource></tool_call:opensource>"
            "</tool_calls:opensource>"
        ),
        called("look", '{"n": 3}'),
    ),
    ("r1-distill", "Hm.\n</think>\n\nFour.", [("thought", "Hm."), ("text", "Four.")]),
    ("seed-oss", "<seed:think>Hm.</seed:think>Four.", [("thought", "Hm."), ("text", "Four.")]),
]
DEEPSEEK: Final = (  # of templates that have a place for tools, which those of the table have not
    (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
        '{"city": "Rome"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
    ),
    (
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Rome"}<｜tool▁call▁end｜>'
        "<｜tool▁calls▁end｜>"
    ),
)


@pytest.mark.parametrize(
    ("family", "text", "expected"), PUBLISHED, ids=[f"{at}-{it[0]}" for at, it in enumerate(PUBLISHED)]
)
def test_what_a_family_publishes_is_read_wherever_it_is_cut(family: str, text: str, expected: AnswerParts) -> None:
    dialect = dialect_of(family)
    for parts in ([text], list(text), *cuts(text)):
        assert read_answer(parts, *dialect) == expected, parts


@pytest.mark.parametrize("text", DEEPSEEK)
def test_both_ways_of_deepseek_are_read_wherever_they_are_cut(text: str) -> None:
    for parts in ([text], list(text), *cuts(text)):
        assert read_answer(parts, "deepseek", None) == ROME, parts


def test_every_format_has_an_example() -> None:
    assert {dialect_of(family).written for family, _, _ in PUBLISHED} | {"deepseek", "field"} == set(FORMATS)


NO_CALLS: Final = [
    ("glm", "<tool_call>not a call</tool_call>"),
    ("glm", "<tool_call>f<b>x</b></tool_call>"),
    ("glm", "<tool_call></tool_call>"),
    ("glm", "<tool_call>word<b>"),
    ("minimax", "<minimax:tool_call>\nno\n</minimax:tool_call>"),
    ("minimax", '<minimax:tool_call><invoke name="f">x</invoke></minimax:tool_call>'),
    ("minimax", "<minimax:tool_call></minimax:tool_call>"),
    ("kimi", "<|tool_calls_section_begin|>no<|tool_calls_section_end|>"),
    ("kimi", "<|tool_calls_section_begin|><|tool_calls_section_end|>"),
    (
        "kimi",
        (
            "<|tool_calls_section_begin|><|tool_call_begin|>f:0<|tool_call_argument_begin|>{<|tool_call_end|>"
            "<|tool_calls_section_end|>"
        ),
    ),
    ("hy3", "<tool_calls>\nno\n</tool_calls>"),
    ("hy3", "<tool_calls></tool_calls>"),
    ("hy3", "<tool_calls><tool_call>f<tool_sep>x</tool_call></tool_calls>"),
    ("hy3", "<tool_calls><tool_call>f<b>"),
    ("apertus", "<|tools_prefix|>{}<|tools_suffix|>"),
    ("apertus", '<|tools_prefix|>["f"]<|tools_suffix|>'),
    ("apertus", "<|tools_prefix|>no"),
    ("apertus", "<|tools_prefix|>[1]<|tools_suffix|>"),
    ("functionary", "<function=f>no</function>"),
    ("functionary", "<function=>{}</function>"),
    ("functionary", "<function=f"),
]


@pytest.mark.parametrize(("written", "text"), NO_CALLS)
def test_what_is_no_call_is_text(written: str, text: str) -> None:
    for parts in ([text], list(text)):
        assert read_answer(parts, written, None) == [("text", text)]


@pytest.mark.parametrize("text", ["<tool_call>word<", "<tool_call>word<b> and more", "<tool_call>not a call"])
def test_what_no_longer_becomes_a_call_of_glm_is_shown_when_the_answer_is_cut_off(text: str) -> None:
    shown = [] if text.endswith("<") else [("text", text)]
    for parts in ([text], list(text)):
        assert read_answer(parts, "glm", None, "max_output_tokens") == shown


def test_arguments_of_apertus_that_are_a_string_are_json_already() -> None:
    text = r'<|tools_prefix|>[{"get_weather": "{\"city\": \"Rome\"}"}]<|tools_suffix|>'
    for parts in ([text], list(text)):
        assert read_answer(parts, "apertus", None) == ROME


def test_a_call_of_glm_that_is_an_object_ends_with_its_mark() -> None:
    text = '<tool_call>{"name": "get_weather", "arguments": {"city": "Rome"}}</tool_call>\nI look.'
    for parts in ([text], list(text)):
        assert read_answer(parts, "glm", None) == [*ROME, ("text", "I look.")]


def test_white_space_around_a_thought_in_the_middle_of_a_providers_text_is_kept() -> None:
    text = "Let me check.\n\n\ufdd2Hm.\ufdd3\nThe answer \ufdd2So.\ufdd3is 4.\n\ufdd0" + '"look"\n{}\ufdd1'
    expected = [("text", "Let me check.\n\n"), ("thought", "Hm."), ("text", "\nThe answer "), ("thought", "So.")]
    for parts in ([text], list(text)):
        assert read_answer(parts, *FIELD) == [*expected, ("text", "is 4."), *called("look", "{}")]


# Each may be followed by characters that it matches too, so that it must not give any back.
POSSESSIVE: Final = re.compile(r"(?:\\s|\[[^\]]*\]|\\w)[*+](?![+?])")
PATTERNS: Final = [
    (name, pattern.pattern)
    for module in (call_formats, call_text)
    for name, pattern in vars(module).items()
    if isinstance(pattern, re.Pattern)
]


def test_patterns_that_repeat_a_set_give_none_back() -> None:
    """Blanks behind a mark took time by the square of their number."""
    assert POSSESSIVE.search(r"\s*[^<>{}\s]*\s*") and len(PATTERNS) > 10
    assert not [name for name, pattern in PATTERNS if POSSESSIVE.search(pattern)]


def test_a_key_of_glm_ends_at_the_first_mark() -> None:
    """Each of these marks could end the key, and the value was looked for behind all of them."""
    text = "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value><arg_key>" + "</arg_key><arg_value>" * 3
    arguments = '{"a": 1, "": "</arg_key><arg_value></arg_key><arg_value>"}'
    assert read_answer([f"{text}</arg_value></tool_call>"], "glm", None) == called("f", arguments)
    text = "<tool_call>f<arg_key>a</arg_key>b</arg_key><arg_value>c</arg_value></tool_call>"
    assert read_answer([text], "glm", None) == [("text", text)]


class CountedText(str):
    """A text that counts how often its end is looked for."""

    finds = 0

    def find(self, *args: Any) -> int:
        self.finds += 1
        return super().find(*args)


def test_parameters_that_are_never_closed_are_looked_at_once() -> None:
    text = CountedText("<parameter=a>" * 100)
    assert not list(call_formats._parameters(text)) and text.finds == 1
    closed = "<parameter=a>\n<parameter=b>\n</parameter>\n<parameter=c>1</parameter>"
    assert list(call_formats._parameters(closed)) == [("a", "<parameter=b>"), ("c", "1")]
