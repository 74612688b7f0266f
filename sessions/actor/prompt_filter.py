"""Filters every string of a command that can reach a prompt, whoever has written it by the command's word.

The one place that knows what a model reads: messages of all roles, histories that stateless clients bring (answers,
calls, outputs), instructions, tools with their schemas, and the schema of the answer. Where a new field can reach a
prompt it passes here, or `tests/attacks/test_markers.py` fails.

Texts are also judged where they meet: the end of the texts before on the branch together with the beginning of the new
one, once directly joined and once with a space between, and likewise only with what the same author wrote before. So a
phrase that is split over messages is found. Only its part in the newer text can be taken out. An image is judged by
itself, by the filters that can.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET

from sessions.metrics import Histogram
from sessions.model import commands as cm
from sessions.model.errors import BadInput, TooLarge
from sessions.model.types import InputImage, Principal, Tool
from sessions.model.verdicts import IMAGE_EXCERPT, Finding, Verdict, quoted
from sessions.ports import FilterSet, JudgesImages
from sessions.turn.past_texts import NEIGHBOURS_REACH, PromptText

PROSE: Final = frozenset({"description", "title", "$comment", "examples", "default"})
_JOINTS: Final = ("", "\n")
_BEGINNING: Final = re.compile(  # how a continued text begins: signs, the number of its part, an introduction
    r"\W{0,8}(?:\d{1,2}\s?(?:/|of)\s?\d{1,2}\b\W{0,3}|\d{1,2}[.):]\W{0,3}|cont(?:inu\w{1,4}|d|['’]d)?\b\W{1,4}"
    r"|(?:[^\W_]{1,12}[ ]){0,6}[^\W_]{1,12}\s?(?<!https)(?<!http):\W{0,3})?",
    re.IGNORECASE,
)
_TAIL: Final = re.compile(  # how a text ends that will be continued
    r"(?:[\W_]|\b(?:to[ ]be[ ])?cont(?:inue[ds]?|d|['’]d)?\b|\b\d{1,2}[ ]?(?:/|of)[ ]?\d{1,2}\b){1,24}\Z", re.IGNORECASE
)
_FULL_STOP: Final = re.compile(r"[.!?]\s{0,2}")
Named = TypeVar("Named", cm.SessionCreate, cm.SessionUpdate, cm.SessionSettings)
Tools = tuple[Tool, ...]


class Before(NamedTuple):
    """The end of the texts that precede another one, and how the two are joined."""

    end: str
    joint: str
    trimmed: bool  # whether marks of continuation ("1/2", dots) are left out of both

    def join(self, text: str) -> tuple[str, int]:
        """Returns this end joined with the beginning of `text`, and the index in `text` at which the joined part
        begins."""
        begin = _begin(text) if self.trimmed else 0
        return self.end + self.joint + text[begin : begin + NEIGHBOURS_REACH], begin


class Neighbours:
    """The ends of the texts that precede a new one: of all that the model reads, and of those by the same author; each
    as it is, and also without marks of continuation (dots, hyphens, quotes, numbers of parts)."""

    def __init__(self, before: Iterable[PromptText] = ()) -> None:
        self._ends: dict[tuple[bool | None, str, bool], str] = {}  # by author (by_model; None: all), joint, trimmed
        for text in before:
            self.add(text)

    def add(self, text: PromptText) -> None:
        if not text.text:
            return
        core = text.text[_begin(text.text) :]
        for author in (None, text.by_model):
            for joint in _JOINTS:
                for trimmed in (False, True):
                    end = self._ends.get((author, joint, trimmed))
                    if trimmed and end is not None:
                        end = _trimmed(end)
                    joined = text.text if end is None else end + joint + (core if trimmed else text.text)
                    self._ends[author, joint, trimmed] = joined[-NEIGHBOURS_REACH:]

    def ends(self, by_model: bool) -> Iterator[Before]:
        """Yields the ends together with which a text is to be judged. `by_model`: its author is the model, else a
        person or tool."""
        for (author, joint, trimmed), end in self._ends.items():
            if author is None or author == by_model:
                yield Before(_trimmed(end) if trimmed else end, joint, trimmed)


def _begin(text: str) -> int:
    """Returns the index in a text behind the marks of continuation at its beginning; 0 if it has none."""
    marks = _BEGINNING.match(text, 0, NEIGHBOURS_REACH)
    return marks.end() if marks is not None else 0


def _trimmed(end: str) -> str:
    """Returns the end of a text without marks of continuation."""
    tail = _TAIL.search(end)
    return end if tail is None or _FULL_STOP.fullmatch(tail[0]) else end[: tail.start()]


class PromptFilter:
    """Filters one command's texts. Its methods raise BadInput `content_filter` and TooLarge `content_too_large`;
    `findings` are what the filters found so far."""

    def __init__(self, principal: Principal, filters: FilterSet, bytes_max: int, filters_s: Histogram) -> None:
        self._principal = principal
        self._filters = filters.input_filters(principal)
        self._bytes_max = bytes_max
        self._filters_s = filters_s
        self._near = Neighbours()
        self.findings: list[Finding] = []

    @property
    def active(self) -> bool:
        """Whether there are any filters."""
        return bool(self._filters)

    def follow(self, before: Iterable[PromptText]) -> None:
        """Sets the texts that precede the next one in the prompt."""
        self._near = Neighbours(before)

    async def text(self, text: str, *, by_model: bool = False) -> str:
        """Returns the filtered text of a message, an answer or an output, which then precedes the next text.
        `by_model`: the prompt shows it as the model's."""
        text = await self.alone(text)
        if self._filters:
            text = await self._beside(text, by_model)
            self._near.add(PromptText(text, by_model))
        return text

    async def images(self, content: cm.Content) -> None:
        """Judges the images of a message, all at the same time."""
        images: list[tuple[InputImage, int]] = []  # with its place in the message's text, where it is one code point
        length = 0
        for part in cm.content_parts(content) if self._filters else ():
            if isinstance(part, InputImage) and part.image_url:
                images.append((part, length))
            length += len(part.text)
        clock = asyncio.get_running_loop().time
        for each in self._filters if images else ():
            if not isinstance(each, JudgesImages):
                continue
            begun_at = clock()
            verdicts = await asyncio.gather(*(each.check_image(self._principal, image) for image, _ in images))
            self._filters_s.observe(clock() - begun_at)
            for verdict, (_, place) in zip(verdicts, images, strict=True):
                self.findings += [
                    msgspec.structs.replace(finding, start=place, end=place + 1, text=IMAGE_EXCERPT)
                    for finding in verdict.findings
                ]
            for verdict in verdicts:
                if verdict.action == "block":
                    raise _refused("content", verdict)

    async def alone(self, text: str) -> str:
        """Returns a filtered text that is judged by itself, without texts before it."""
        self._within(text)
        return await self._checked(text, "content") if self._filters else text

    async def call(self, call: cm.NewCall) -> cm.NewCall:
        """Returns the filtered call of an answer that a client sends as part of its history. Its arguments may be
        redacted; a finding in a name refuses the command."""
        self._within(call.arguments)
        if not self._filters:
            return call
        names = f"{call.call_id} {call.name}\n"
        original = names + call.arguments
        text = await self._beside(await self._checked(original, "content"), True)
        self._near.add(PromptText(f"{call.name} {call.arguments}", True))
        if text == original:
            return call
        if not text.startswith(names):
            raise _refused("content")
        return msgspec.structs.replace(call, arguments=text[len(names) :])

    async def output(self, output: str, unknown: str = "") -> str:
        """Returns a tool's filtered output. `unknown` is the id of a call that does not exist in the conversation,
        which the client made up; it is judged too. "" if the call is known."""
        if unknown and self._filters and await self._checked(unknown, "content") != unknown:
            raise _refused("content")
        return await self.text(output)

    async def about(self, settings: Named, present: Tools = ()) -> Named:
        """Returns a session's settings with title, instructions and tools filtered. Tools that equal `present`, the
        session's own, were judged before and are not judged again."""
        for name in ("title", "instructions"):
            original = getattr(settings, name)
            if isinstance(original, str) and self._filters and (text := await self.alone(original)) != original:
                settings = msgspec.structs.replace(settings, **{name: text})
        if settings.tools and settings.tools is not UNSET:
            tools = await self.tools(settings.tools, present)
            if tools is not settings.tools:
                settings = msgspec.structs.replace(settings, tools=tools)
        return settings

    async def tools(self, tools: Tools, present: Tools = ()) -> Tools:
        """Returns functions that the model may call, filtered: each is judged as one text, with all strings of its
        schema. Tools that equal `present` are returned as they are."""
        if not self._filters or not tools or tools == present:
            return tools
        return tuple([await self._tool(tool) for tool in tools])

    async def format(self, options: Any) -> None:
        """Judges the schema that an answer must follow, because its words reach the answer. Raises BadInput if a filter
        acts on it."""
        schema_format = options.format if options is not None else None
        if self._filters and schema_format and len(schema_format) > 1:
            text = "\n".join(strings_of(schema_format))
            if await self._checked(text, "text") != text:
                raise _refused("text")

    # -- the chain ---------------------------------------------------------------------------------------------------

    async def _tool(self, tool: Tool) -> Tool:
        text = "\n".join((tool.name, tool.description or "", *strings_of(tool.parameters)))
        known = len(self.findings)
        if await self._checked(text, "tools") == text:
            return tool
        joined, self.findings[known:] = self.findings[known:], []
        description = None if tool.description is None else await self._checked(tool.description, "tools")
        parameters = await self._redacted(tool.parameters, prose=False)
        redacted = msgspec.structs.replace(tool, description=description, parameters=parameters)
        if redacted == tool:  # in its name, or over two of its strings
            self.findings += joined
            raise _refused("tools")
        return await self._tool(redacted)

    async def _redacted(self, value: Any, *, prose: bool) -> Any:
        """Returns a schema or value in which prose is redacted. Raises BadInput if a filter would redact a string that
        is not prose."""
        if isinstance(value, dict):
            for key in value:
                await self._redacted(key, prose=False)
            return {key: await self._redacted(each, prose=prose or key in PROSE) for key, each in value.items()}
        if isinstance(value, list):
            return [await self._redacted(each, prose=prose) for each in value]
        if isinstance(value, str) and value:
            text = await self._checked(value, "tools")
            if text != value and not prose:
                raise _refused("tools")
            return text
        return value

    def _within(self, text: str) -> None:
        if len(text) > self._bytes_max or len(text.encode("utf-8", "surrogatepass")) > self._bytes_max:
            raise TooLarge("content_too_large", f"A message may take {self._bytes_max} bytes at most.", param="content")

    async def _checked(self, text: str, param: str) -> str:
        clock = asyncio.get_running_loop().time
        begun_at = clock()
        try:
            for each in self._filters:
                verdict = await each.check(self._principal, text)
                self.findings += quoted(verdict.findings, text)
                if verdict.action == "block":
                    raise _refused(param, verdict)
                if verdict.action == "redact":
                    text = text[: verdict.start] + verdict.replacement + text[verdict.end :]
        finally:
            self._filters_s.observe(clock() - begun_at)
        await asyncio.sleep(0)  # a long history is no single step of the loop
        return text

    async def _beside(self, text: str, by_model: bool) -> str:
        """Returns a text after it was filtered together with the end of the texts before it."""
        known: set[str] = set()
        for before in self._near.ends(by_model) if text else ():
            joined, begin = before.join(text)
            if joined in known:
                continue
            known.add(joined)
            last, first = len(before.end), len(before.end) + len(before.joint)
            for each in self._filters:
                verdict = each.check_seam(self._principal, joined, last, first)
                moved = [
                    msgspec.structs.replace(finding, start=0, end=max(0, begin + finding.end - first))
                    for finding in verdict.findings
                ]
                self.findings += quoted(moved, text)
                if verdict.action == "block":
                    raise _refused("content", verdict)
                if verdict.action == "redact":
                    text = verdict.replacement + text[begin + verdict.end - first :]
                    joined, begin = before.join(text)
            await asyncio.sleep(0)  # nor are all seams of a text
        return text


def strings_of(value: Any) -> Iterator[str]:
    """Yields every string of a JSON value in order, including names of fields, and numbers as text."""
    rest = [value]
    while rest:
        match rest.pop():
            case str() as text:
                yield text
            case dict() as fields:
                for name, each in reversed(fields.items()):
                    rest += (each, name)
            case list() | tuple() as each:
                rest += reversed(each)
            case bool() | None:
                continue
            case int() | float() as number:
                yield str(number)


def _refused(param: str, verdict: Verdict | None = None) -> BadInput:
    message = verdict.message if verdict is not None else ""
    return BadInput("content_filter", message or "This message was refused.", param=param)
