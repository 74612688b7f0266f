"""How families of models write calls of tools: marks, and a reader for the text behind them.

A reader goes through the text behind a mark (`sessions.turn.call_text`) and returns the complete calls at its
beginning. It raises ValueError as soon as the text can be no call, and then it is ordinary text. Hermes' format has no
reader here: `tool_call_parser` follows its arguments as they come.

    hermes     <tool_call>{"name": "f", "arguments": {}}</tool_call>   at the start also bare, or fenced as JSON
    llama3     {"name": "f", "parameters": {}}                    at the start, or behind <|python_tag|>
    mistral    [TOOL_CALLS][{"name": "f", "arguments": {}}]       or [TOOL_CALLS]f[ARGS]{}
    qwen_xml   <tool_call><function=f><parameter=p>v</parameter></function></tool_call>
    json_list  <|tool_call|>[{"name": "f", "arguments": {}}]      Granite, Phi; <TOOLCALL>[...]</TOOLCALL>, Nemotron
    glm        <tool_call>f\\n<arg_key>p</arg_key>\\n<arg_value>v</arg_value>\\n</tool_call>
    minimax    <minimax:tool_call><invoke name="f"><parameter name="p">v</parameter></invoke></minimax:tool_call>
    kimi       <|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}...
    functionary  <function=f>{"p": "v"}</function>
    command_r  <|START_ACTION|>[{"tool_name": "f", "parameters": {}}]<|END_ACTION|>
    deepseek   <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\\n```json\\n{}...
    lfm2       <|tool_call_start|>[f(p="v")]<|tool_call_end|>
    gemma4     <|tool_call>call:f{p:<|"|>v<|"|>,q:[1,true]}<tool_call|>
    apertus    <|tools_prefix|>[{"f": {"p": "v"}}]<|tools_suffix|>
    hy3        <tool_calls>\\n<tool_call>f<tool_sep>\\n<arg_key>p</arg_key>\\n<arg_value>v</arg_value>\\n</tool_call>...
               its marks also with a suffix, as <tool_calls:opensource>
    field      as hermes, between marks that no text has: calls, and thoughts, came in fields of their own

OpenAI's harmony has no reader either: there a call is a message of its own kind (`sessions.turn.channels`).

Sources: the chat templates of these models and their cards.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any, Final, NamedTuple

from sessions.model.types import Json, Tool
from sessions.turn.call_text import Calls, CallText, Reader
from sessions.turn.channels import MARKS, THOUGHT

Reading = Generator[None, None, Calls]


def may_be_json_call(text: str, tools: Mapping[str, Tool]) -> bool:
    """Returns whether a text without a mark may become a call, or a list of calls, as more of it comes."""
    head = "".join(text[:200].split()).removeprefix("[")
    return any(head.startswith(each) or each.startswith(head) for each in _HEADS)


class CallFormat(NamedTuple):
    """How a family of models writes calls. `opens` are the marks before calls, `closes` those behind, and `between` is
    what may be between two.

    An answer that begins with one of the characters `starts` may be a call without a mark (engines show no special
    tokens, and small models leave marks out); `read_bare` reads it, or `read` if that is None, and `may_be_bare`
    detects early that a text is no call. `channels`: a call is a message in a channel. `ends_thoughts`: a call may
    begin inside a thought and ends it. `specials` are the marks that are special tokens of the models. `verbatim`: no
    text has the marks of calls and thoughts, so that they count everywhere; a call is its name, as a JSON string on a
    line of its own, and its arguments, which are all the text up to the closing mark.
    """

    opens: tuple[str, ...]
    read: Reader | None = None
    closes: tuple[str, ...] = ()
    starts: str = ""
    between: str = ""
    read_bare: Reader | None = None
    may_be_bare: Callable[[str, Mapping[str, Tool]], bool] = may_be_json_call
    channels: bool = False
    ends_thoughts: bool = False
    verbatim: bool = False
    specials: tuple[str, ...] = ()


def may_be_fenced_call(text: str, tools: Mapping[str, Tool]) -> bool:
    """Returns whether a text may become a call of one of these tools, written as an object, maybe inside a code fence.
    Only declared functions count, because an answer that shows some JSON is an answer."""
    head = _FENCE.sub("", "".join(text[: _FENCED_HEAD_MAX + 1].split()))
    heads = (f'{{"name":{json.dumps(name)},"{given}":{{' for name in tools for given in ("arguments", "parameters"))
    return any(each.startswith(head) or head.startswith(each) for each in (*heads, "```json{"))


def _fenced_call(source: CallText, tools: Mapping[str, Tool]) -> Reading:
    yield from source.blanks()
    is_fenced = yield from source.optional("```")
    if is_fenced:
        yield from source.optional("json")
    calls = yield from _json_calls(source, tools)
    end = source.at
    if is_fenced:
        yield from source.blanks()
        if not (yield from source.optional("```")) and source.at < len(source.text):
            source.at = end
    return calls


FIELD_OPEN: Final = "\ufdd0"  # noncharacters of Unicode, which the writer of calls and thoughts keeps out of texts
FIELD_CLOSE: Final = "\ufdd1"
FIELD_THOUGHT_OPEN: Final = "\ufdd2"
FIELD_THOUGHT_CLOSE: Final = "\ufdd3"
FIELD_MARKS: Final = (FIELD_OPEN, FIELD_CLOSE, FIELD_THOUGHT_OPEN, FIELD_THOUGHT_CLOSE)
_FENCED_HEAD_MAX: Final = 400  # code points of a call up to its arguments
_FENCE: Final = re.compile(r"^```(?:json)?(?=\{)")  # of a text without blanks
_HEADS: Final = ('{"name":"', '{"type":"function","name":"', '{"tool_name":"', '{"tool_call_id":"')
# Sets of characters, possessive: a repeat that gives characters back takes time by the square of their number.
_WORD: Final = re.compile(r"\w*+")
_FUNCTION_NAME: Final = re.compile(r"[\w.-]*+")
_TAG_NAME: Final = re.compile(r"[^<>\n]*+")
_QUOTED_NAME: Final = re.compile(r'[^"<>\n]*+')
_KEY: Final = re.compile(r"[^<>]*+")
_TAGLESS_WORD: Final = re.compile(r"[^<>\s]*+")
_PLAIN_WORD: Final = re.compile(r"[^<>{}\s]*+")
_PARAMETER: Final = re.compile(r"<parameter=([^<>\n]++)>")
_PARAMETER_END: Final = "</parameter>"
_DEEPSEEK_NAME: Final = re.compile(r"(?:function<｜tool▁sep｜>)?([^<>\n]++)(?:<｜tool▁sep｜>|\n```json\n)")
_DEEPSEEK_BEGIN: Final = "<｜tool▁call▁begin｜>"
_DEEPSEEK_END: Final = "<｜tool▁call▁end｜>"
_HY3_SUFFIXES: Final = ("", ":opensource")
_HY3_TAGS: Final = ("tool_calls", "tool_call", "tool_sep", "arg_key", "arg_value")
_HY3_MARKS: Final = tuple(
    f"<{slash}{tag}{suffix}>" for tag in _HY3_TAGS for slash in ("", "/") for suffix in _HY3_SUFFIXES
)
_KIMI_BEGIN: Final = "<|tool_call_begin|>"
_KIMI_ID: Final = re.compile(r"(?:functions\.)?(.+?)(?::\d+)?")
_KIMI_END: Final = "<|tool_calls_section_end|>"


class ArgumentTags(NamedTuple):
    """The tags around the arguments of one call that are written one by one; `end` closes the call."""

    key: str
    key_set: re.Pattern[str]
    key_end: str
    value: str
    value_end: str
    end: str


_GLM: Final = ArgumentTags("<arg_key>", _KEY, "</arg_key>", "<arg_value>", "</arg_value>", "</tool_call>")
_HY3: Final = {
    f"<tool_call{suffix}>": ArgumentTags(
        f"<arg_key{suffix}>",
        _KEY,
        f"</arg_key{suffix}>",
        f"<arg_value{suffix}>",
        f"</arg_value{suffix}>",
        f"</tool_call{suffix}>",
    )
    for suffix in _HY3_SUFFIXES
}
_MINIMAX: Final = ArgumentTags('<parameter name="', _QUOTED_NAME, '">', "", "</parameter>", "</invoke>")
_MINIMAX_CALL: Final = '<invoke name="'

_GEMMA_QUOTE: Final = '<|"|>'
_GEMMA_BETWEEN: Final = re.compile(r"[\s,]*+")
_GEMMA_NAME: Final = re.compile(r"[^:{}\[\]]*+")
_GEMMA_WORD: Final = re.compile(r"[^,\]}<]*+")
_GEMMA_WORDS: Final[dict[str, Json]] = {"true": True, "false": False, "null": None, "None": None}


def _json_calls(source: CallText, tools: Mapping[str, Tool]) -> Reading:
    value = yield from _json(source)
    return [_named(call) for call in (value if isinstance(value, list) else [value])]


def _json(source: CallText, brackets: str = "[{") -> Generator[None, None, Any]:
    """Reads a JSON object, or a list of objects that is not empty, which begins with one of these brackets."""
    yield from source.blanks()
    opening = yield from source.peek()
    if opening not in brackets:
        raise ValueError("no JSON")
    if opening == "[":
        begin = source.at
        source.at += 1
        yield from source.blanks()
        if (yield from source.peek()) != "{":
            raise ValueError("no list of objects")
        source.at = begin
    text = yield from source.json()
    return json.loads(text)


def _named(value: Json) -> tuple[str, str]:
    if isinstance(value, dict) and isinstance(inner := value.get("function"), dict):
        value = inner
    name = value.get("name", value.get("tool_name")) if isinstance(value, dict) else None
    if not isinstance(name, str) or not isinstance(value, dict):
        raise ValueError("no call")
    return name, _written(value.get("arguments", value.get("parameters", {})))


def _written(arguments: Json) -> str:
    """Returns arguments as JSON; a string is JSON already."""
    return arguments if isinstance(arguments, str) else _dumped(arguments)


def _mistral(source: CallText, tools: Mapping[str, Tool]) -> Reading:
    yield from source.blanks()
    if (yield from source.peek()) in "[{":
        return (yield from _json_calls(source, tools))
    name = yield from source.name(_FUNCTION_NAME)
    yield from source.blanks()
    if (yield from source.optional("[CALL_ID]")):
        yield from source.name(_WORD)
    yield from source.optional("[ARGS]")
    return [(name, _dumped((yield from _json(source, "{"))))]


def _qwen_xml(source: CallText, tools: Mapping[str, Tool]) -> Reading:
    yield from source.blanks()
    if (yield from source.peek()) == "{":
        return (yield from _json_calls(source, tools))
    yield from source.tag("<function=")
    name = yield from source.name(_TAG_NAME)
    yield from source.tag(">")
    body = yield from source.until("</function>")
    return [(name, _arguments(name, _parameters(body), tools))]


def _parameters(text: str) -> Iterable[tuple[str, str]]:
    """Yields the names and values of Qwen's parameters, up to the first that is not closed."""
    at = 0
    while (name := _PARAMETER.search(text, at)) and (end := text.find(_PARAMETER_END, name.end())) >= 0:
        yield name[1], text[name.end() : end].removeprefix("\n").removesuffix("\n")
        at = end + len(_PARAMETER_END)


