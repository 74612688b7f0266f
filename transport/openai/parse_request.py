"""Parses OpenAI's requests into items, tools and sampling. Pure; raises BadInput with the `param` that is wrong.

Schemas are only read here; whoever parses has the gateway check them next. Does not know sessions: where the items
go is decided in `transport.openai.turn_starter`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import msgspec

from sessions.model import commands as cm
from sessions.model.errors import BadInput
from sessions.model.types import (
    EFFORTS,
    INTEGER_MAX,
    CallId,
    Effort,
    InputFile,
    InputImage,
    InputText,
    Json,
    Sampling,
    SearchScope,
    TextOptions,
    Tool,
)
from sessions.retrieval.filters import parse_filter
from sessions.schemas import SchemaParams
from sessions.server_tools import CODE_INTERPRETER, FILE_SEARCH
from transport.history_index import Unit
from transport.openai import request_models
from transport.openai.chat_render import StreamUsage
from transport.openai.completion_models import CompletionRequest
from transport.openai.mcp.request import mcp_tool

_FILES = ("input_file", "file")
IMAGES = ("input_image", "image_url")
_ATTACHED = (*_FILES, *IMAGES)
_USERS_ONLY = "Only a user's message can have files and images."
_THOUGHTS = ("thinking", "redacted_thinking", "reasoning", "reasoning_text", "summary_text")  # of other servers' models

# What chat completions call what the gateway checks.
CHAT_SCHEMAS = SchemaParams("tools[{}].function.parameters", "response_format.json_schema.schema")

DRAWN_ANEW = -1  # as a seed it means that none was set


def unsupported(what: str, param: str) -> BadInput:
    return BadInput("unsupported_parameter", what, param=param)


# -- chat -----------------------------------------------------------------------------------------------------------


def chat_history(
    messages: Sequence[request_models.ChatMessageParam], *, open_ended: bool = False
) -> tuple[str | None, list[Unit]]:
    """Returns the instructions (a system message that comes first) and the other messages. With `open_ended`, the last
    tool calls need no outputs. Raises BadInput."""
    instructions = None
    units: list[Unit] = []
    open_calls: dict[str, str] = {}
    for index, message in enumerate(messages):
        at = f"messages[{index}]"
        if open_calls and message.role != "tool":
            raise _unanswered(open_calls)
        if message.role in ("system", "developer") and index == 0:
            instructions = _chat_text(message, at)
        elif message.role == "assistant":
            units.append(_answer(message, _chat_text(message, at), at))
            open_calls = {call.id: call.function.name for call in message.tool_calls or ()}
        elif message.role == "tool":
            call_id = message.tool_call_id
            if call_id is None:
                raise _missing(f"{at}.tool_call_id")
            if call_id not in open_calls:
                raise BadInput(
                    "invalid_request",
                    "Messages with role 'tool' must be a response to a preceding message with 'tool_calls'.",
                    param=f"{at}.role",
                )
            del open_calls[call_id]
            units.append(Unit((cm.NewOutput(call_id=CallId(call_id), output=_chat_text(message, at)),)))
        elif isinstance(message.content, list):
            content = _content(message.content, f"{at}.content", message.role)
            units.append(Unit((cm.NewMessage(role=message.role, content=content),), at=f"{at}.content"))
        else:
            content = _chat_text(message, at)
            units.append(Unit((cm.NewMessage(role=message.role, content=content),)))
    if open_calls and not open_ended:
        raise _unanswered(open_calls)
    return instructions, units


def goes_on(request: request_models.ChatRequest) -> bool:
    """Returns whether the answer continues the text of the last message. Raises BadInput where it cannot."""
    *before, last = request.messages
    early = next((index for index, message in enumerate(before) if message.prefix), None)
    if early is not None:
        raise BadInput("invalid_request", "Only the last message can be a prefix.", param=f"messages[{early}].prefix")
    wanted = bool(request.continue_final_message)
    if wanted == (request.add_generation_prompt is not False) and (wanted or request.add_generation_prompt is False):
        what = "'continue_final_message' is true and 'add_generation_prompt' false: give both, or neither."
        raise BadInput("invalid_request", what, param="add_generation_prompt")
    if not wanted and not last.prefix:
        return False
    if last.role != "assistant" or last.tool_calls or not before:
        what = "Only an answer of text, behind what it answers, can be gone on with."
        raise BadInput("invalid_request", what, param=f"messages[{len(before)}].role")
    return True


def _answer(message: request_models.ChatMessageParam, text: str, at: str) -> Unit:
    calls = tuple(
        cm.NewCall(call_id=CallId(call.id), name=call.function.name, arguments=call.function.arguments)
        for call in message.tool_calls or ()
    )
    if not calls and message.content is None and message.refusal is None:
        raise _null_content(at)
    words: tuple[cm.NewItem, ...] = (cm.NewMessage(role="assistant", content=text),) if text or not calls else ()
    return Unit((*words, *calls), answer=True)


def _null_content(at: str) -> BadInput:
    param = f"{at}.content"
    return BadInput("invalid_request", f"Invalid value for '{param}': expected a string, got null.", param=param)


def _unanswered(calls: dict[str, str]) -> BadInput:
    return BadInput(
        "invalid_request",
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'."
        f" The following tool_call_ids did not have response messages: {', '.join(calls)}",
        param="messages",
    )


def _chat_text(message: request_models.ChatMessageParam, at: str) -> str:
    refusal = message.refusal or "" if message.role == "assistant" else ""
    if isinstance(message.content, str):
        return message.content + refusal
    if message.content is None:
        if message.role == "assistant":
            return refusal
        raise _null_content(at)
    said = "".join(_part(part, f"{at}.content", index) for index, part in enumerate(message.content))
    return said if any(part.type == "refusal" for part in message.content) else said + refusal


def _content(parts: Sequence[request_models.ContentPart], at: str, role: str) -> cm.Content:
    """Returns a message's content: one text, or a tuple of texts, files and images. Raises BadInput."""
    if not any(part.type in _ATTACHED for part in parts):
        return "".join(_part(part, at, index) for index, part in enumerate(parts))
    if role != "user":
        raise unsupported(_USERS_ONLY, at)
    return tuple(_attached(part, at, index) for index, part in enumerate(parts))


