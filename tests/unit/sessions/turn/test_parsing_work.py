"""Any text is parsed in time linear in its length. Characters that searches look at are counted; nothing is timed.

The texts are degenerate answers: marks repeated, nested or left open, and closing marks inside arguments."""

from __future__ import annotations

import re
from itertools import product
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.chat_template import ChatTemplate
from sessions.model.generation import ThoughtMarks
from sessions.turn import call_text
from sessions.turn.call_formats import FORMATS
from sessions.turn.tool_call_parser import FAILURES_MAX
from tests.support.engines.chat_templates import FAMILIES
from tests.support.engines.family_answers import read_answer

WORK_MAX: Final = 4 * FAILURES_MAX  # looks at one character
UNITS: Final = 400
LONG_ARGUMENT: Final = "<tool_calls><tool_call>f<tool_sep><arg_key>a</arg_key><arg_value>"
DEGENERATE: Final = [  # (format, text), as a reviewer tried them
    ("apertus", "<|tools_prefix|>[" * UNITS),
    ("apertus", '<|tools_prefix|>[{"f": "' * UNITS),
    ("hy3", LONG_ARGUMENT * UNITS + "</tool_calls>"),
    ("hy3", f"{LONG_ARGUMENT}</tool_calls>" + "a " * UNITS * 4),
    ("mistral", "[TOOL_CALLS]" * UNITS),
    ("mistral", "[TOOL_CALLS][" * UNITS),
    ("mistral", '[TOOL_CALLS]f[ARGS]{"a": ' * UNITS),
    ("command_r", "<|START_ACTION|>[" * UNITS),
    ("command_r", "<|START_ACTION|>[{" * UNITS),
    ("json_list", "<tool_call>[" * UNITS),
    ("json_list", "<tool_call>[{" * UNITS),
    ("gemma4", "<|tool_call>call:f{a:" * UNITS),
    ("gemma4", '<|tool_call>call:f{a:<|"|>' * UNITS),
    ("glm", "<tool_call>f<arg_key>a</arg_key><arg_value>" * UNITS),
    ("glm", "<tool_call>f<arg_key>a</arg_key><arg_value>" + "</tool_call>" * UNITS),
    ("minimax", '<minimax:tool_call><invoke name="f"><parameter name="a">' * UNITS),
    ("kimi", "<|tool_calls_section_begin|><|tool_call_begin|>f<|tool_call_argument_begin|>" * UNITS),
    ("qwen_xml", "<tool_call><function=f><parameter=a>" * UNITS),
    ("deepseek", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>" * UNITS),
    ("lfm2", "<|tool_call_start|>[f(" * UNITS),
    ("functionary", '<function=f>{"a":' * UNITS),
    ("llama3", '<|python_tag|>{"a":' * UNITS),
    ("hermes", '<tool_call>{"name": ' * UNITS),
    ("hermes", '<tool_call>{"name": "f", "arguments": {}' + " x" * UNITS * 4),
    ("harmony", "<|channel|>final<|message|>" * UNITS),
    ("field", '\ufdd0"f"\n' * UNITS),
]


class Work:
    """Counts the characters that searches look at."""

    def __init__(self) -> None:
        self.count = 0
        self._scan = call_text.scan

    def scan(self, pattern: re.Pattern[str], text: str, start: int) -> re.Match[str] | None:
        match = self._scan(pattern, text, start)
        self.count += (len(text) if match is None else match.end()) - start
        return match


def work(parts: list[str], written: str, **how: Any) -> int:
    counter = Work()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(call_text, "scan", counter.scan)
        read_answer(parts, written, how.get("marks"), how.get("reason", "stop"))
    return counter.count


@pytest.mark.parametrize(("written", "text"), DEGENERATE, ids=[f"{at}-{it[0]}" for at, it in enumerate(DEGENERATE)])
def test_a_degenerate_answer_takes_work_linear_in_its_length(written: str, text: str) -> None:
    for parts in ([text], list(text), re.findall(r".{1,4}", text, re.DOTALL)):
        assert work(parts, written) <= WORK_MAX * len(text)


MARKS: Final = {
    written: ThoughtMarks("\ufdd2", "\ufdd3") if form.verbatim else ThoughtMarks("<think>", "</think>")
    for written, form in FORMATS.items()
    if not form.channels
}
PIECES: Final = [
    *("[", "]", "{", "}", "[{", "}]", '"', "\\", '"a":', ",", ":", "\n", " ", "a", "f", "1", "(", ")", "=", "<"),
    *('{"name": "f", "arguments": {', '{"f": {', '{"name": "', "[ARGS]", "f[ARGS]{", '<|"|>', "call:f{", "f(a="),
    *("<function=f>", "<parameter=a>", "</parameter>", "</function>", '<invoke name="f">', '<parameter name="a">'),
    *("</invoke>", "</minimax:tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "</tool_call>"),
    *("<tool_call>", "<tool_sep>", "</tool_calls>", "function<｜tool▁sep｜>f\n```json\n", "```", "f"),
]


def pieces_of(written: str) -> list[str]:
    form = FORMATS[written]
    return [*PIECES, *(*form.opens, *form.closes, *form.specials) * 4]


@pytest.mark.parametrize("nth", [10, pytest.param(1, marks=pytest.mark.slow)])
def test_every_pair_of_pieces_repeated_takes_work_linear_in_its_length(nth: int) -> None:
    pairs = [(name, *pair) for name, form in FORMATS.items() for pair in product(form.opens, pieces_of(name))]
    for written, mark, piece in pairs[::nth]:
        for text in (mark + piece * 300, (mark + piece) * 150):
            parts = re.findall(r".{1,7}", text, re.DOTALL)
            assert work(parts, written) <= WORK_MAX * len(text), (written, mark, piece)


@given(st.sampled_from(sorted(FORMATS)), st.booleans(), st.integers(1, 40), st.data())
def test_any_unit_repeated_takes_work_linear_in_its_length(
    written: str, has_thoughts: bool, width: int, data: st.DataObject
) -> None:
    units = st.lists(st.sampled_from(pieces_of(written)), min_size=1, max_size=6).map("".join)
    text = data.draw(units) + data.draw(units) * 200 + data.draw(units)
    marks = MARKS.get(written) if has_thoughts else None
    parts = [text[at : at + width] for at in range(0, len(text), width)]
    for reason in ("stop", "max_output_tokens"):
        assert work(parts, written, marks=marks, reason=reason) <= WORK_MAX * len(text), text


def test_every_dialect_s_format_is_tried() -> None:
    written = {ChatTemplate(text, bos="<s>", eos="</s>").call_format() for text in FAMILIES.values()}
    assert written <= {name for name, _ in DEGENERATE} and {name for name, _ in DEGENERATE} == set(FORMATS)


def test_a_call_behind_a_few_broken_ones_is_read() -> None:
    call = '<|tools_prefix|>[{"f": {"a": 1}}]<|tools_suffix|>'
    for broken in ("<|tools_prefix|>[" * 100, '<|tools_prefix|>[{"f": "' * FAILURES_MAX):
        for parts in ([broken + call], list(broken + call)):
            assert read_answer(parts, "apertus", None) == [("text", broken), ("call", "f"), ("arguments", '{"a": 1}')]


def test_behind_too_many_broken_calls_one_in_the_other_the_rest_is_text() -> None:
    text = '<|tools_prefix|>[{"f": [' * (FAILURES_MAX + 50)
    for parts in ([text], list(text)):
        assert read_answer(parts, "apertus", None) == [("text", text)]
