"""How families of models write calls of tools: marks, and a reader for the text behind them.

A reader gets the text behind a mark and returns the complete calls at its beginning with the index where they end; None
if more text is needed. It raises ValueError if the text can be no call, and then it is ordinary text. Hermes' format
has no reader here: `tool_call_parser` follows its arguments as they come.

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
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from sessions.model.types import Json, Tool
from sessions.turn.channels import MARKS, THOUGHT

Read = tuple[list[tuple[str, str]], int]  # the names of calls with their JSON arguments, and the index where they end
Reader = Callable[[str, Mapping[str, Tool]], Read | None]


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


def _fenced_call(text: str, tools: Mapping[str, Tool]) -> Read | None:
    if "{" not in text:
        return None
    fence = _OPEN_FENCE.match(text)
    start = fence.end() if fence is not None else 0
    done = _json_calls(text[start:], tools)
    if done is None:
        return None
    end = start + done[1]
    if fence is None:
        return done[0], end
    behind = text[end:].strip()
    if "```".startswith(behind) and behind != "```":
        return None  # the end of the fence may come
    closing = _CLOSE_FENCE.match(text, end)
    return done[0], closing.end() if closing is not None else end


FIELD_OPEN: Final = "\ufdd0"  # noncharacters of Unicode, which the writer of calls and thoughts keeps out of texts
FIELD_CLOSE: Final = "\ufdd1"
FIELD_THOUGHT_OPEN: Final = "\ufdd2"
FIELD_THOUGHT_CLOSE: Final = "\ufdd3"
FIELD_MARKS: Final = (FIELD_OPEN, FIELD_CLOSE, FIELD_THOUGHT_OPEN, FIELD_THOUGHT_CLOSE)
_DECODER: Final = json.JSONDecoder()
_STRUCTURE: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"|["{}\[\]]', re.DOTALL)  # of JSON: whole strings and brackets
_FENCED_HEAD_MAX: Final = 400  # code points of a call up to its arguments
_FENCE: Final = re.compile(r"^```(?:json)?(?=\{)")  # of a text without blanks
_OPEN_FENCE: Final = re.compile(r"\s*```(?:json)?\s*")
_CLOSE_FENCE: Final = re.compile(r"\s*```")
_HEADS: Final = ('{"name":"', '{"type":"function","name":"', '{"tool_name":"', '{"tool_call_id":"')
# Two neighbouring repeats that may match the same characters are possessive: else blanks take time by their square.
_NAMED: Final = re.compile(r"\s*+([\w.-]++)\s*+(?:\[CALL_ID\]\w++)?(\[ARGS\])?\s*+(?=\{)")
_NAME_BEGINS: Final = re.compile(r"\s*+[\w.-]*+\s*+(?:\[[\w\]]*+){0,2}+\s*+")
_FUNCTION: Final = re.compile(r"\s*+<function=([^<>\n]++)>\s*+")
_PARAMETER: Final = re.compile(r"<parameter=([^<>\n]++)>")
_PARAMETER_END: Final = "</parameter>"
_DEEPSEEK_NAME: Final = re.compile(r"(?:function<｜tool▁sep｜>)?([^<>\n]++)(?:<｜tool▁sep｜>|\n```json\n)")
_DEEPSEEK_BEGIN: Final = "<｜tool▁call▁begin｜>"
_DEEPSEEK_END: Final = "<｜tool▁call▁end｜>"
_ARGUMENT: Final = re.compile(r"<arg_key>([^<>]*+)</arg_key>\s*+<arg_value>(.*?)</arg_value>\s*+", re.DOTALL)
_GLM_NAME: Final = re.compile(r"\s*+([^<>{}\s]++)\s*+(?=<)")
_GLM_NAME_BEGINS: Final = re.compile(r"\s*+[^<>{}\s]*+\s*+")
_GLM_END: Final = "</tool_call>"
_HY3_SUFFIXES: Final = ("", ":opensource")
_HY3_TAGS: Final = ("tool_calls", "tool_call", "tool_sep", "arg_key", "arg_value")
_HY3_MARKS: Final = tuple(
    f"<{slash}{tag}{suffix}>" for tag in _HY3_TAGS for slash in ("", "/") for suffix in _HY3_SUFFIXES
)
_HY3_CALL: Final = re.compile(r"\s*+<tool_call(:opensource|)>\s*+([^<>{}\s]++)\s*+(?:<tool_sep\1>)?\s*+")
_HY3_ARGUMENT: Final = re.compile(
    r"<arg_key(:opensource|)>([^<>]*+)</arg_key\1>\s*+<arg_value\1>(.*?)</arg_value\1>\s*+", re.DOTALL
)
_HY3_CALL_END: Final = re.compile(r"</tool_call(?::opensource)?>")
_HY3_END: Final = re.compile(r"</tool_calls(?::opensource)?>")
_INVOKE: Final = re.compile(r'\s*<invoke name="([^"<>\n]+)">\s*')
_INVOKED: Final = re.compile(r'<parameter name="([^"<>\n]+)">(.*?)</parameter>\s*', re.DOTALL)
_INVOKE_END: Final = "</invoke>"
_MINIMAX_END: Final = "</minimax:tool_call>"
_KIMI: Final = re.compile(
    r"\s*<\|tool_call_begin\|>\s*([^<>\s]+)\s*<\|tool_call_argument_begin\|>(.*?)<\|tool_call_end\|>", re.DOTALL
)
_KIMI_ID: Final = re.compile(r"(?:functions\.)?(.+?)(?::\d+)?")
_KIMI_END: Final = "<|tool_calls_section_end|>"
_FUNCTIONARY_NAME: Final = re.compile(r"([\w.-]+)>\s*(?=\{)")
_FUNCTIONARY_BEGINS: Final = re.compile(r"[\w.-]*(?:>\s*)?")

_GEMMA_QUOTE: Final = '<|"|>'
_GEMMA_HEAD: Final = re.compile(r"\s*+(?:call)?:\s*+([\w.-]++)\s*+\{")
_GEMMA_HEAD_BEGINS: Final = re.compile(r"\s*+(?:(?:call)?:\s*+[\w.-]*+\s*+|call|cal|ca|c)?+")
_GEMMA_SPACE: Final = re.compile(r"\s*")
_GEMMA_BETWEEN: Final = re.compile(r"[\s,]*")
_GEMMA_NAME: Final = re.compile(r"([^:{}\[\]]+):")
_GEMMA_WORD: Final = re.compile(r"[^,\]}<]+")
_GEMMA_WORDS: Final[dict[str, Json]] = {"true": True, "false": False, "null": None, "None": None}


def _json_calls(text: str, tools: Mapping[str, Tool]) -> Read | None:
    start = len(text) - len(text.lstrip())
    if start == len(text):
        return None
    if text[start] not in "[{":
        raise ValueError("no JSON")
    end = _json_end(text, start)
    if end is None:
        return None
    value, behind = _DECODER.raw_decode(text, start)
    calls = [_named(each) for each in (value if isinstance(value, list) else [value])]
    if not calls or behind != end:
        raise ValueError("no calls")
    return calls, end


def _json_end(text: str, at: int) -> int | None:
    """Returns the index where the JSON value that begins at `at` ends; None if it is incomplete. Each string is skipped
    in one step, because a call that writes a file is read again with each piece that comes."""
    depth = 0
    for part in _STRUCTURE.finditer(text, at):
        match part[0]:
            case "{" | "[":
                depth += 1
            case "}" | "]":
                depth -= 1
                if depth == 0:
                    return part.end()
            case '"':
                return None  # a string that goes on
    return None


def _named(value: Json) -> tuple[str, str]:
    if isinstance(value, dict) and isinstance(inner := value.get("function"), dict):
        value = inner
    name = value.get("name", value.get("tool_name")) if isinstance(value, dict) else None
    if not isinstance(name, str) or not isinstance(value, dict):
        raise ValueError("no call")
    arguments = value.get("arguments", value.get("parameters", {}))
    return name, arguments if isinstance(arguments, str) else _dumped(arguments)


def _mistral(text: str, tools: Mapping[str, Tool]) -> Read | None:
    if text.lstrip()[:1] in ("", "[", "{"):
        return _json_calls(text, tools)
    named = _NAMED.match(text)
    if named is None:
        if _NAME_BEGINS.fullmatch(text):
            return None
        raise ValueError("no name")
    end = _json_end(text, named.end())
    if end is None:
        return None
    arguments, _ = _DECODER.raw_decode(text, named.end())
    return [(named[1], _dumped(arguments))], end


def _qwen_xml(text: str, tools: Mapping[str, Tool]) -> Read | None:
    if text.lstrip().startswith("{"):
        return _json_calls(text, tools)
    function = _FUNCTION.match(text)
    end = text.find("</function>")
    if end < 0:
        if function is None and "</tool_call>" in text:
            raise ValueError("no function")
        return None
    if function is None:
        raise ValueError("no function")
    arguments = _arguments(function[1], _parameters(text[function.end() : end]), tools)
    return [(function[1], arguments)], end + len("</function>")


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


def _glm(text: str, tools: Mapping[str, Tool]) -> Read | None:
    if text.lstrip().startswith("{"):
        return _json_calls(text, tools)
    name = _GLM_NAME.match(text)
    if name is None and not _GLM_NAME_BEGINS.fullmatch(text):
        raise ValueError("no function")
    if name is None:
        return None
    if _GLM_END not in text:
        return _unfinished(text[name.end() :], "<arg_key>", _GLM_END)
    at, written = name.end(), list[tuple[str, str]]()
    while argument := _ARGUMENT.match(text, at):
        written.append((argument[1], argument[2]))
        at = argument.end()
    if not text.startswith(_GLM_END, at):
        return _unfinished(text[at:], "<arg_key>", _GLM_END)
    return [(name[1], _arguments(name[1], written, tools))], at + len(_GLM_END)


def _minimax(text: str, tools: Mapping[str, Tool]) -> Read | None:
    if _MINIMAX_END not in text:
        return _unfinished(text.lstrip(), "<invoke name=")
    calls, at = list[tuple[str, str]](), 0
    while invoked := _INVOKE.match(text, at):
        at, written = invoked.end(), list[tuple[str, str]]()
        while parameter := _INVOKED.match(text, at):
            written.append((parameter[1], parameter[2]))
            at = parameter.end()
        if not text.startswith(_INVOKE_END, at):
            return _unfinished(text[at:], "<parameter name=", _INVOKE_END)
        calls.append((invoked[1], _arguments(invoked[1], written, tools)))
        at += len(_INVOKE_END)
    rest = text[at:].lstrip()
    if not (calls and rest.startswith(_MINIMAX_END)):
        return _unfinished(rest, "<invoke name=")
    return calls, len(text) - len(rest) + len(_MINIMAX_END)


def _hy3(text: str, tools: Mapping[str, Tool]) -> Read | None:
    if _HY3_END.search(text) is None:
        return _unfinished(text.lstrip(), "<tool_call>", "<tool_call:opensource>")
    calls, at = list[tuple[str, str]](), 0
    while called := _HY3_CALL.match(text, at):
        at, written = called.end(), list[tuple[str, str]]()
        while argument := _HY3_ARGUMENT.match(text, at):
            written.append((argument[2], argument[3]))
            at = argument.end()
        ended = _HY3_CALL_END.match(text, at)
        if ended is None:
            return _unfinished(text[at:], *(mark for mark in _HY3_MARKS if "arg_" in mark or "/tool_call" in mark))
        calls.append((called[2], _arguments(called[2], written, tools)))
        at = ended.end()
    rest = text[at:].lstrip()
    ended = _HY3_END.match(rest)
    if not calls or ended is None:
        return _unfinished(rest, "<tool_call>", "<tool_call:opensource>")
    return calls, len(text) - len(rest) + ended.end()


def _apertus(text: str, tools: Mapping[str, Tool]) -> Read | None:
    start = len(text) - len(text.lstrip())
    if start == len(text):
        return None
    if text[start] != "[":
        raise ValueError("no list")
    end = _json_end(text, start)
    if end is None:
        return None
    listed, behind = _DECODER.raw_decode(text, start)
    if behind != end or not all(isinstance(each, dict) and len(each) == 1 for each in listed):
        raise ValueError("no calls")
    return [(name, _dumped(arguments)) for each in listed for name, arguments in each.items()], end


def _kimi(text: str, tools: Mapping[str, Tool]) -> Read | None:
    if _KIMI_END not in text:
        return _unfinished(text.lstrip(), "<|tool_call_begin|>")
    calls, at = list[tuple[str, str]](), 0
    while written := _KIMI.match(text, at):
        name = _KIMI_ID.fullmatch(written[1])
        calls.append((name[1] if name is not None else "", _dumped(json.loads(written[2]))))
        at = written.end()
    rest = text[at:].lstrip()
    if not (calls and rest.startswith(_KIMI_END)):
        return _unfinished(rest, "<|tool_call_begin|>")
    return calls, len(text) - len(rest) + len(_KIMI_END)


def _unfinished(rest: str, *tags: str) -> Read | None:
    """Returns None if `rest`, behind what was read, is the beginning of one of the tags or begins with one: more text
    is needed. Raises ValueError otherwise."""
    if not any(tag.startswith(rest[: len(tag)]) for tag in tags):
        raise ValueError("no calls")
    return None


def _functionary(text: str, tools: Mapping[str, Tool]) -> Read | None:
    name = _FUNCTIONARY_NAME.match(text)
    if name is None:
        if _FUNCTIONARY_BEGINS.fullmatch(text):
            return None
        raise ValueError("no function")
    end = _json_end(text, name.end())
    if end is None:
        return None
    arguments, _ = _DECODER.raw_decode(text, name.end())
    return [(name[1], _dumped(arguments))], end


def _typed(value: str, schema: Json) -> Json:
    """Returns a parameter's value: parsed as JSON if possible, but as it is if its schema says that it is a string."""
    if isinstance(schema, dict) and schema.get("type") == "string":
        return value
    try:
        parsed: Json = json.loads(value)
    except (ValueError, RecursionError):
        return value
    return parsed