def _arguments(function: str, written: Iterable[tuple[str, str]], tools: Mapping[str, Tool]) -> str:
    """Returns arguments that a model wrote one by one, as name and value, as a JSON object."""
    schemas = (tools[function].parameters or {}).get("properties") if function in tools else None
    known = schemas if isinstance(schemas, dict) else {}
    return _dumped({name: _typed(value, known.get(name)) for name, value in written})


def _tagged_arguments(source: CallText, tags: ArgumentTags) -> Generator[None, None, list[tuple[str, str]]]:
    """Reads the arguments of one call, and over the tag that closes it."""
    arguments = list[tuple[str, str]]()
    yield from source.blanks()
    while (yield from source.tag(tags.key, tags.end)) == tags.key:
        key = yield from source.run(tags.key_set)
        yield from source.tag(tags.key_end)
        if tags.value:
            yield from source.blanks()
            yield from source.tag(tags.value)
        arguments.append((key, (yield from source.until(tags.value_end))))
        yield from source.blanks()
    return arguments


def _glm(source: CallText, tools: Mapping[str, Tool]) -> Reading:
    yield from source.blanks()
    if (yield from source.peek()) == "{":
        return (yield from _json_calls(source, tools))
    name = yield from source.name(_PLAIN_WORD)
    return [(name, _arguments(name, (yield from _tagged_arguments(source, _GLM)), tools))]


