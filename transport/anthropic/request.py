"""Reads a request of the Messages API into a turn. Pure; raises BadInput with the `param` that is wrong.

Kept from a client's blocks is what a model reads: texts, documents, calls and their results. Thoughts of earlier
answers are left out without a word, as at the other doors; what asks for something that nobody here does (`effort`,
tools of Anthropic's own service, `thinking` of a model that has no thoughts) is named in the answer's `Warning`.
`cache_control` is taken everywhere and changes nothing: a session keeps its KV without being asked.

Source: Anthropic's API reference, version 2023-06-01.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import BeforeValidator, Field, StringConstraints

from sessions.model import commands as cm
from sessions.model.errors import BadInput
from sessions.model.generation import ATTENDED, CONTINUES, unseen_image
from sessions.model.types import CallId, InputFile, InputImage, InputText, Json, Sampling, TextOptions, Tool
from sessions.schemas import SchemaParams
from sessions.turn.images import UNSEEN
from transport.history_index import Unit
from transport.model_catalog import ModelCard
from transport.openai.left_out import ECHOED, unknown_fields, unthinking
from transport.openai.parse_request import known_effort, unsupported
from transport.openai.request_models import PARTS_MAX, Key, Name, RequestModel, ResentModel, Stop, join_texts
from transport.openai.turn_starter import TurnInput

SCHEMAS: Final = SchemaParams("tools[{}].input_schema", "output_config.format.schema")
BILLING_NOTE: Final = "x-anthropic-billing-header:"
"""The beginning of a `system` block that Claude Code adds for Anthropic's service. It changes with every request."""
_THOUGHTS: Final = ("thinking", "redacted_thinking")
_ATTACHED: Final = ("image", "document")
_QUIET: Final = ECHOED | {"cache_control", "caller", "display"}
"""Fields of blocks and tools that change nothing, and are sent by every agent or resent from an answer."""
_ONLY_TIER: Final = (None, "auto", "standard_only", "default")
_FOREIGN: Final = ("server_tool_use", "mcp_tool_use", "mcp_tool_result", "container_upload", "compaction")


class Source(ResentModel):
    type: str
    media_type: str | None = None
    data: str | None = None
    file_id: str | None = None
    url: str | None = None


class Part(ResentModel):
    """A part of a tool result, or a block of a message. `type` says which fields it has."""

    type: str
    text: str | None = None
    source: Source | None = None
    title: str | None = None


_Part = InputText | InputFile | InputImage
P = TypeVar("P", bound=Part)


class Block(Part):
    """A block of a message's content."""

    id: Key | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: Key | None = None
    content: str | list[Part] | None = None
    is_error: bool | None = None


class MessageParam(ResentModel):
    role: Literal["user", "assistant", "system"]
    content: Annotated[
        str | Annotated[list[Block], Field(max_length=PARTS_MAX)], BeforeValidator(partial(join_texts, types=("text",)))
    ]


class ToolParam(ResentModel):
    """A function of the client; with a `type` other than `custom`, a tool of Anthropic's service."""

    name: Name
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None

    @property
    def foreign(self) -> bool:
        return self.type not in (None, "custom")


class ToolChoice(RequestModel):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class OutputFormat(RequestModel):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(RequestModel):
    format: OutputFormat | None = None
    effort: str | None = None
    task_budget: dict[str, Any] | None = None


class Thinking(ResentModel):
    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = None


class RequestMetadata(RequestModel):
    user_id: Annotated[str, StringConstraints(max_length=256)] | None = None


class CountRequest(RequestModel):
    """The body of `POST /v1/messages/count_tokens`."""

    model: str
    messages: Annotated[list[MessageParam], Field(min_length=1, max_length=4096)]
    system: str | list[Part] | None = None
    tools: list[ToolParam] | None = None
    tool_choice: ToolChoice | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    cache_control: dict[str, Any] | None = None
    thinking: Thinking | None = None
    client_metadata: dict[str, Any] | None = None  # a client's own note, as at the other endpoints
    # Anthropic's service knows these; here they have no effect, which the answer's `Warning` says.
    context_management: dict[str, Any] | None = None
    speed: str | None = None
    mcp_servers: list[dict[str, Any]] | None = None


class MessagesRequest(CountRequest):
    """The body of `POST /v1/messages`."""

    max_tokens: Annotated[int, Field(ge=1, le=1_000_000)]
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    stop_sequences: Annotated[list[Stop], Field(max_length=16)] | None = None
    stream: bool = False
    metadata: RequestMetadata | None = None
    # These say how Anthropic's service runs a request; here they have no effect, which the answer's `Warning` says.
    service_tier: str | None = None
    inference_geo: str | None = None
    container: str | None = None


