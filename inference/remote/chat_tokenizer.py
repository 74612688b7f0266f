"""Writes a conversation as token ids where nobody knows the model's own: a provider takes and gives only text.

Sessile's ledger needs ids, so each stands for up to three bytes of text. Ids below `SPECIALS_END` are marks:

    system Be brief. END  user Hello END  assistant          the prompt of a first answer
    tool 12 degrees CALL call_1 END                          an output, and the call that it answers
    assistant Let me look. CALL ["call_1", "weather", "{}"] END

An image has ids of its own (`sessions.turn.images`). `read_prompt` makes messages of such a prompt again. Lengths,
usage and windows are therefore counted at three bytes a token, not as the provider counts. Thoughts and calls of an
answer stand in its text, between marks that no text has: what looks like a call in the provider's text is text, and so
is a `</think>` in a thought.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from inference.summed_pieces import PieceTokenizer
from sessions.model.errors import BadInput
from sessions.model.generation import ThoughtMarks, TokenizerInfo
from sessions.model.types import Json, Tokens, Tool
from sessions.ports import ChatMessage
from sessions.turn.call_formats import FIELD_CLOSE, FIELD_MARKS, FIELD_OPEN, FIELD_THOUGHT_CLOSE, FIELD_THOUGHT_OPEN
from sessions.turn.images import MARK, NAME_IDS, PATCH, ImageName, image_ids, image_runs, named_parts, patches_of

BEGIN, END, CALL, FUNCTION = 1, 2, 3, 4
ROLES: Final = {"system": 5, "developer": 6, "user": 7, "assistant": 8, "tool": 9}
SPECIALS_END: Final = 10
VOCABULARY: Final = 4 << 24  # ids: the number of bytes (1 to 3) in the upper byte, the bytes below
THOUGHTS: Final = ThoughtMarks(FIELD_THOUGHT_OPEN, FIELD_THOUGHT_CLOSE, efforts=True)
UNMARKED: Final = str.maketrans(dict.fromkeys((*FIELD_MARKS, MARK), "\ufffd"))  # texts have none of the marks
UNMARKED_JSON: Final = str.maketrans({mark: json.dumps(mark)[1:-1] for mark in FIELD_MARKS})

_ROLE_OF: Final = {token: role for role, token in ROLES.items()}
_SEGMENTS: Final = frozenset({FUNCTION, *_ROLE_OF})
_THOUGHT: Final = re.compile(rf"{FIELD_THOUGHT_OPEN}[^{FIELD_THOUGHT_CLOSE}]*+{FIELD_THOUGHT_CLOSE}?")
_IMAGE: Final = MARK.encode()  # around an image's hash, where ids are read as text
_INLINE_BYTES_MAX: Final = 48 * 1024  # encoded in a few milliseconds; a multiple of three


class ChatPrompt(NamedTuple):
    """A prompt as a provider takes it: `messages` and `functions` in OpenAI's form. `begun`: the text of an unfinished
    answer that the model would have to continue."""

    messages: list[dict[str, Json]]
    functions: list[dict[str, Json]]
    begun: str


def encode(data: bytes) -> list[int]:
    """Returns the ids of a text's bytes."""
    whole = len(data) - len(data) % 3
    tokens = [0x03000000 | a | b << 8 | c << 16 for a, b, c in zip(*[iter(data[:whole])] * 3, strict=True)]
    if rest := data[whole:]:
        tokens.append(len(rest) << 24 | int.from_bytes(rest, "little"))
    return tokens


async def _encode_in_parts(text: str) -> list[int]:
    data, tokens = text.encode("utf-8", "surrogatepass"), []
    for start in range(0, len(data), _INLINE_BYTES_MAX):
        if start:
            await asyncio.sleep(0)
        tokens += encode(data[start : start + _INLINE_BYTES_MAX])
    return tokens


def _bytes_of(token: int) -> bytes:
    return (token & 0xFFFFFF).to_bytes(3, "little")[: token >> 24]


class ChatTemplateFacts:
    """The properties of a chat template that engines report, for a provider whose template is not known."""

    foldings: tuple[str, ...] = ()

    def call_format(self) -> str:
        return "field"

    def thoughts(self) -> ThoughtMarks | None:
        return THOUGHTS


class ChatTokenizer(PieceTokenizer):
    """A tokenizer for models of which only a name is known. Implements `TemplatedTokenizer`."""

    starts: Tokens = (BEGIN,)
    answer_opening: Tokens = (ROLES["assistant"],)
    answer_closing: Tokens = (END,)
    template = ChatTemplateFacts()
    about = TokenizerInfo(vocabulary_size=VOCABULARY, ends=frozenset({END}))

    def __init__(self, *, images: bool = False) -> None:
        """`images`: whether the model sees them."""
        self.fingerprint = "chat-3-bytes/4-images" if images else "chat-3-bytes/4"

    async def opening(self, instructions: str | None, tools: Sequence[Tool]) -> Tokens:
        tokens = [BEGIN]
        if instructions is not None:
            tokens += [ROLES["system"], *await _encode_in_parts(instructions), END]
        for tool in tools:
            tokens += [FUNCTION, *await _encode_in_parts(json.dumps(_function(tool))), END]
        return tuple(tokens)

    async def message(self, message: ChatMessage) -> Tokens:
        tokens = [ROLES[message.role]]
        for part in named_parts(message):
            if isinstance(part, ImageName):
                tokens += image_ids(part.sha256, max(NAME_IDS, patches_of(part)))
            else:
                tokens += await _encode_in_parts(part.translate(UNMARKED))
        if message.call_id is not None:
            tokens += [CALL, *await _encode_in_parts(message.call_id)]
        for call in message.calls:
            tokens += [CALL, *await _encode_in_parts(json.dumps(call))]
        return (*tokens, END)

    async def text(self, text: str) -> Tokens:
        return tuple(await _encode_in_parts(text))

    def pieces(self, tokens: Sequence[int]) -> list[bytes]:
        return [_bytes_of(token) for token in tokens]