def _minimax(source: CallText, tools: Mapping[str, Tool]) -> Reading:
    calls = Calls()
    ends: tuple[str, ...] = ()
    yield from source.blanks()
    while (yield from source.tag(_MINIMAX_CALL, *ends)) == _MINIMAX_CALL:
        name = yield from source.name(_QUOTED_NAME)
        yield from source.tag('">')
        calls.append((name, _arguments(name, (yield from _tagged_arguments(source, _MINIMAX)), tools)))
        ends = ("</minimax:tool_call>",)
        yield from source.blanks()
    return calls


def _hy3(source: CallText, tools: Mapping[str, Tool]) -> Reading:
    calls = Calls()
    ends: tuple[str, ...] = ()
    yield from source.blanks()
    while (tags := _HY3.get(opening := (yield from source.tag(*_HY3, *ends)))) is not None:
        yield from source.blanks()
        name = yield from source.name(_PLAIN_WORD)
        yield from source.blanks()
        yield from source.optional(opening.replace("call", "sep"))
        calls.append((name, _arguments(name, (yield from _tagged_arguments(source, tags)), tools)))
        ends = ("</tool_calls>", "</tool_calls:opensource>")
        yield from source.blanks()
    return calls


def _apertus(source: CallText, tools: Mapping[str, Tool]) -> Reading:
    listed = yield from _json(source, "[")
    if not all(isinstance(call, dict) and len(call) == 1 for call in listed):
        raise ValueError("no calls")
    return [(name, _written(arguments)) for call in listed for name, arguments in call.items()]