def message_turn(body: MessagesRequest, model: ModelCard, *, attended: bool = False) -> TurnInput:
    """Returns the turn that a request asks for. `attended`: the answer is cancelled if its client leaves. Raises
    BadInput."""
    tools, sampling = functions(body), _sampling(body)
    model.check(sampling, tools, format_param="output_config.format")
    user = body.metadata.user_id if body.metadata is not None else None
    request: dict[str, Json] = {"store": False, **({} if user is None else {"user": user})}
    if attended:
        request[ATTENDED] = True
    if body.messages[-1].role == "assistant":
        request[CONTINUES] = True
    return TurnInput(
        model=model.id,
        user=user,
        instructions=instructions(body),
        tools=tools,
        units=units_of(body.messages, images=model.images),
        sampling=sampling,
        request=request,
    )


def take_unreadable_blocks(body: CountRequest, *, images: bool) -> list[str]:
    """Removes the images and documents that are not in a user's message, and, unless the model sees `images`, all
    images: it reads that there was one in its user's message. Returns the place of the first block of each kind."""
    named: dict[str, str] = {}
    for index, message in enumerate(body.messages):
        if isinstance(message.content, list):
            kinds = _ATTACHED if message.role != "user" else () if images else ("image",)
            kept = _without(message.content, kinds, f"messages[{index}].content", named)
            message.content = kept or [Block(type="text", text=UNSEEN)]
    if isinstance(body.system, list):
        body.system = _without(body.system, _ATTACHED, "system", named)
    return list(named.values())


def _without(blocks: list[P], kinds: Sequence[str], at: str, named: dict[str, str]) -> list[P]:
    """Returns the blocks of other kinds. `named` gets the place of the first one that is left out, by its kind."""
    for number, block in enumerate(blocks):
        if block.type in kinds:
            named.setdefault(block.type, f"{at}[{number}] ({block.type})")
    return [block for block in blocks if block.type not in kinds]


def instructions(body: CountRequest) -> str | None:
    """Returns the system prompt, its blocks as paragraphs; None where there is none."""
    if body.system is None or isinstance(body.system, str):
        return body.system
    texts = [_text(block, f"system[{index}]") for index, block in enumerate(body.system)]
    return "\n\n".join(text for text in texts if text and not text.startswith(BILLING_NOTE)) or None


def units_of(messages: Sequence[MessageParam], *, images: bool, open_ended: bool = False) -> list[Unit]:
    """Returns the messages as a session holds them. What tool results show beside texts stands in the message behind
    them; of an image, a model that sees no `images` reads that there was one. `open_ended`: the last calls need no
    results, because no answer is wanted. Raises BadInput."""
    units: list[Unit] = []
    waiting: dict[str, None] = {}  # ids of calls without a result
    for index, message in enumerate(messages):
        at = f"messages[{index}]"
        blocks = [Block(type="text", text=message.content)] if isinstance(message.content, str) else message.content
        if message.role == "assistant":
            _check_answered(waiting, at)
            units += _answer(blocks, f"{at}.content")
            calls = [str(block.id) for block in blocks if block.type == "tool_use"]
            waiting = dict.fromkeys(calls)
            if len(waiting) < len(calls):
                raise BadInput("invalid_request", "`tool_use` ids must be unique.", param=f"{at}.content")
            continue
        shown, rest = list[_Part](), list[tuple[str, Block]]()
        for number, block in enumerate(blocks):
            where = f"{at}.content[{number}]"
            if block.type == "tool_result":
                output, parts = _result(block, where, waiting, images=images)
                units.append(output)
                shown += parts
            elif block.type == "image" and not images:
                raise unseen_image(f"{where}.type")
            elif block.type in _ATTACHED and message.role != "user":
                raise unsupported("Only a user's message can have documents and images.", f"{where}.type")
            else:
                rest.append((where, block))
        _check_answered(waiting, at)
        content = _content([*shown, *(part for where, block in rest if (part := _part(block, where)) is not None)])
        if content:
            units.append(Unit((cm.NewMessage(role=message.role, content=content),), at=f"{at}.content"))
        elif len(rest) == len(blocks):
            raise BadInput("invalid_request", "A message needs content that is not empty.", param=f"{at}.content")
    if not open_ended:
        _check_answered(waiting, "messages")
    return units


def functions(body: CountRequest) -> tuple[Tool, ...]:
    """Returns the client's functions. Raises BadInput for MCP servers, which only Anthropic's service connects to."""
    if body.mcp_servers:
        raise unsupported("MCP servers of a request are not connected to here.", "mcp_servers")
    made: dict[str, Tool] = {}
    for index, tool in enumerate(body.tools or ()):
        if tool.foreign:
            continue
        if tool.name in made:
            raise BadInput("invalid_request", f"Two tools are named {tool.name!r}.", param=f"tools[{index}].name")
        if tool.input_schema is None:
            raise _missing(f"tools[{index}].input_schema")
        made[tool.name] = Tool(
            name=tool.name, description=tool.description, parameters=tool.input_schema, strict=bool(tool.strict)
        )
    return tuple(made.values())