def read_prompt(tokens: Tokens, images: Mapping[str, str] | None = None) -> ChatPrompt:
    """Returns the messages of a prompt. `images` has the URLs of its images by their hashes; an image without one is
    left out. Raises BadInput for a prompt that is no conversation up to an answer."""
    segments: list[tuple[int, list[bytearray]]] = []
    names = {run.begin: run.sha256.encode() for run in image_runs(tokens)} if images else {}
    for at, token in enumerate(tokens):
        if token >= PATCH:
            if at in names and segments:
                segments[-1][1][-1] += _IMAGE + names[at] + _IMAGE
        elif token in _SEGMENTS:
            segments.append((token, [bytearray()]))
        elif token == CALL and segments:
            segments[-1][1].append(bytearray())
        elif token >= SPECIALS_END and segments:
            segments[-1][1][-1] += _bytes_of(token)
        elif token >= SPECIALS_END:
            break
    if not segments or segments[-1][0] != ROLES["assistant"]:
        what = "This model takes conversations only, no texts to go on with: use /v1/chat/completions or /v1/responses."
        raise BadInput("unsupported_parameter", what, param="prompt")
    *before, (_, (begun, *_)) = [
        (kind, [bytes(field).decode("utf-8", "replace") for field in it]) for kind, it in segments
    ]
    functions = [json.loads(fields[0]) for kind, fields in before if kind == FUNCTION]
    talk = [(_ROLE_OF[kind], *fields) for kind, fields in before if kind != FUNCTION]
    messages = [
        _with_images(_message(*fields, outputs=ids), images or {})
        for fields, ids in zip(talk, _outputs_behind(talk), strict=True)
    ]
    return ChatPrompt(messages, functions, begun)


def _outputs_behind(talk: Sequence[Sequence[str]]) -> list[list[str]]:
    """Returns for each message the call ids of the tool outputs that follow it; an output has none behind it. Reads
    each message once."""
    behind = list[list[str]]()
    last: list[str] = []
    for role, _, *fields in talk:
        behind.append([])
        if role == "tool":
            last += fields[:1]
        else:
            last = behind[-1]
    return behind


def _function(tool: Tool) -> dict[str, Json]:
    function: dict[str, Json] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.parameters is not None:
        function["parameters"] = tool.parameters
    if tool.strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def _message(role: str, text: str, *calls: str, outputs: list[str]) -> dict[str, Json]:
    if role == "tool":
        return {"role": role, "content": text, "tool_call_id": calls[0] if calls else ""}
    if role != "assistant":
        return {"role": role, "content": text}
    made = [_call(*json.loads(call)) for call in calls]
    known = {call["id"] for call in made}
    shown, written = _read_answer(text, [call_id for call_id in outputs if call_id not in known])
    made = [*written, *made]
    message: dict[str, Json] = {"role": role, "content": shown or (None if made else "")}
    return {**message, "tool_calls": made} if made else message


def _with_images(message: dict[str, Json], images: Mapping[str, str]) -> dict[str, Json]:
    """Returns a user's message with its images as parts of its content. A message without images stays a text."""
    content = message["content"]
    if message["role"] != "user" or not isinstance(content, str) or MARK not in content:
        return message
    parts: list[Json] = []
    for odd, part in enumerate(content.split(MARK)):
        if odd % 2 and part in images:
            parts.append({"type": "image_url", "image_url": {"url": images[part]}})
        elif part and not odd % 2:
            parts.append({"type": "text", "text": part})
    return {**message, "content": parts}


def _call(call_id: str, name: str, arguments: str) -> dict[str, Json]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _read_answer(text: str, outputs: Sequence[str]) -> tuple[str, list[dict[str, Json]]]:
    """Returns the words of an answer, without its thoughts, and its calls. An answer's text has no ids: its calls get
    those of the `outputs` that follow, in order. A call without an output, or that is not whole, is left out."""
    words, *marked = _without_thoughts(text).split(FIELD_OPEN)
    calls = list[dict[str, Json]]()
    for each in marked:
        written, closed, behind = each.partition(FIELD_CLOSE)
        words = words.rstrip() + behind.lstrip()
        if closed and len(calls) < len(outputs):
            name, _, arguments = written.partition("\n")
            with contextlib.suppress(ValueError):
                calls.append(_call(outputs[len(calls)], json.loads(name), arguments or "{}"))
    return words, calls


def _without_thoughts(text: str) -> str:
    """Returns an answer without its thoughts, and without the white space between a thought and the answer's beginning
    or end. White space between a thought and text belongs to the text."""
    first, *others = _THOUGHT.split(text)
    if not others:
        return text
    text = "".join([first, *others])
    text = text if first.strip() else text.lstrip()
    return text if others[-1].strip() else text.rstrip()