def _attached(part: request_models.ContentPart, at: str, index: int) -> InputText | InputFile | InputImage:
    if part.type in _FILES:
        return _file(part, f"{at}[{index}]")
    if part.type in IMAGES:
        return _image(part, f"{at}[{index}]")
    return InputText(text=_part(part, at, index))


def _image(part: request_models.ContentPart, at: str) -> InputImage:
    if isinstance(part.image_url, request_models.ImageUrl):
        return InputImage(image_url=part.image_url.url, detail=part.image_url.detail or part.detail)
    if part.image_url is None and part.file_id is None:
        raise _missing(f"{at}.image_url")
    return InputImage(image_url=part.image_url, file_id=part.file_id, detail=part.detail)


def _file(part: request_models.ContentPart, at: str) -> InputFile:
    given = part if part.type == "input_file" else part.file
    if given is None:
        raise _missing(f"{at}.file")
    if given.file_id is None and given.file_data is None:
        raise _missing(f"{at}.file_id")
    return InputFile(file_id=given.file_id, filename=given.filename or "", file_data=given.file_data)


def _part(part: request_models.ContentPart, parts_at: str, index: int) -> str:
    if part.type in request_models.TEXTS:
        if part.text is None:
            raise _missing(f"{parts_at}[{index}].text")
        return part.text
    if part.type == "refusal":
        return part.refusal or ""
    if part.type in _THOUGHTS:
        return ""
    known = part.type in _ATTACHED
    what = _USERS_ONLY if known else f"{part.type!r} is no kind of content that this server takes; text is."
    raise unsupported(what, f"{parts_at}[{index}].type")