def left_out(body: CountRequest, *, thoughts: bool, efforts: bool) -> Iterator[str]:
    """Yields the parts of a request that have no effect, for the answer's `Warning`. `thoughts`: whether the model can
    reason; `efforts`: whether it knows degrees of effort."""
    config = body.output_config or OutputConfig()
    if config.task_budget is not None:
        yield "output_config.task_budget"
    yield from (name for name in ("context_management", "speed") if getattr(body, name))
    if not isinstance(body, MessagesRequest):  # what shapes the answer is not counted
        yield from (name for name in ("thinking", "tool_choice", "output_format") if getattr(body, name) is not None)
        yield from (f"output_config.{name}" for name in ("format", "effort") if getattr(config, name) is not None)
    else:
        if unthinking(_sampling(body), thoughts=thoughts):
            yield "thinking"
        if config.effort is not None and not (efforts and known_effort(config.effort)):
            yield "output_config.effort"
        yield from (name for name in ("inference_geo", "container") if getattr(body, name))
        if body.service_tier not in _ONLY_TIER:
            yield "service_tier"
    named: dict[str, str] = {}
    for kind, name in (*_of_tools(body), *_of_messages(body)):
        named.setdefault(kind, name)
    yield from named.values()


def _of_tools(body: CountRequest) -> Iterator[tuple[str, str]]:
    if body.thinking is not None:
        yield from unknown_fields(body.thinking, "thinking", _QUIET)
    for index, tool in enumerate(body.tools or ()):
        if tool.foreign:
            yield f"tool {tool.type}", f"tools[{index}] ({tool.type})"
        else:
            yield from unknown_fields(tool, f"tools[{index}]", _QUIET)
    for index, block in enumerate(body.system if isinstance(body.system, list) else ()):
        yield from _of_block(block, f"system[{index}]")


def _of_messages(body: CountRequest) -> Iterator[tuple[str, str]]:
    for index, message in enumerate(body.messages):
        at = f"messages[{index}]"
        yield from unknown_fields(message, at, _QUIET)
        for number, block in enumerate(message.content if isinstance(message.content, list) else ()):
            yield from _of_block(block, f"{at}.content[{number}]")


def _of_block(block: Part, at: str) -> Iterator[tuple[str, str]]:
    if _is_foreign(block):
        yield f"block {block.type}", f"{at} ({block.type})"
    elif block.type not in _THOUGHTS:
        asks = block.type == "document" and (block.model_extra or {}).get("citations") not in (None, {"enabled": False})
        yield from unknown_fields(block, at, _QUIET - {"citations"} if asks else _QUIET)
        if block.source is not None:
            yield from unknown_fields(block.source, f"{at}.source", _QUIET)
        inner = block.content if isinstance(block, Block) and isinstance(block.content, list) else ()
        for number, part in enumerate(inner):
            yield from _of_block(part, f"{at}.content[{number}]")


# -- inside ----------------------------------------------------------------------------------------------------------


def _sampling(body: MessagesRequest) -> Sampling:
    choice = body.tool_choice
    return Sampling(
        temperature=0.0 if body.top_p == 0 else body.temperature,
        top_p=body.top_p or None,
        top_k=body.top_k,
        max_output_tokens=body.max_tokens,
        stop=tuple(body.stop_sequences or ()) or None,
        tool_choice=None if choice is None else _tool_choice(choice, [tool.name for tool in functions(body)]),
        parallel_tool_calls=choice is None or not choice.disable_parallel_tool_use,
        thinking=None if body.thinking is None else body.thinking.type != "disabled",
        thinking_tokens=None if body.thinking is None else body.thinking.budget_tokens,
        effort=None if body.output_config is None else known_effort(body.output_config.effort),
        text=_format(body),
    )


def _format(body: CountRequest) -> TextOptions | None:
    given = body.output_format or (body.output_config.format if body.output_config is not None else None)
    if given is None:
        return None
    return TextOptions({"type": "json_schema", "name": "output", "schema": given.schema_, "strict": True})


def _tool_choice(given: ToolChoice, names: Sequence[str]) -> str | dict[str, Json]:
    if given.type in ("auto", "none"):
        return given.type
    if given.type == "any":
        if not names:
            raise BadInput("invalid_request", "'tool_choice' needs a tool that may be called.", param="tool_choice")
        return "required"
    if given.name not in names:
        what = f"Tool choice {given.name!r} is not among the 'tools' that may be called here."
        raise BadInput("invalid_request", what, param="tool_choice.name")
    return {"type": "function", "name": given.name}