def _deepseek(text: str, tools: Mapping[str, Tool]) -> Read | None:
    end = text.find("<｜tool▁calls▁end｜>")
    if end < 0:
        return None
    calls = list[tuple[str, str]]()
    for part in text[:end].split(_DEEPSEEK_BEGIN)[1:]:
        written, closed, _ = part.partition(_DEEPSEEK_END)
        name = _DEEPSEEK_NAME.match(written)
        if closed and name is not None:
            arguments = written[name.end() :].rstrip().removesuffix("\n```")
            calls.append((name[1].strip(), _dumped(json.loads(arguments))))
    if not calls:
        raise ValueError("no calls")
    return calls, end + len("<｜tool▁calls▁end｜>")


def _lfm2(text: str, tools: Mapping[str, Tool]) -> Read | None:
    end = text.find("<|tool_call_end|>")
    if end < 0:
        return None
    try:
        listed = ast.parse(text[:end].strip(), mode="eval").body
        calls = [_python_call(each) for each in (listed.elts if isinstance(listed, ast.List) else [listed])]
    except (SyntaxError, RecursionError, MemoryError) as exc:
        raise ValueError("no calls") from exc
    return calls, end + len("<|tool_call_end|>")


def _python_call(call: ast.expr) -> tuple[str, str]:
    if not isinstance(call, ast.Call) or call.args:
        raise ValueError("no call with named arguments")
    arguments: dict[str, Any] = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
    return ast.unparse(call.func), _dumped(arguments)