def is_unreadable(part: request_models.ContentPart, *, users: bool, images: bool) -> bool:
    """Returns whether a part is of a kind that the model does not read, such as sound, or, unless it sees `images`, an
    image. Files and images are read in a user's message only (`users`)."""
    attached = (*_FILES, *(IMAGES if images else ())) if users else ()
    return part.type not in (*request_models.TEXTS, *_THOUGHTS, "refusal", *attached)


def chat_tools(tools: Sequence[request_models.ChatTool | request_models.OtherTool] | None) -> tuple[Tool, ...]:
    """Returns the function tools; tools of other kinds are left out. Raises BadInput."""
    given = enumerate(tools or ())
    return _tools([(at, tool.function) for at, tool in given if isinstance(tool, request_models.ChatTool)], "function.")


def chat_sampling(request: request_models.ChatRequest) -> Sampling:
    given = request.tool_choice
    named = given.function if isinstance(given, request_models.ChatToolChoice) else given
    choice = _tool_choice(named, [tool.name for tool in chat_tools(request.tools)])
    if request.top_logprobs is not None and not request.logprobs:
        raise BadInput("invalid_request", "'top_logprobs' needs 'logprobs' to be set to true.", param="top_logprobs")
    return Sampling(
        **_drawn(request),
        max_output_tokens=request.max_completion_tokens or request.max_tokens,
        stop=_stop(request.stop),
        logit_bias=request.logit_bias or None,
        logprobs=bool(request.logprobs),
        tool_choice=choice,
        thinking=_chat_thinking(request),
        thinking_tokens=request.thinking_token_budget,
        effort=known_effort(request.reasoning_effort),
        text=_chat_format(request.response_format),
    )


def _chat_thinking(request: request_models.ChatRequest) -> bool | None:
    given = request.chat_template_kwargs
    enabled = None if given is None else given.enable_thinking if given.enable_thinking is not None else given.thinking
    return enabled if enabled is not None else effort_thinking(request.reasoning_effort)


def effort_thinking(effort: object) -> bool | None:
    """Returns whether the model reasons at this effort: not at `none`. None if no effort is set."""
    return None if effort is None else effort != "none"


def known_effort(effort: object) -> Effort | None:
    """Returns the effort if it is one that chat templates know, otherwise None."""
    return next((known for known in EFFORTS if known == effort), None)


def _chat_format(given: request_models.ResponseFormat | None) -> TextOptions | None:
    if given is None or given.type == "text":
        return None
    if given.type == "json_object":
        return TextOptions({"type": "json_object"})
    if given.json_schema is None or given.json_schema.schema_ is None:
        param = "response_format.json_schema" + (".schema" if given.json_schema is not None else "")
        raise _missing(param)
    schema = given.json_schema
    return _schema_format(schema.name, schema.schema_, schema.strict)


def _schema_format(name: str, schema: Any, strict: bool | None) -> TextOptions:
    return TextOptions({"type": "json_schema", "name": name, "schema": schema, "strict": bool(strict)})


def completion_sampling(request: CompletionRequest) -> Sampling:
    if request.top_logprobs is not None:
        raise BadInput("unsupported_parameter", "Completions have 'logprobs': a number.", param="top_logprobs")
    drawn = _drawn(request) | ({} if request.logprobs is None else {"top_logprobs": request.logprobs})
    return Sampling(
        **drawn,
        max_output_tokens=request.max_tokens,
        stop=_stop(request.stop),
        logit_bias=request.logit_bias or None,
        logprobs=request.logprobs is not None,
    )


# -- responses ------------------------------------------------------------------------------------------------------