def _answer(blocks: Sequence[Block], at: str) -> list[Unit]:
    texts, calls = [], []
    for index, block in enumerate(blocks):
        where = f"{at}[{index}]"
        if block.type == "tool_use":
            if block.id is None or block.name is None:
                raise _missing(f"{where}.{'id' if block.id is None else 'name'}")
            arguments = json.dumps(block.input or {}, ensure_ascii=False)
            calls.append(cm.NewCall(call_id=CallId(block.id), name=block.name, arguments=arguments))
        else:
            texts.append(_text(block, where))
    text = "".join(texts)
    words: tuple[cm.NewItem, ...] = (cm.NewMessage(role="assistant", content=text),) if text or not calls else ()
    return [Unit((*words, *calls), answer=True)]


def _result(block: Block, at: str, waiting: dict[str, None], *, images: bool) -> tuple[Unit, list[_Part]]:
    """Returns a tool's output, and the images and documents that it shows."""
    if block.tool_use_id is None:
        raise _missing(f"{at}.tool_use_id")
    if block.tool_use_id not in waiting:
        what = "Each `tool_result` block must have a corresponding `tool_use` block in the previous message."
        raise BadInput("invalid_request", what, param=f"{at}.tool_use_id")
    del waiting[block.tool_use_id]
    parts = block.content if isinstance(block.content, list) else [Part(type="text", text=block.content or "")]
    texts, shown = list[str](), list[_Part]()
    for index, inner in enumerate(parts):
        if inner.type == "image" and not images:
            texts.append(UNSEEN)
            continue
        part = _part(inner, f"{at}.content[{index}]")
        if isinstance(part, InputText):
            texts.append(part.text)
        elif part is not None:
            shown.append(part)
    output = "\n".join(texts)
    if block.is_error and not output.casefold().startswith("error"):
        output = f"Error: {output}"  # how a model reads of it: results have no other place for that
    return Unit((cm.NewOutput(call_id=CallId(block.tool_use_id), output=output),)), shown


def _content(parts: Sequence[_Part]) -> cm.Content:
    """Returns a user's content: one text, or a tuple of texts, files and images."""
    if any(isinstance(part, InputFile | InputImage) for part in parts):
        return tuple(parts)
    return "".join(part.text for part in parts if isinstance(part, InputText))


def _part(block: Part, at: str) -> _Part | None:
    if block.type == "image":
        return _image(block, at)
    if block.type != "document":
        text = _text(block, at)
        return InputText(text=text) if text else None
    source = block.source
    if source is None:
        raise _missing(f"{at}.source")
    title = block.title or ""
    if source.type == "text" and source.data is not None:
        return InputText(text=f"{title}\n\n{source.data}" if title else source.data)
    if source.type == "file" and source.file_id is not None:
        return InputFile(file_id=source.file_id, filename=title)
    if source.type == "base64" and source.data is not None:
        data = f"data:{source.media_type or 'application/pdf'};base64,{source.data}"
        return InputFile(filename=title or "document.pdf", file_data=data)
    raise unsupported(f"A document of source {source.type!r} is not read here.", f"{at}.source.type")


def _image(block: Part, at: str) -> InputImage:
    source = block.source
    if source is None:
        raise _missing(f"{at}.source")
    if source.type == "file" and source.file_id is not None:
        return InputImage(file_id=source.file_id)
    if source.type == "url" and source.url is not None:
        return InputImage(image_url=source.url)
    if source.type == "base64" and source.data is not None:
        return InputImage(image_url=f"data:{source.media_type or 'image/png'};base64,{source.data}")
    raise unsupported(f"An image of source {source.type!r} is not read here.", f"{at}.source.type")


def _text(block: Part, at: str) -> str:
    """Returns a block's text; "" for reasoning and for other servers' tools. Raises BadInput for a kind that no
    model here can read."""
    if block.type == "text":
        if block.text is None:
            raise _missing(f"{at}.text")
        return block.text
    if block.type in _THOUGHTS or _is_foreign(block):
        return ""
    raise unsupported(f"{block.type!r} is no kind of content that this server takes; text is.", f"{at}.type")


def _is_foreign(block: Part) -> bool:
    return block.type in _FOREIGN or (block.type.endswith("_tool_result") and block.type != "tool_result")


def _check_answered(waiting: dict[str, None], at: str) -> None:
    if waiting:
        what = "`tool_use` ids were found without `tool_result` blocks immediately after: "
        raise BadInput("invalid_request", f"{what}{', '.join(waiting)}.", param=at)


def _missing(param: str) -> BadInput:
    return BadInput("missing_required_parameter", f"Missing required parameter: '{param}'.", param=param)
