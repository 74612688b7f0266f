"""Answers as families of models write them, made at random, and what each of them says.

An answer is a thought, text, calls and text again, each there or not, in the family's own marks. Words and arguments
hold what other families' parsers would look for, so that a parser that mixes two formats up is found out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, Final, Literal, NamedTuple

from sessions.machine import event_writer
from sessions.model.generation import ThoughtMarks
from sessions.model.types import Tool
from sessions.turn.call_formats import FORMATS
from sessions.turn.channels import END, FINAL, START, THOUGHT
from sessions.turn.output_pipeline import Release
from sessions.turn.tool_call_parser import ToolCallParser

AnswerParts = list[tuple[str, str]]
Call = tuple[str, dict[str, Any]]

TOOLS: Final = tuple(
    Tool(name=name, parameters={"type": "object", "properties": {"q": {"type": "string"}, "deep": {"type": "object"}}})
    for name in ("look", "get_weather")
)
_WORDS: Final = [
    *("so", "2 + 2", "é", "日本", "🙂", "a < b", "{x}", "[1]", "“no”", "it's", "f(x)", "`code`", "1.5", "a\nb", "\\n"),
    *("<b>", "</p>", "<|", "|>", "to=day", '{"a": 1}', "&amp;", "–"),
]
_FOREIGN: Final = [
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<think>", "</think>", "<function=", "<arg_key>", "[/THINK]"),
    *("<|tool_call|>", "<|START_ACTION|>", "<｜tool▁calls▁begin｜>", "<|channel|>", "</invoke>", "<|python_tag|>"),
]


class FamilyAnswer(NamedTuple):
    """An answer as a model writes it, and what it says: thoughts, texts, calls and their arguments in order."""

    text: str
    parts: AnswerParts


def _object(name: str, arguments: dict[str, Any], key: str = "arguments", name_key: str = "name") -> str:
    return json.dumps({name_key: name, key: arguments}, ensure_ascii=False)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _value(value: Any) -> str:
    return value if isinstance(value, str) else _json(value)


def _gemma(value: Any) -> str:
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, dict):
        return "{" + ",".join(f"{name}:{_gemma(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_gemma, value)) + "]"
    return _json(value)


def _hermes(calls: Sequence[Call], random: Random) -> str:
    blank = random.choice(["", "\n"])
    return "\n".join(f"<tool_call>{blank}{_object(*call)}{blank}</tool_call>" for call in calls)


def _llama3(calls: Sequence[Call], random: Random) -> str:
    return "<|python_tag|>" + "; ".join(_object(*call, key="parameters") for call in calls)


def _mistral(calls: Sequence[Call], random: Random) -> str:
    if random.random() < 0.5:
        return "[TOOL_CALLS][" + ", ".join(_object(*call) for call in calls) + "]"
    return "".join(f"[TOOL_CALLS]{name}[ARGS]{_json(arguments)}" for name, arguments in calls)


def _qwen_xml(calls: Sequence[Call], random: Random) -> str:
    def written(name: str, arguments: dict[str, Any]) -> str:
        lines = [f"<parameter={key}>\n{_value(value)}\n</parameter>\n" for key, value in arguments.items()]
        return f"<tool_call>\n<function={name}>\n{''.join(lines)}</function>\n</tool_call>"

    return "\n".join(written(*call) for call in calls)


def _json_list(calls: Sequence[Call], random: Random) -> str:
    marks = [
        ("<|tool_call|>", ""),
        ("<|tool_call|>", "<|/tool_call|>"),
        ("<tool_call>", ""),
        ("<TOOLCALL>", "</TOOLCALL>"),
    ]
    before, behind = random.choice(marks)
    return before + "[" + ", ".join(_object(*call) for call in calls) + "]" + behind


def _glm(calls: Sequence[Call], random: Random) -> str:
    def written(name: str, arguments: dict[str, Any]) -> str:
        blank = random.choice(["", "\n"])
        pairs = (
            f"<arg_key>{key}</arg_key>{blank}<arg_value>{_value(value)}</arg_value>{blank}"
            for key, value in arguments.items()
        )
        return f"<tool_call>{name}{blank}{''.join(pairs)}</tool_call>"

    return "\n".join(written(*call) for call in calls)


def _minimax(calls: Sequence[Call], random: Random) -> str:
    def written(name: str, arguments: dict[str, Any]) -> str:
        lines = [f'<parameter name="{key}">{_value(value)}</parameter>\n' for key, value in arguments.items()]
        return f'<invoke name="{name}">\n{"".join(lines)}</invoke>\n'

    return f"<minimax:tool_call>\n{''.join(written(*call) for call in calls)}</minimax:tool_call>"


def _kimi(calls: Sequence[Call], random: Random) -> str:
    lines = (
        f"<|tool_call_begin|>functions.{name}:{number}<|tool_call_argument_begin|>{_json(arguments)}<|tool_call_end|>"
        for number, (name, arguments) in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{''.join(lines)}<|tool_calls_section_end|>"


def _functionary(calls: Sequence[Call], random: Random) -> str:
    return "".join(f"<function={name}>{_json(arguments)}</function>" for name, arguments in calls)


def _command_r(calls: Sequence[Call], random: Random) -> str:
    listed = [
        f'    {{"tool_call_id": "{number}", {_object(name, arguments, "parameters", "tool_name")[1:]}'
        for number, (name, arguments) in enumerate(calls)
    ]
    return "<|START_ACTION|>[\n" + ",\n".join(listed) + "\n]<|END_ACTION|>"


def _deepseek(calls: Sequence[Call], random: Random) -> str:
    fenced = random.random() < 0.5
    end = "\n```" if fenced else ""

    def written(name: str, arguments: dict[str, Any]) -> str:
        begin = f"function<｜tool▁sep｜>{name}\n```json\n" if fenced else f"{name}<｜tool▁sep｜>"
        return f"<｜tool▁call▁begin｜>{begin}{_json(arguments)}{end}<｜tool▁call▁end｜>"

    return f"<｜tool▁calls▁begin｜>{''.join(written(*call) for call in calls)}<｜tool▁calls▁end｜>"


def _lfm2(calls: Sequence[Call], random: Random) -> str:
    listed = (
        f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})" for name, arguments in calls
    )
    return f"<|tool_call_start|>[{', '.join(listed)}]<|tool_call_end|>"


def _gemma4(calls: Sequence[Call], random: Random) -> str:
    return "".join(f"<|tool_call>call:{name}{_gemma(arguments)}<tool_call|>" for name, arguments in calls)


def _apertus(calls: Sequence[Call], random: Random) -> str:
    return f"<|tools_prefix|>{_json([dict([call]) for call in calls])}<|tools_suffix|>"


def _hy3(calls: Sequence[Call], random: Random) -> str:
    suffix, blank = random.choice(["", ":opensource"]), random.choice(["", "\n"])

    def written(name: str, arguments: dict[str, Any]) -> str:
        pairs = (
            f"<arg_key{suffix}>{key}</arg_key{suffix}>{blank}<arg_value{suffix}>{_value(value)}</arg_value{suffix}>{blank}"
            for key, value in arguments.items()
        )
        return f"<tool_call{suffix}>{name}<tool_sep{suffix}>{blank}{''.join(pairs)}</tool_call{suffix}>{blank}"

    return f"<tool_calls{suffix}>{blank}{''.join(written(*call) for call in calls)}</tool_calls{suffix}>"


def _field(calls: Sequence[Call], random: Random) -> str:
    return "".join(f"\ufdd0{_json(name)}\n{_json(arguments)}\ufdd1" for name, arguments in calls)


_WRITERS: Final[dict[str, Callable[[Sequence[Call], Random], str]]] = {
    "hermes": _hermes,
    "llama3": _llama3,
    "mistral": _mistral,
    "qwen_xml": _qwen_xml,
    "json_list": _json_list,
    "glm": _glm,
    "minimax": _minimax,
    "kimi": _kimi,
    "functionary": _functionary,
    "command_r": _command_r,
    "deepseek": _deepseek,
    "lfm2": _lfm2,
    "apertus": _apertus,
    "hy3": _hy3,
    "gemma4": _gemma4,
    "field": _field,
}
_OWN_MARKS: Final = {  # what arguments of a format cannot hold, besides the marks around a call
    "qwen_xml": ("</parameter>",),
    "glm": ("</arg_value>", "<arg_key>"),
    "hy3": ("</arg_value", "<arg_key", "</tool_call"),
    "minimax": ("</parameter>", "</invoke>"),
    "deepseek": ("<｜",),
    "gemma4": ('<|"|>',),
}
_STRINGS_HOLD_MARKS: Final = (
    "hermes",
    "llama3",
    "mistral",
    "json_list",
    "functionary",
    "command_r",
    "harmony",
    "apertus",
)


def family_answer(written: str, marks: ThoughtMarks | None, random: Random) -> FamilyAnswer:
    """Returns a random answer of a model that writes calls in the format `written` and thoughts between `marks`."""
    form = FORMATS[written]
    own = (*form.opens, *form.closes, *form.specials, *(() if marks is None else (marks.open, marks.close)))

    def words(*, most: int, foreign: bool = True) -> str:
        chosen = random.choices([*_WORDS * 3, *(_FOREIGN if foreign else ())], k=random.randint(1, most))
        return " ".join(word for word in chosen if not any(mark in word or word in mark for mark in own)) or "yes"

    def argument() -> str:
        hidden = (*own, *_OWN_MARKS.get(written, ()))
        free = written in _STRINGS_HOLD_MARKS
        chosen = random.choices([*_WORDS, *_FOREIGN, "\n", '"', "}", "]", "'"], k=random.randint(0, 4))
        return "".join(each for each in chosen if free or not any(mark in each or each in mark for mark in hidden))

    def call() -> Call:
        arguments: dict[str, Any] = {"q": argument()}
        if random.random() < 0.4:
            arguments["deep"] = {"list": [1, True, None, -2.5, argument()], "e": {}}
        return random.choice(["look", "get_weather"]), {} if random.random() < 0.15 else arguments

    thought = words(most=6) if marks is not None and random.random() < 0.6 else ""
    calls = [call() for _ in range(random.choice([0, 1, 1, 2, 3]))]
    before = words(most=5) if not calls or random.random() < 0.5 else ""
    behind = words(most=4) if calls and written != "llama3" and random.random() < 0.3 else ""
    called = [part for name, given in calls for part in (("call", name), ("arguments", _json(given)))]
    parts = [("thought", thought), ("text", before), *called, ("text", behind)]
    parts = [(kind, text) for kind, text in parts if text]
    if written == "harmony":
        return FamilyAnswer(_in_channels(thought, before, calls, behind), parts)
    text = ""
    if marks is not None and (thought or marks.opened):
        blank = "" if form.verbatim else "\n\n"  # there it would be a part of the text
        text = ("" if marks.opened else marks.open) + f"\n{thought}\n{marks.close}{blank}"
    sections = [before, _WRITERS[written](calls, random) if calls else "", behind]
    return FamilyAnswer(text + random.choice(["\n", "\n\n"]).join(section for section in sections if section), parts)


def _in_channels(thought: str, before: str, calls: Sequence[Call], behind: str) -> str:
    messages = [f"{THOUGHT}{thought}{END}"] if thought else []
    if before:
        messages.append(f"<|channel|>commentary<|message|>{before}{END}" if calls else f"{FINAL}{before}<|return|>")
    messages += [
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{_json(arguments)}<|call|>"
        for name, arguments in calls
    ]
    if behind:
        messages.append(f"{FINAL}{behind}<|return|>")
    return f"{START}assistant".join(messages)


def read_answer(
    parts: Sequence[str],
    written: str,
    marks: ThoughtMarks | None,
    reason: Literal["stop", "max_output_tokens"] = "stop",
    *,
    heading: bool = True,
) -> AnswerParts:
    """Returns what a parser says of an answer that comes in these parts, with neighbouring pieces of a kind joined.

    In a format with channels it begins with a header, unless the prompt has that."""
    heading = heading and FORMATS[written].channels
    opened = marks is not None and marks.opened
    parser = ToolCallParser(TOOLS, written=FORMATS[written], thoughts=marks, thinking=opened, heading=heading)
    pieces: list[event_writer.Piece] = []
    for part in parts:
        pieces += parser.accept(Release(part, b"", "")).pieces
    pieces += parser.finish(reason).pieces
    kinds = {event_writer.Thought: "thought", event_writer.Text: "text", event_writer.CallArguments: "arguments"}
    read: AnswerParts = []
    for piece in pieces:
        if isinstance(piece, event_writer.CallBegin):
            read.append(("call", piece.name))
        elif read and read[-1][0] == kinds[type(piece)]:
            read[-1] = (read[-1][0], read[-1][1] + piece.text)
        else:
            read.append((kinds[type(piece)], piece.text))
    return read


def cuts(text: str) -> Iterator[list[str]]:
    """Yields a text whole, then in two parts, cut before each character: engines keep back what is cut inside one."""
    yield [text] if text else []
    for at in range(1, len(text)):
        yield [text[:at], text[at:]]