def _kimi(source: CallText, tools: Mapping[str, Tool]) -> Reading:
    calls = Calls()
    ends: tuple[str, ...] = ()
    yield from source.blanks()
    while (yield from source.tag(_KIMI_BEGIN, *ends)) == _KIMI_BEGIN:
        yield from source.blanks()
        name = _KIMI_ID.fullmatch((yield from source.name(_TAGLESS_WORD)))
        yield from source.blanks()
        yield from source.tag("<|tool_call_argument_begin|>")
        arguments = yield from source.until("<|tool_call_end|>")
        calls.append((name[1] if name is not None else "", _dumped(json.loads(arguments))))
        ends = (_KIMI_END,)
        yield from source.blanks()
    return calls


def _functionary(source: CallText, tools: Mapping[str, Tool]) -> Reading:
    name = yield from source.name(_FUNCTION_NAME)
    yield from source.tag(">")
    return [(name, _dumped((yield from _json(source, "{"))))]


def _typed(value: str, schema: Json) -> Json:
    """Returns a parameter's value: parsed as JSON if possible, but as it is if its schema says that it is a string."""
    if isinstance(schema, dict) and schema.get("type") == "string":
        return value
    try:
        parsed: Json = json.loads(value)
    except (ValueError, RecursionError):
        return value
    return parsed