def input_units(given: str | Sequence[request_models.InputItem] | None, param: str = "input") -> list[Unit]:
    """Returns a response's input, or other items named `param`, message by message. Reasoning that clients send back,
    and items of tools that this server does not have, are left out. Raises BadInput."""
    if given is None:
        return []
    if isinstance(given, str):
        return [Unit((cm.NewMessage(content=given),))]
    units: list[Unit] = []
    for index, item in enumerate(given):
        at = f"{param}[{index}]"
        match item.type or "message":
            case "message":
                if item.role is None:
                    raise _missing(f"{at}.role")
                content: cm.Content
                if isinstance(item.content, list):
                    content = _content(item.content, f"{at}.content", item.role)
                else:
                    content = _input_text(item.content, f"{at}.content")
                message = cm.NewMessage(role=item.role, content=content)
                units.append(Unit((message,), answer=item.role == "assistant", at=f"{at}.content"))
            case "function_call":
                if item.call_id is None or item.name is None or item.arguments is None:
                    wanted = {"call_id": item.call_id, "name": item.name, "arguments": item.arguments}
                    raise _missing(f"{at}.{next(name for name, value in wanted.items() if value is None)}")
                call = cm.NewCall(call_id=CallId(item.call_id), name=item.name, arguments=item.arguments)
                said = units.pop().items if units and units[-1].answer else ()
                units.append(Unit((*filter(_says_anything, said), call), answer=True))
            case "function_call_output":
                if item.call_id is None:
                    raise _missing(f"{at}.call_id")
                output = _input_text(item.output, f"{at}.output")
                units.append(Unit((cm.NewOutput(call_id=CallId(item.call_id), output=output),)))
            case "code_interpreter_call":
                units += _code_call(item, at)
            case "file_search_call":
                units += _search_call(item, at)
            case "mcp_approval_response":
                what = "An 'mcp_approval_response' is given with the 'previous_response_id' of its request, and alone."
                raise BadInput("invalid_request", what, param=at)
            case other if request_models.is_foreign(other):
                continue
            case other:
                raise unsupported(f"{other!r} is no kind of item that this server takes.", f"{at}.type")
    return units


def _says_anything(item: cm.NewItem) -> bool:
    """Returns whether an item is more than an empty message, which LangChain sends before a call without text."""
    return not isinstance(item, cm.NewMessage) or any(part.text for part in cm.content_parts(item.content))


def _code_call(item: request_models.InputItem, at: str) -> list[Unit]:
    """Returns a `code_interpreter_call` item as two: the function call and its output. Raises BadInput."""
    name = item.call_id or item.id
    if name is None or item.code is None:
        raise _missing(f"{at}.{'id' if name is None else 'code'}")
    call_id = CallId(name)
    arguments = json.dumps({"code": item.code}, ensure_ascii=False)
    call = Unit((cm.NewCall(call_id=call_id, name=CODE_INTERPRETER, arguments=arguments),), answer=True)
    logs = "".join(each.logs or "" for each in item.outputs or ())
    return [call, Unit((cm.NewOutput(call_id=call_id, output=logs),))]


def _search_call(item: request_models.InputItem, at: str) -> list[Unit]:
    """Returns a `file_search_call` item as two: the function call, with its `arguments` as they were, and its output.
    One without results, as OpenAI's server gives it, is left out. Raises BadInput."""
    name = item.call_id or item.id
    if name is None:
        raise _missing(f"{at}.id")
    if item.results is None:
        return []
    call_id, query = CallId(name), " ".join(item.queries or ())
    more = {"skipped": item.skipped, "reasons": item.reasons}
    content = {"results": item.results} | {field: value for field, value in more.items() if value is not None}
    arguments = json.dumps({"query": query}, ensure_ascii=False) if item.arguments is None else item.arguments
    call = Unit((cm.NewCall(call_id=call_id, name=FILE_SEARCH, arguments=arguments),), answer=True)
    output = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return [call, Unit((cm.NewOutput(call_id=call_id, output=output),))]


def steer_text(given: str | Sequence[request_models.SteerMessage]) -> str:
    """Returns the texts of steering messages as one, with blank lines between them."""
    if isinstance(given, str):
        return given
    return "\n\n".join(_input_text(item.content, f"input[{index}].content") for index, item in enumerate(given))


def _missing(param: str) -> BadInput:
    return BadInput("missing_required_parameter", f"Missing required parameter: '{param}'.", param=param)


def _input_text(content: str | Sequence[request_models.ContentPart] | None, at: str) -> str:
    if content is None:
        raise _missing(at)
    if isinstance(content, str):
        return content
    return "".join(_part(part, at, index) for index, part in enumerate(content))


