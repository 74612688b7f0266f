"""Speaks to a provider that has only chat: `/chat/completions` with messages, text both ways.

OpenAI's own API and whatever is made after it. Nobody can have an answer gone on with there: one that is broken off
ends as incomplete where words of it were shown, and is begun anew where none were.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple

import msgspec

from inference.remote.chat_tokenizer import UNMARKED, UNMARKED_JSON, ChatTokenizer, encode, read_prompt
from inference.remote.dialects import NOT_FOUND, RemoteRunEnded, ServedModel, read_event, refusal, unlike
from inference.remote.options import RemoteOptions
from inference.remote.pool import RemotePool, RemoteServer
from sessions.model.errors import BadInput, Unavailable
from sessions.model.generation import Chunk, EndReason, GenerationRequest, drawn_seed, is_free
from sessions.model.types import Json
from sessions.turn.call_formats import FIELD_CLOSE, FIELD_OPEN, FIELD_THOUGHT_CLOSE, FIELD_THOUGHT_OPEN
from sessions.turn.output_pipeline import beginnings, held_back, reach

_DIRECT: Final = ("temperature", "top_p", "frequency_penalty", "presence_penalty")
_USUAL_LIMIT: Final = "max_tokens"
_NAMES_SHOWN: Final = 10
_TAGS: Final = ("<think>", "</think>")  # around a thought at the beginning of a content
_ENDS: Final[dict[str, EndReason]] = {"length": "length", "content_filter": "content_filter"}


class _Function(msgspec.Struct, frozen=True):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct, frozen=True):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Delta(msgspec.Struct, frozen=True):
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[_Call, ...] | None = None


class _Choice(msgspec.Struct, frozen=True):
    index: int | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Event(msgspec.Struct, frozen=True):
    choices: tuple[_Choice, ...] | None = None
    usage: Any = None
    error: Any = None


_DECODER: Final = msgspec.json.Decoder(_Event)


class ChatDialect:
    """Talks to a provider of chat completions. Implements `ServerDialect`."""

    build = "remote-chat/1"
    sampling = frozenset({*_DIRECT, "seed", "text"})
    holds_to_formats = True

    def __init__(self, options: RemoteOptions) -> None:
        self._model = options.chat_model
        self._limit = _USUAL_LIMIT  # the parameter's name, which newer models of OpenAI's have another one for

    def probe_path(self, server: RemoteServer) -> str:
        return f"{server.api}/models"

    async def model_of(self, pool: RemotePool, server: RemoteServer) -> ServedModel:
        """Returns the model by its name. Raises BadInput where the provider lists its models and has none of this
        name."""
        status, answer = await pool.question(server, "GET", self.probe_path(server))
        if status == NOT_FOUND:  # it does not list them
            return ServedModel(self._model, 0)
        if status != 200:
            raise refusal(status, server.without_key(answer))
        try:
            listed = {str(each["id"]): each for each in msgspec.json.decode(answer)["data"]}
        except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError):
            raise unlike(server, "API like OpenAI's") from None
        if self._model not in listed:
            names = ", ".join(sorted(listed)[:_NAMES_SHOWN])
            what = f"--model: {server.name} has no model {self._model!r}. It has {names}."
            raise BadInput("invalid_setting", what, param="model")
        model = listed[self._model]
        window = model.get("max_model_len") or model.get("context_length") or model.get("context_window") or 0
        return ServedModel(self._model, int(window), _sees(model))

    async def open_tokenizer(self, pool: RemotePool, *, images: bool) -> ChatTokenizer:
        return ChatTokenizer(images=images)

    async def check_tokenizer(self, pool: RemotePool, server: RemoteServer, model: str) -> None: ...

    def check(self, request: GenerationRequest) -> None:
        sampling = request.sampling
        what = "How this model thinks is its provider's business: leave it out."
        if sampling.thinking_tokens is not None:
            raise BadInput("unsupported_parameter", what, param="thinking_tokens")
        if sampling.thinking is not None and sampling.effort is None:  # an effort is passed on
            raise BadInput("unsupported_parameter", what, param="thinking")
        if request.emitted:
            what = "This answer cannot be continued: its provider begins every answer anew."
            raise BadInput("recovery_incompatible", what)

    async def run(
        self, server: RemoteServer, model: str, request: GenerationRequest
    ) -> AsyncGenerator[Chunk | RemoteRunEnded, None]:
        body, sampling, left = self._body(model, request), request.sampling, request.max_tokens
        path = f"{server.path}{server.api}/chat/completions"
        status, answer, stream = await server.http.stream(path, msgspec.json.encode(body))
        if status == 400 and b"max_completion_tokens" in answer and _USUAL_LIMIT in body:
            stream.close()
            self._limit = "max_completion_tokens"
            body = self._body(model, request)
            status, answer, stream = await server.http.stream(path, msgspec.json.encode(body))
        try:
            if status != 200:
                raise refusal(status, server.without_key(answer), stream.header("retry-after"))
            writer = _AnswerWriter(
                thoughts=is_free(sampling, None), calls="tools" in body and sampling.tool_choice != "none"
            )
            reason, cached = "", 0
            while (raw := await stream.next()) is not None:
                data = _data_of(raw)
                if not data:
                    continue
                if data == b"[DONE]":
                    break
                event = read_event(_DECODER, data)
                if event.error is not None:
                    raise Unavailable("engine_unavailable", "The provider broke an answer off.")
                cached = _cached_of(event.usage, len(request.prompt)) or cached
                for choice in (each for each in event.choices or () if not each.index):
                    reason = choice.finish_reason or reason
                    for text in writer.take(choice.delta or _Delta()):
                        tokens = tuple(encode(text.encode()))
                        left -= len(tokens)
                        yield Chunk(tokens, text)
                if left <= 0 and sampling.max_output_tokens is None:  # a limit that only this server knows
                    yield RemoteRunEnded("length", cached)
                    return
            if not reason:
                raise Unavailable("engine_unavailable", "The provider cut an answer short.")
            ended = _ENDS.get(reason, "stop")
            for text in writer.close(whole=ended == "stop"):
                yield Chunk(tuple(encode(text.encode())), text)
            yield RemoteRunEnded(ended, cached)
        finally:
            stream.close()

    def _body(self, model: str, request: GenerationRequest) -> dict[str, Json]:
        images = {image.sha256: image.image_url for image in request.images if image.image_url}
        prompt, sampling = read_prompt(request.prompt, images), request.sampling
        if prompt.begun:
            what = "This model begins every answer anew: leave 'continue_final_message' and 'prefix' out."
            raise BadInput("unsupported_parameter", what, param="messages")
        body: dict[str, Json] = {
            "model": model,
            "messages": prompt.messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            **{name: value for name in _DIRECT if (value := getattr(sampling, name)) is not None},
        }
        if sampling.seed is not None and sampling.seed != drawn_seed(request.response_id):  # not every provider has any
            body["seed"] = sampling.seed
        if sampling.max_output_tokens is not None:
            body[self._limit] = sampling.max_output_tokens
        if sampling.effort is not None:
            body["reasoning_effort"] = sampling.effort
        if prompt.functions:
            body["tools"] = prompt.functions
            if sampling.tool_choice is not None:
                body["tool_choice"] = _choice(sampling.tool_choice)
            if not sampling.parallel_tool_calls:
                body["parallel_tool_calls"] = False
        shape = (sampling.text.format if sampling.text is not None else None) or {}
        if shape.get("type") == "json_schema":
            described = {name: value for name, value in shape.items() if name not in ("type", "json_schema")}
            body["response_format"] = {"type": "json_schema", "json_schema": shape.get("json_schema") or described}
        elif shape.get("type") == "json_object":
            body["response_format"] = {"type": "json_object"}
        return body


def _sees(model: Mapping[str, Any]) -> bool | None:
    """Returns whether a model sees images, by what its provider says of it; None if it says nothing. The forms are
    OpenRouter's, vLLM's and our own (`input_modalities`), llama-server's and Mistral's (`capabilities`)."""
    architecture = model.get("architecture")
    modalities = model.get("input_modalities") or (
        architecture.get("input_modalities") if isinstance(architecture, dict) else None
    )
    if isinstance(modalities, list):
        return "image" in modalities
    match model.get("capabilities"):
        case list(names):
            return "multimodal" in names or "vision" in names
        case {"vision": bool(sees)}:
            return sees
    return None


def _data_of(event: bytes) -> bytes:
    """Returns the data lines of an event. Its other lines are ignored, and so are comments, which only keep a
    connection open."""
    lines = event.split(b"\n")
    return b"\n".join(line[len(b"data:") :].strip() for line in lines if line.startswith(b"data:"))


def _cached_of(usage: Any, num_prompt: int) -> int:
    """Returns how many of the prompt's token ids count as cached: the same share as that which the provider reports of
    its own tokens."""
    prompt = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    if not (isinstance(prompt, int) and isinstance(cached, int)) or cached < 0 or prompt <= 0:
        return 0
    return min(num_prompt, num_prompt * cached // prompt)


class _Span(NamedTuple):
    """A part of a content: a thought, or text."""

    thought: bool
    text: str


class _ContentReader:
    """A reader that separates a leading thought from a provider's content. Providers whose server does not know a
    model's thoughts send them like this:

        <think>\\nHm, 2 + 2.\\n</think>\\n\\nFour

    A tag anywhere else is text. Where the provider has a field for thoughts and used it, `as_text` says so, and every
    tag is text."""

    def __init__(self) -> None:
        self._phase: Literal["begin", "thought", "behind", "text"] = "begin"
        self._blanks: list[str] = []  # white space before what may become the first tag
        self._held = ""  # it may become a tag

    def as_text(self) -> None:
        """Takes what comes next as text, tags or not."""
        if self._phase == "begin":
            self._phase = "text"
            self._held = self._with_blanks(self._held)

    def _with_blanks(self, text: str) -> str:
        text = "".join((*self._blanks, text))
        self._blanks.clear()
        return text

    def read(self, content: str) -> Iterator[_Span]:
        """Yields the parts that can be told once `content` has come."""
        content, self._held = self._held + content, ""
        if self._phase == "begin":
            begun = content.lstrip()
            self._blanks.append(content[: len(content) - len(begun)])
            if len(begun) < len(_TAGS[0]) and _TAGS[0].startswith(begun):
                self._held = begun
                return
            self._phase = "thought" if begun.startswith(_TAGS[0]) else "text"
            content = begun.removeprefix(_TAGS[0]) if self._phase == "thought" else self._with_blanks(begun)
        if self._phase == "thought":
            thought, closed, content = content.partition(_TAGS[1])
            if not closed:
                end = len(thought) - held_back(thought, beginnings(_TAGS[1:]), reach(_TAGS[1:]))
                thought, self._held = thought[:end], thought[end:]
            if thought:
                yield _Span(True, thought)
            if not closed:
                return
            self._phase = "behind"
        if self._phase == "behind":
            content = content.lstrip()
        if content:
            self._phase = "text"
            yield _Span(False, content)

    def rest(self) -> Iterator[_Span]:
        """Yields what was held back, at the end of the content."""
        held, self._held = self._held, ""
        if self._phase == "begin":
            held = self._with_blanks(held)
        if held:
            yield _Span(self._phase == "thought", held)


class _AnswerWriter:
    """Writes the deltas of an answer as text with thoughts and calls between marks that occur in no text. Thoughts and
    calls are left out if `thoughts` or `calls` is false. A provider that continues an earlier call after another has
    begun is refused."""

    def __init__(self, *, thoughts: bool = True, calls: bool = True) -> None:
        self._thoughts = thoughts
        self._calls = calls
        self._content = _ContentReader()
        self._open: Literal["", "thought", "call"] = ""
        self._written: Literal["", "thought", "text"] = ""  # "text": also text, before a thought or behind it
        self._call = _Call()  # the one that is open

    def take(self, delta: _Delta) -> Iterator[str]:
        """Yields the texts that a delta adds. Raises Unavailable."""
        if thought := delta.reasoning_content or delta.reasoning:
            self._content.as_text()
            yield from self._span(_Span(True, thought))
        if text := (delta.content or "") + (delta.refusal or ""):
            for span in self._content.read(text):
                yield from self._span(span)
        for call in (delta.tool_calls or ()) if self._calls else ():
            name, arguments = (call.function.name, call.function.arguments) if call.function else (None, None)
            if name and not self._is_open(call):
                yield from self._rest()
                yield from self._switch("call", f"{FIELD_OPEN}{json.dumps(name)}\n")
                self._call = call
            if arguments:
                if not self._is_open(call):
                    raise Unavailable("engine_unavailable", "The provider mixed the calls of an answer up.")
                yield arguments.translate(UNMARKED_JSON)

    def _span(self, span: _Span) -> Iterator[str]:
        text = span.text.lstrip() if self._written == "thought" and not span.thought else span.text
        if not text or (span.thought and not self._thoughts):
            return
        self._written = "thought" if span.thought and self._written != "text" else "text"
        if span.thought and self._open != "thought":
            yield from self._switch("thought", FIELD_THOUGHT_OPEN)
        elif not span.thought and self._open != "":
            yield from self._switch("", "")
        yield text.translate(UNMARKED)

    def _rest(self) -> Iterator[str]:
        for span in self._content.rest():
            yield from self._span(span)

    def _is_open(self, call: _Call) -> bool:
        """Returns whether a delta continues the call that is being written. Some providers give every call the number
        0, or none."""
        same_id = not call.id or not self._call.id or call.id == self._call.id
        return self._open == "call" and call.index == self._call.index and same_id

    def close(self, *, whole: bool = True) -> Iterator[str]:
        """Yields what was held back and, if the answer is `whole`, the end mark of the thought or call that is open."""
        yield from self._rest()
        if whole:
            yield from self._switch("", "")

    def _switch(self, to: Literal["", "thought", "call"], opening: str) -> Iterator[str]:
        if self._open == "thought":
            yield FIELD_THOUGHT_CLOSE
        elif self._open != "":
            yield FIELD_CLOSE
        self._open = to
        if opening:
            yield opening


def _choice(choice: str | dict[str, Json]) -> Json:
    """Returns a choice of tools in chat's form: `{"type": "function", "function": {"name": ...}}`."""
    if isinstance(choice, dict) and "name" in choice and choice.get("type") == "function":
        return {"type": "function", "function": {"name": choice["name"]}}
    return choice