def _deepseek(source: CallText, tools: Mapping[str, Tool]) -> Reading:
    body = yield from source.until("<｜tool▁calls▁end｜>")
    calls = Calls()
    for part in body.split(_DEEPSEEK_BEGIN)[1:]:
        written, closed, _ = part.partition(_DEEPSEEK_END)
        name = _DEEPSEEK_NAME.match(written)
        if closed and name is not None:
            arguments = written[name.end() :].rstrip().removesuffix("\n```")
            calls.append((name[1].strip(), _dumped(json.loads(arguments))))
    return calls


def _lfm2(source: CallText, tools: Mapping[str, Tool]) -> Reading:
    body = yield from source.until("<|tool_call_end|>")
    try:
        listed = ast.parse(body.strip(), mode="eval").body
        return [_python_call(each) for each in (listed.elts if isinstance(listed, ast.List) else [listed])]
    except (SyntaxError, RecursionError, MemoryError) as exc:
        raise ValueError("no calls") from exc


def _python_call(call: ast.expr) -> tuple[str, str]:
    if not isinstance(call, ast.Call) or call.args:
        raise ValueError("no call with named arguments")
    arguments: dict[str, Any] = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
    return ast.unparse(call.func), _dumped(arguments)


def _gemma4(source: CallText, tools: Mapping[str, Tool]) -> Reading:
    yield from source.blanks()
    yield from source.optional("call")
    yield from source.tag(":")
    yield from source.blanks()
    name = yield from source.name(_FUNCTION_NAME)
    yield from source.blanks()
    if (yield from source.peek()) != "{":
        raise ValueError("no object")
    return [(name, _dumped((yield from _gemma_value(source))))]


def _gemma_value(source: CallText) -> Generator[None, None, Json]:
    """Reads a value: an object whose names may be without quotes, a list, a text between the model's own quotation
    marks, or a word. It keeps the values that are open in a list of its own and does not call itself, so that deep ones
    go on from where they were as fast as others."""
    parents: list[
        tuple[str, dict[str, Json] | list[Json]]
    ] = []  # the open values, each with its name in the one before
    name = ""
    while True:
        yield from source.blanks()
        opening = yield from source.peek()
        if opening in "{[":
            source.at += 1
            parents.append((name, {} if opening == "{" else []))
        else:
            _gemma_add(parents[-1][1], name, (yield from _gemma_word(source)))
        yield from source.run(_GEMMA_BETWEEN)
        while (yield from source.peek()) == ("}" if isinstance(parents[-1][1], dict) else "]"):
            source.at += 1
            name, value = parents.pop()
            if not parents:
                return value
            _gemma_add(parents[-1][1], name, value)
            yield from source.run(_GEMMA_BETWEEN)
        name = ""
        if isinstance(parents[-1][1], dict):
            name = yield from source.name(_GEMMA_NAME)
            name = name.strip().removeprefix(_GEMMA_QUOTE).removesuffix(_GEMMA_QUOTE).strip('"')
            yield from source.tag(":")


def _gemma_add(parent: dict[str, Json] | list[Json], name: str, value: Json) -> None:
    if isinstance(parent, dict):
        parent[name] = value
    else:
        parent.append(value)


def _gemma_word(source: CallText) -> Generator[None, None, Json]:
    """Reads a text between quotation marks, or a word."""
    if (yield from source.peek()) in ('"', "<"):
        return (yield from source.until((yield from source.tag(_GEMMA_QUOTE, '"'))))
    word = (yield from source.name(_GEMMA_WORD)).strip()
    return _GEMMA_WORDS.get(word, _gemma_number(word))


def _gemma_number(word: str) -> Json:
    try:
        value = json.loads(word)
    except ValueError:
        return word
    return value if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)) else word