def response_tools(
    tools: Sequence[
        request_models.FunctionTool
        | request_models.McpToolParam
        | request_models.FileSearchTool
        | request_models.OtherTool
    ]
    | None,
) -> tuple[Tool, ...]:
    """Returns functions, code interpreter, file search and MCP servers as tools; other kinds are left out. Raises
    BadInput."""
    given = tools or ()
    for index, tool in enumerate(given):
        if isinstance(tool, request_models.FunctionTool):
            _check_container(tool, f"tools[{index}]")
    listed = [(at, tool) for at, tool in enumerate(given) if isinstance(tool, request_models.FunctionTool)]
    functions = iter(_tools(listed, ""))
    made: dict[str, Tool] = {}
    for index, tool in enumerate(given):
        if isinstance(tool, request_models.OtherTool):
            continue
        at = f"tools[{index}]"
        if isinstance(tool, request_models.McpToolParam):
            named = mcp_tool(tool, at)
        elif isinstance(tool, request_models.FileSearchTool):
            named = _search_tool(tool, at)
        else:
            named = _with_files(next(functions), tool.container)
        if named.name in made:
            raise BadInput("invalid_request", f"Two tools are named {named.name!r}.", param=at)
        made[named.name] = named
    return tuple(made.values())


def _search_tool(tool: request_models.FileSearchTool, at: str) -> Tool:
    if tool.filters is not None:
        parse_filter(tool.filters, param=f"{at}.filters")
    scope = SearchScope(
        vector_store_ids=tuple(tool.vector_store_ids),
        results_max=tool.max_num_results,
        filters=tool.filters,
        score_min=0.0 if tool.ranking_options is None else tool.ranking_options.score_threshold,
    )
    return Tool(name=FILE_SEARCH, server=True, search=scope)


def _with_files(tool: Tool, container: request_models.CodeContainer | str | None) -> Tool:
    if not isinstance(container, request_models.CodeContainer) or not container.file_ids:
        return tool
    return msgspec.structs.replace(tool, file_ids=tuple(container.file_ids))


def _check_container(tool: request_models.FunctionTool, at: str) -> None:
    if isinstance(tool.container, str):
        raise unsupported("Containers are made by the server: give {'type': 'auto'}.", f"{at}.container")


def response_sampling(request: request_models.ResponsesRequest, tool_names: Sequence[str]) -> Sampling:
    return Sampling(
        **_drawn(request),
        max_output_tokens=request.max_output_tokens,
        stop=_stop(request.stop),
        logprobs="message.output_text.logprobs" in (request.include or ()),
        tool_choice=_tool_choice(request.tool_choice, tool_names),
        thinking=effort_thinking((request.reasoning or {}).get("effort")),
        effort=known_effort((request.reasoning or {}).get("effort")),
        text=_response_format(request.text.format if request.text is not None else None),
    )


def _response_format(given: request_models.TextFormat | None) -> TextOptions | None:
    if given is None or given.type == "text":
        return None
    if given.type == "json_object":
        return TextOptions({"type": "json_object"})
    if given.schema_ is None or given.name is None:
        raise _missing("text.format.schema" if given.schema_ is None else "text.format.name")
    return _schema_format(given.name, given.schema_, given.strict)


# -- both -----------------------------------------------------------------------------------------------------------


def _drawn(request: request_models.SamplingRequest) -> dict[str, Any]:
    repeat, repetition = request.repeat_penalty, request.repetition_penalty
    if repeat is not None and repetition is not None and repeat != repetition:
        raise BadInput(
            "invalid_request",
            "'repeat_penalty' and 'repetition_penalty' are one parameter: give one of the two.",
            param="repetition_penalty",
        )
    return {
        "temperature": 0.0 if request.top_p == 0 else request.temperature,  # the most likely token alone
        "top_p": request.top_p or None,
        "top_k": request.top_k if request.top_k != -1 else 0,
        "min_p": request.min_p,
        "frequency_penalty": request.frequency_penalty,
        "presence_penalty": request.presence_penalty,
        "repeat_penalty": repetition if repeat is None else repeat,
        "ignore_eos": bool(request.ignore_eos),
        "min_tokens": request.min_tokens or None,
        "stop_token_ids": tuple(request.stop_token_ids or ()),
        "seed": None if request.seed in (None, DRAWN_ANEW) else fold_seed(request.seed),
        "top_logprobs": request.top_logprobs,
        "parallel_tool_calls": request.parallel_tool_calls is not False,
    }


