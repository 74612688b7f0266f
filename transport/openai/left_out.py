"""Names what a request brings that has no effect here, for the `Warning` of its answer: each kind once, where it is met
first.

Tools of kinds that nobody here carries out, items of such kinds, and fields of messages and of their parts that nobody
here knows. None of them is a reason to refuse: agents offer all their tools to everybody, and resend what other servers
gave them. Pure.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Iterator, Sequence
from functools import partial
from typing import Final

from sessions.model.generation import thinks, unseen_image
from sessions.model.types import Sampling
from transport.openai.completion_models import CompletionRequest
from transport.openai.parse_request import IMAGES, is_unreadable, known_effort
from transport.openai.request_models import (
    QUIET_ITEMS,
    UNKNOWN_MAX,
    ChatMessageParam,
    ChatRequest,
    ChatTool,
    ChatToolChoice,
    CodeContainer,
    CompactRequest,
    FileSearchTool,
    ImageUrl,
    InputItem,
    JsonSchema,
    McpToolParam,
    OtherTool,
    ResentModel,
    ResponsesRequest,
    TextFormat,
    is_foreign,
)

LOGPROBS: Final = "message.output_text.logprobs"  # all of `include` that is not shown anyhow, and is not elsewhere

# What servers give with an answer and clients send back: it tells them something, and a model nothing. Named in
# docs/protocol.md 10.3.
ECHOED: Final = frozenset(
    (
        *("annotations", "citations", "created_at", "created_by", "detail", "extra_content", "function_call", "id"),
        *("index", "logprobs", "object", "phase", "provider_specific_fields", "reasoning", "reasoning_content"),
        *("reasoning_details", "signature", "status", "summary", "thinking", "thinking_blocks", "tool_name"),
    )
)


def left_out(body: ChatRequest | CompletionRequest | ResponsesRequest, *, efforts: bool = False) -> list[str]:
    """Returns the names of the parts of a request that have no effect, for its `Warning`. `efforts`: whether the model
    knows degrees of effort."""
    named: dict[str, str] = {}
    if isinstance(body, ChatRequest):
        items = _of_messages(body.messages, "messages")
    elif isinstance(body, CompletionRequest):
        items = iter(())
    else:
        items = iter(()) if body.input is None or isinstance(body.input, str) else _of_messages(body.input, "input")
    tools = () if isinstance(body, CompletionRequest) else body.tools or ()
    for kind, name in (*_of_tools(tools), *items):
        named.setdefault(kind, name)
    return [*named.values(), *_of_options(body, efforts=efforts)]


def service_left_out(body: ChatRequest | CompletionRequest | ResponsesRequest | CompactRequest) -> list[str]:
    """Returns `service_tier` as a name without effect if a request asks for another tier than the only one."""
    return [] if body.service_tier in (None, "auto", "default") else ["service_tier"]


_SHOWN: Final = (LOGPROBS, "code_interpreter_call.outputs", "file_search_call.results")


def include_left_out(include: Iterable[str] | None) -> list[str]:
    """Returns the entries of `include` that an answer does not show, as a `Warning` names them."""
    return [f"include ({name})" for name in include or () if name not in _SHOWN]


def _of_options(body: ChatRequest | CompletionRequest | ResponsesRequest, *, efforts: bool) -> Iterator[str]:
    yield from service_left_out(body)
    if body.stream_options is not None and body.stream_options.include_obfuscation:
        yield "stream_options.include_obfuscation"
    if isinstance(body, CompletionRequest):
        if body.parallel_tool_calls is not None:
            yield "parallel_tool_calls"
    elif isinstance(body, ChatRequest):
        if body.store:
            yield "store"
        if _is_unknown(body.reasoning_effort, efforts=efforts):
            yield "reasoning_effort"
        if body.response_format is not None:
            yield from _names(unknown_fields(body.response_format, "response_format"))
            yield from _of_format(body.response_format.json_schema, "response_format.json_schema")
        yield from () if body.verbosity in (None, "medium") else ("verbosity",)
        yield from _of_choice(body.tool_choice)
    else:
        yield from _of_response(body, efforts=efforts)


def _is_unknown(effort: object, *, efforts: bool) -> bool:
    """Returns whether an effort is requested that the model's chat template is not told."""
    return effort not in (None, "none") and not (efforts and known_effort(effort))


def _of_response(body: ResponsesRequest, *, efforts: bool) -> Iterator[str]:
    yield from _of_choice(body.tool_choice)
    for name, value in (body.reasoning or {}).items():
        if _is_unknown(value, efforts=efforts) if name == "effort" else value is not None:
            yield f"reasoning.{name}"
    if body.top_logprobs and LOGPROBS not in (body.include or ()):
        yield "top_logprobs"
    yield from include_left_out(body.include)
    if body.text is not None:
        yield from _names(unknown_fields(body.text, "text"))
        yield from _of_format(body.text.format, "text.format")
        yield from () if body.text.verbosity in (None, "medium") else ("text.verbosity",)


def _of_format(given: JsonSchema | TextFormat | None, at: str) -> Iterator[str]:
    """Yields the names of a format's description, which has no effect (only its schema is used), and of its unknown
    fields."""
    if given is not None:
        yield from (f"{at}.description",) if given.description else ()
        yield from _names(unknown_fields(given, at))


def _names(fields: Iterable[tuple[str, str]]) -> Iterator[str]:
    return (name for _, name in fields)