def _dumped(value: Json) -> str:
    """Returns a value as JSON. Raises ValueError for one that JSON cannot have: NaN, a half of a surrogate pair, a
    set."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
        return text
    except TypeError as exc:  # of Python's literals, such as a set
        raise ValueError("no JSON") from exc


FORMATS: Final[dict[str, CallFormat]] = {
    "hermes": CallFormat(("<tool_call>",), starts="{`", read_bare=_fenced_call, may_be_bare=may_be_fenced_call),
    "llama3": CallFormat(("<|python_tag|>",), _json_calls, starts="{", between="; \n"),
    "mistral": CallFormat(("[TOOL_CALLS]",), _mistral, starts="[", specials=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")),
    "qwen_xml": CallFormat(("<tool_call>",), _qwen_xml, ("</tool_call>",)),
    "json_list": CallFormat(
        ("<|tool_call|>", "<tool_call>", "<TOOLCALL>"),
        _json_calls,
        ("<|/tool_call|>", "</tool_call>", "</TOOLCALL>"),
        starts="[",
        specials=("<|tool_call|>", "<|/tool_call|>"),
    ),
    "glm": CallFormat(("<tool_call>",), _glm, (_GLM.end,)),
    "minimax": CallFormat(("<minimax:tool_call>",), _minimax),
    "kimi": CallFormat(
        ("<|tool_calls_section_begin|>",),
        _kimi,
        specials=(
            "<|tool_calls_section_begin|>",
            "<|tool_call_begin|>",
            "<|tool_call_argument_begin|>",
            "<|tool_call_end|>",
            _KIMI_END,
        ),
    ),
    "functionary": CallFormat(("<function=",), _functionary, ("</function>",)),
    "command_r": CallFormat(("<|START_ACTION|>",), _json_calls, ("<|END_ACTION|>",)),
    "deepseek": CallFormat(
        ("<｜tool▁calls▁begin｜>",),
        _deepseek,
        specials=(
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁call▁begin｜>",
            "<｜tool▁sep｜>",
            "<｜tool▁call▁end｜>",
            "<｜tool▁calls▁end｜>",
        ),
    ),
    "lfm2": CallFormat(("<|tool_call_start|>",), _lfm2, specials=("<|tool_call_start|>", "<|tool_call_end|>")),
    "apertus": CallFormat(
        ("<|tools_prefix|>",), _apertus, ("<|tools_suffix|>",), specials=("<|tools_prefix|>", "<|tools_suffix|>")
    ),
    "hy3": CallFormat(("<tool_calls>", "<tool_calls:opensource>"), _hy3, specials=_HY3_MARKS),
    "gemma4": CallFormat(
        ("<|tool_call>",),
        _gemma4,
        ("<tool_call|>",),
        ends_thoughts=True,
        specials=("<|tool_call>", "<tool_call|>", _GEMMA_QUOTE, "<|channel>"),
    ),
    "harmony": CallFormat((), channels=True, specials=MARKS),
    "field": CallFormat((FIELD_OPEN,), closes=(FIELD_CLOSE,), verbatim=True),
}

_SIGNS: Final = (  # (text in a chat template, format that it shows), the surest first
    (THOUGHT, "harmony"),
    ("<|tool_call>call:", "gemma4"),
    ("<parameter=", "qwen_xml"),
    ("[TOOL_CALLS]", "mistral"),
    ("<｜tool▁calls▁begin｜>", "deepseek"),
    ("<|START_ACTION|>", "command_r"),
    ("<|tool_call_start|>", "lfm2"),
    ("<|tool_list_start|>", "lfm2"),
    ("<tool_sep", "hy3"),
    ("<|tools_prefix|>", "apertus"),
    ("<arg_key>", "glm"),
    ("<minimax:tool_call>", "minimax"),
    ("<|tool_calls_section_begin|>", "kimi"),
    ("<function=", "functionary"),
    ("<|python_tag|>", "llama3"),
    ("ipython", "llama3"),
    ("<|tool_call|>", "json_list"),
    ("<TOOLCALL>", "json_list"),
)


def format_of(template: str) -> str:
    """Returns the name of the format in which a model with this chat template writes calls."""
    return next((name for sign, name in _SIGNS if sign in template), "hermes")