def fold_seed(seed: int) -> int:
    """Maps a seed of 64 bits, or a negative one, to one that a log can hold; equal seeds stay equal."""
    if 0 <= seed <= INTEGER_MAX:
        return seed
    return int.from_bytes(hashlib.blake2b(str(seed).encode(), digest_size=8).digest()) & INTEGER_MAX


def stream_usage(options: request_models.ChatStreamOptions | None, *, stream: bool) -> StreamUsage:
    """Returns in which chunks usage is shown. Raises BadInput for options that would have no effect."""
    if options is None:
        return StreamUsage()
    if not stream:
        what = "The 'stream_options' parameter is only allowed when 'stream' is enabled."
        raise BadInput("invalid_request", what, param="stream_options")
    if options.continuous_usage_stats and not options.include_usage:
        raise BadInput(
            "invalid_request",
            "'continuous_usage_stats' needs 'include_usage': set both.",
            param="stream_options.continuous_usage_stats",
        )
    return StreamUsage(bool(options.include_usage), bool(options.continuous_usage_stats))


def _stop(stop: str | list[str] | None) -> str | tuple[str, ...] | None:
    return tuple(stop) or None if isinstance(stop, list) else stop


def _tool_choice(
    given: str | request_models.NamedFunction | request_models.OtherChoice | None, names: Sequence[str]
) -> str | dict[str, Json] | None:
    """Returns the tool choice as engines read it. Raises BadInput if it fits none of the tools."""
    if isinstance(given, request_models.OtherChoice):
        raise unsupported(
            f"Nobody here carries out a tool of type {given.type[:64]!r}: name a function.", "tool_choice"
        )
    if given not in (None, "none", "auto") and not names:
        raise BadInput(
            "invalid_request", "'tool_choice' is only allowed when 'tools' are specified.", param="tool_choice"
        )
    if not isinstance(given, request_models.NamedFunction):
        return given
    if given.name not in names:
        raise BadInput("invalid_request", f"Tool choice {given.name!r} is not among the 'tools'.", param="tool_choice")
    return {"type": "function", "name": given.name}


def _tools(tools: Sequence[tuple[int, request_models.ChatFunction]], inner: str) -> tuple[Tool, ...]:
    """Returns the function tools. Each comes with its index in the request's `tools`; `inner` is the path from that
    entry to the function ("function." or ""). Both are for errors. Raises BadInput."""
    made: dict[str, Tool] = {}
    for index, tool in tools:
        at = f"tools[{index}].{inner}"
        if tool.name in made:
            raise BadInput("invalid_request", f"Two tools are named {tool.name!r}.", param=f"{at}name")
        if tool.parameters is not None:
            _of_object(tool.parameters, f"{at}parameters")
        if tool.server or (isinstance(tool, request_models.FunctionTool) and tool.type == CODE_INTERPRETER):
            made[tool.name] = Tool(name=tool.name, server=True)
            continue
        made[tool.name] = Tool(
            name=tool.name, description=tool.description, parameters=tool.parameters, strict=bool(tool.strict)
        )
    return tuple(made.values())


def _of_object(schema: dict[str, Any], param: str) -> None:
    """Raises BadInput if a JSON Schema is not for an object. Its validity is checked elsewhere."""
    if schema.get("type", "object") != "object":
        what = f"schema must be a JSON Schema of 'type: \"object\"', got 'type: \"{schema['type']}\"'."
        raise BadInput("invalid_schema", f"Invalid schema for '{param}': {what}", param=param)