def _of_choice(given: object) -> Iterator[str]:
    if isinstance(given, ResentModel):
        yield from _names(unknown_fields(given, "tool_choice"))
    if isinstance(given, ChatToolChoice):
        yield from _names(unknown_fields(given.function, "tool_choice.function"))


def thoughts_left_out(body: ChatRequest, sampling: Sampling, *, thoughts: bool) -> Iterator[str]:
    """Yields the parameters about reasoning that have no effect. `thoughts`: whether the model can reason."""
    if unthinking(sampling, thoughts=thoughts):
        names = ("chat_template_kwargs", "thinking_token_budget")
        yield from (name for name in names if getattr(body, name) is not None)


def unthinking(sampling: Sampling, *, thoughts: bool) -> bool:
    """Returns whether an answer will have no reasoning although the request asks for some."""
    asks = sampling.thinking is True or sampling.thinking_tokens is not None
    return asks and not (thoughts and thinks(sampling, None))


def read_parts(
    messages: str | Sequence[ChatMessageParam | InputItem] | None, param: str, *, images: bool, ignores_unknown: bool
) -> list[str]:
    """Returns the places of the parts that the model does not read, after removing them, if unknown parameters are
    ignored. Otherwise raises BadInput for the first image, unless the model sees `images`."""
    if messages is None or isinstance(messages, str):
        return []
    if ignores_unknown:
        return _take_unreadable_parts(messages, param, images=images)
    if not images:
        _check_images(messages, param)
    return []


def _check_images(messages: Sequence[ChatMessageParam | InputItem], param: str) -> None:
    for index, message in enumerate(messages):
        for number, part in enumerate(message.content if isinstance(message.content, list) else ()):
            if part.type in IMAGES:
                raise unseen_image(f"{param}[{index}].content[{number}].type")


def _take_unreadable_parts(messages: Sequence[ChatMessageParam | InputItem], param: str, *, images: bool) -> list[str]:
    """Removes the parts that the model does not read (sound, images unless it sees `images`, and files and images that
    are not in a user's message) from messages and outputs. Returns the place of the first part of each kind."""
    named: dict[str, str] = {}
    for index, message in enumerate(messages):
        for field in ("content", "output"):
            parts = getattr(message, field, None)
            if not isinstance(parts, list):
                continue
            unreadable = partial(is_unreadable, users=field == "content" and message.role == "user", images=images)
            for number, part in enumerate(parts):
                if unreadable(part):
                    named.setdefault(part.type, f"{param}[{index}].{field}[{number}] ({part.type})")
            setattr(message, field, [part for part in parts if not unreadable(part)])
    return list(named.values())


def _of_tools(tools: Sequence[object]) -> Iterator[tuple[str, str]]:
    for index, tool in enumerate(tools):
        at = f"tools[{index}]"
        if isinstance(tool, ResentModel):
            yield from unknown_fields(tool, at)
        if isinstance(tool, ChatTool):
            yield from unknown_fields(tool.function, f"{at}.function")
        if isinstance(container := getattr(tool, "container", None), CodeContainer):
            yield from unknown_fields(container, f"{at}.container")
        if isinstance(tool, FileSearchTool) and tool.ranking_options is not None:
            yield from unknown_fields(tool.ranking_options, f"{at}.ranking_options")
        if isinstance(tool, OtherTool):
            yield f"tool {tool.type}", f"tools[{index}] ({tool.type})"
        elif isinstance(tool, McpToolParam) and tool.server_description:
            yield "server_description", f"tools[{index}].server_description"
        elif getattr(getattr(tool, "container", None), "memory_limit", None) is not None:  # the tools file says it
            yield "memory_limit", f"tools[{index}].container.memory_limit"


def _of_messages(messages: Sequence[ChatMessageParam | InputItem], param: str) -> Iterator[tuple[str, str]]:
    for index, message in enumerate(messages):
        at = f"{param}[{index}]"
        if isinstance(message, InputItem) and is_foreign(message.type):
            if message.type not in QUIET_ITEMS:
                yield f"item {message.type}", f"{at} ({message.type})"
            continue
        yield from unknown_fields(message, at)
        if isinstance(message, ChatMessageParam):
            if message.name and message.role != "tool":
                yield "ChatMessageParam name", f"{at}.name"
            for number, call in enumerate(message.tool_calls or ()):
                yield from unknown_fields(call, f"{at}.tool_calls[{number}]")
                yield from unknown_fields(call.function, f"{at}.tool_calls[{number}].function")
        for field in ("content", "output"):
            parts = getattr(message, field, None)
            for number, part in enumerate(parts if isinstance(parts, list) else ()):
                yield from unknown_fields(part, f"{at}.{field}[{number}]")
                if isinstance(part.image_url, ImageUrl):
                    yield from unknown_fields(part.image_url, f"{at}.{field}[{number}].image_url")
                if part.file is not None:
                    yield from unknown_fields(part.file, f"{at}.{field}[{number}].file")


def unknown_fields(given: ResentModel, at: str, known: Container[str] = ECHOED) -> Iterator[tuple[str, str]]:
    """Yields the fields of an object at `at` that have no effect here, each as its kind and its name; not those that
    are empty or `known`."""
    if not given.__pydantic_extra__:
        return
    for name, value in itertools.islice(given.__pydantic_extra__.items(), UNKNOWN_MAX):
        if name not in known and value not in (None, [], {}, ""):
            yield f"{type(given).__name__} {name}", f"{at}.{name}"