def _gemma4(text: str, tools: Mapping[str, Tool]) -> Read | None:
    head = _GEMMA_HEAD.match(text)
    if head is None:
        if _GEMMA_HEAD_BEGINS.fullmatch(text):
            return None
        raise ValueError("no call")
    read = _gemma_value(text, head.end() - 1)
    return None if read is None else ([(head[1], _dumped(read[0]))], read[1])


def _gemma_value(text: str, at: int) -> tuple[Json, int] | None:
    """Reads the value at index `at`: an object whose names may be without quotes, a list, a text between the model's
    own quotation marks, or a word. Returns it with the index behind it; None if it is incomplete."""
    at = _GEMMA_SPACE.match(text, at).end()  # type: ignore[union-attr]
    opened = text[at : at + 1]
    if opened in ("{", "["):
        return _gemma_members(text, at + 1, "}" if opened == "{" else "]")
    quoted = next((mark for mark in (_GEMMA_QUOTE, '"') if text.startswith(mark, at)), "")
    if quoted:
        begin = at + len(quoted)
        end = text.find(quoted, begin)
        return (text[begin:end], end + len(quoted)) if end >= 0 else None
    word = _GEMMA_WORD.match(text, at)
    if word is None or word.end() == len(text) or _GEMMA_QUOTE.startswith(text[at:]):
        return None
    return _GEMMA_WORDS.get(word[0].strip(), _gemma_number(word[0].strip())), word.end()


def _gemma_members(text: str, at: int, closing: str) -> tuple[Json, int] | None:
    """Reads the members of an object or a list up to its `closing` bracket."""
    members: dict[str, Json] = {}
    values: list[Json] = []
    while True:
        at = _GEMMA_BETWEEN.match(text, at).end()  # type: ignore[union-attr]
        if at == len(text):
            return None
        if text[at] == closing:
            return (members if closing == "}" else values), at + 1
        name = ""
        if closing == "}":
            named = _GEMMA_NAME.match(text, at)
            if named is None:
                if ":" in text[at:] or "}" in text[at:]:
                    raise ValueError("no name")
                return None
            name, at = named[1].strip().removeprefix(_GEMMA_QUOTE).removesuffix(_GEMMA_QUOTE).strip('"'), named.end()
        value = _gemma_value(text, at)
        if value is None:
            return None
        if value[1] == at:
            raise ValueError("no value")
        members[name], at = value
        values.append(value[0])


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
    "glm": CallFormat(("<tool_call>",), _glm, (_GLM_END,)),
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
