"""Renders whole conversations with a chat template that is no sum of pieces, and says what of the text is whose.

Templates differ in what they take: some refuse a system message, two messages of one role, outputs of tools. `probe`
finds that out once, and `fold` puts a conversation into the shape that the template takes, as llama.cpp and Ollama do.

What people and models wrote may never become special tokens, so that the rendering has to be told apart again: the
template is rendered a second time with marks in the place of their words. White space at their ends, and what the
template itself looks for, stay beside the marks, so that it does the same. Where the marks do not lead to the same
text all the same, special tokens' spellings are cut in what they wrote, and no token ids are taken over.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from inference.template_environment import FAILURES
from sessions.model.errors import BadInput
from sessions.model.types import Json, Tokens
from sessions.ports import ChatMessage
from sessions.turn.tool_call_parser import CLOSE, OPEN

GLUE: Final = "\n\n"  # between what is joined
_NONCHARACTERS: Final = [chr(code) for code in range(0xFDD0, 0xFDF0)]  # Unicode keeps them free for programs
_THOUGHTS: Final = re.compile(r"think|thought|reason|channel", re.IGNORECASE)
_SYSTEM, _USER, _ANSWER = "Sqsystemq", "Uquserq", "Aqanswerq"
_NEXT: Final = "Nqnextq"
_OPEN, _CLOSE, _GUARD = "<think>", "</think>", "reasoning_content"
THOUGHT_FIELDS: Final = ("thinking", "reasoning_content", "reasoning")  # of messages, as templates name them


class Render(Protocol):
    """A function that renders messages with a template. Raises one of `FAILURES`."""

    def __call__(
        self,
        messages: list[dict[str, Json]],
        *,
        answer: bool,
        tools: list[Json] | None = None,
        at: int = 0,
        thinking: str = "",
    ) -> str: ...


class TemplateShape(msgspec.Struct, frozen=True):
    """Which kinds of conversations a template accepts."""

    system: bool = True  # a system message before all others
    later_system: bool = True  # system messages between others
    developer: bool = True
    neighbours: bool = True  # two messages of one role, one after the other
    tool: bool = True  # outputs of tools without calls that name them
    calls: str = ""  # whether calls have a place, with their arguments as "objects" or as "texts"
    short_ids: bool = False  # ids of calls have nine letters and digits
    one_call: bool = False  # of several calls in a message only the first is shown
    thoughts: str = ""  # the field that thoughts before a call have a place in
    thoughts_alone: bool = False  # before a call, thoughts and text have one place together
    guard: bool = False  # text is cut at `</think>`, unless the thoughts before it are in `reasoning_content`

    @property
    def foldings(self) -> tuple[str, ...]:
        """The names of the kinds of messages (`system`, `neighbours`, `tool`) that are merged into others, because the
        template does not accept them."""
        outputs = self.tool or bool(self.calls)
        folded = {"system": not self.system, "neighbours": not self.neighbours, "tool": not outputs}
        return tuple(name for name, holds in folded.items() if holds)


class Piece(NamedTuple):
    """A part of a prompt: `special` where special tokens are parsed in it, `tokens` where its ids are known."""

    text: str
    special: bool
    tokens: Tokens | None = None


class _TemplateFails(Exception):
    def __init__(self, why: Exception) -> None:
        super().__init__(str(why))
        self.why = why


class _Text(msgspec.Struct, eq=False):
    """Text that a client or a model wrote. `whole`: the text of `tokens`, which includes calls behind the words."""

    value: str
    by_model: bool
    whole: str
    tokens: Tokens | None


class _Turn(msgspec.Struct):
    role: str
    content: list[_Text | str]  # a plain string is added by the fold
    calls: tuple[tuple[str, str, str], ...] = ()
    call_id: str | None = None
    name: str | None = None
    thoughts: list[_Text | str] = []
    guarded: bool = False  # the thoughts, if any, are in the field that keeps the text from being cut


class _Part(NamedTuple):
    """The part of a text that one mark in a rendering stands for."""

    text: _Text
    begin: int
    end: int


class _Mark(NamedTuple):
    part: _Part
    spelled: str  # the part's spelling in the rendering


def probe(render: Render) -> TemplateShape:
    """Finds out which conversations a template accepts."""
    user, answer = _message("user", _USER), _message("assistant", _ANSWER)
    system, words = _message("system", _SYSTEM), _message("user", _NEXT)
    shape = TemplateShape(
        system=_shows(render, [system, user], _SYSTEM, _USER),
        later_system=_shows(render, [user, answer, system, words], _USER, _SYSTEM, _NEXT),
        developer=_shows(render, [_message("developer", _SYSTEM), user], _SYSTEM, _USER),
        neighbours=_shows(render, [user, words], _USER, _NEXT)
        and _shows(render, [user, answer, _message("assistant", _SYSTEM), words], _ANSWER, _SYSTEM, _NEXT),
        tool=_shows(render, [user, answer, _message("tool", _NEXT)], _NEXT),
    )
    cut = _message("assistant", f"{_ANSWER}{_CLOSE}{_SYSTEM}")
    if _shows(render, [user, {**cut, _GUARD: ""}, words], f"{_ANSWER}{_CLOSE}{_SYSTEM}"):
        guard = not _shows(render, [user, cut, words], _ANSWER, _SYSTEM)
        shape = msgspec.structs.replace(shape, guard=guard)
    for calls in ("objects", "texts"):
        for short_ids in (False, True):
            made = msgspec.structs.replace(shape, calls=calls, short_ids=short_ids)
            call = ("call_1", "Fqcallq", json.dumps({"p": _ANSWER}))
            turns = [
                _Turn("user", [_USER]),
                _Turn("assistant", [""], calls=(call,)),
                _Turn("tool", [_NEXT], call_id=call[0], name=call[1]),
            ]
            if _shows(render, [_rendered(turn, made) for turn in turns], call[1], _ANSWER, _NEXT):
                return _probe_calls(render, made, turns)
    return shape


def _probe_calls(render: Render, shape: TemplateShape, turns: list[_Turn]) -> TemplateShape:
    """Finds out whether a message may have several calls, and in which field a template shows the thoughts before a
    call. `turns` are a question, an answer with one call, and the call's output."""
    user, answer, output = turns
    both = msgspec.structs.replace(answer, calls=(*answer.calls, ("call_2", "Fqsecondq", answer.calls[0][2])))
    several = [_rendered(turn, shape) for turn in (user, both, output)]
    shape = msgspec.structs.replace(
        shape, one_call=_shows(render, several, answer.calls[0][1]) and not _shows(render, several, "Fqsecondq")
    )
    for name in THOUGHT_FIELDS:
        made = msgspec.structs.replace(shape, thoughts=name)
        thinking = msgspec.structs.replace(answer, thoughts=[_SYSTEM])
        if _shows(render, [_rendered(turn, made) for turn in (user, thinking, output)], _SYSTEM):
            saying = msgspec.structs.replace(thinking, content=[_USER])
            alone = not _shows(render, [_rendered(turn, made) for turn in (user, saying, output)], _SYSTEM)
            return msgspec.structs.replace(made, thoughts_alone=alone)
    return shape


def call_text(name: str, arguments: str) -> str:
    """Returns a tool call as Hermes-style models write it."""
    value = _read_json(arguments)
    return f"{OPEN}\n{json.dumps({'name': name, 'arguments': value}, ensure_ascii=False)}\n{CLOSE}"


def content_text(message: ChatMessage) -> str:
    """Returns a message's text, followed by its calls."""
    return "\n".join([message.text] * bool(message.text) + [call_text(name, args) for _, name, args in message.calls])


class Conversations:
    """Renders whole conversations with one template. Immutable."""

    def __init__(self, render: Render, shape: TemplateShape, literals: frozenset[str], specials: Sequence[str]) -> None:
        """`literals`: texts that the template may look for in messages; `specials`: the spellings of special tokens."""
        self._render = render
        self._shape = shape
        self._specials = specials
        sought = [literal for literal in literals if len(literal) > 2 and _is_tag(literal)]
        plain = [text for text in sought if not any(special in text for special in specials)]
        thoughts = [text for text in sought if _THOUGHTS.search(text) and text.strip() in specials]
        self._sought = {False: _one_of(plain), True: _one_of([*plain, *thoughts])}  # by whether a model wrote

    def pieces(
        self,
        instructions: str | None,
        tools: list[Json],
        messages: Sequence[ChatMessage],
        at: int,
        *,
        answer: bool,
        thinking: str = "",
    ) -> list[Piece]:
        """Returns the pieces of a whole prompt in order, rendered as on the day of `at` (unix ms). It ends where an
        answer begins, or, without `answer`, where the user's next words begin. Raises BadInput if the template refuses
        the conversation."""
        conversation = [*messages] if answer else [*messages, ChatMessage(role="user", text=_NEXT)]
        native, plain = self._shape, msgspec.structs.replace(self._shape, calls="")
        try:
            return self._pieces(native, instructions, tools, conversation, at, answer=answer, thinking=thinking)
        except _TemplateFails as exc:
            failure = exc.why
        if native.calls and any(message.calls for message in messages):  # such as several where it takes one
            try:
                return self._pieces(plain, instructions, tools, conversation, at, answer=answer, thinking=thinking)
            except _TemplateFails as exc:
                failure = exc.why
        raise refused(failure, tools)

    def _pieces(
        self,
        shape: TemplateShape,
        instructions: str | None,
        tools: list[Json],
        messages: list[ChatMessage],
        at: int,
        *,
        answer: bool,
        thinking: str = "",
    ) -> list[Piece]:
        turns = _fold(shape, instructions, messages)
        texts = [each for turn in turns for each in (*turn.thoughts, *turn.content) if isinstance(each, _Text)]
        frame, cut = _unused(texts, turns, tools)
        parts: list[_Part] = []

        def rendered(words: Callable[[_Text], str], harmless: Callable[[str], str]) -> str:
            try:
                shown = [_rendered(turn, shape, words, harmless) for turn in turns]
                told = _each_text(tools, harmless)
                return self._render(shown, answer=answer, tools=told, at=at, thinking=thinking)
            except FAILURES as exc:
                raise _TemplateFails(exc) from exc

        def harmless(text: str) -> str:
            for special in self._specials:
                text = text.replace(special, special[0] + cut + special[1:])
            return text

        text = rendered(lambda each: each.value, lambda each: each)
        marked = rendered(lambda each: self._marked(each, parts, frame), harmless)
        cuts = re.compile(f"{cut}|\\\\u{ord(cut):04x}")
        split = re.split(f"{frame}([0-9]+){frame}", marked)
        ours = [cuts.sub("", each) for each in split[::2]]
        theirs = _spelled(text, ours, [parts[int(number)] for number in split[1::2]])
        if theirs is None:
            marked = rendered(lambda each: harmless(each.value), harmless)
            pieces = [Piece(text, True) for text in cuts.split(marked)]
            if not answer:
                last = max(index for index, each in enumerate(pieces) if _NEXT in each.text)
                pieces[last:] = [Piece(pieces[last].text.rpartition(_NEXT)[0], True)]
            return [piece for piece in pieces if piece.text]
        calling = [turn for turn in turns if turn.calls]
        marks = [_Mark(parts[int(each)], spelled) for each, spelled in zip(split[1::2], theirs, strict=True)]
        return list(_Walk(text, split[::2], marks, cuts, calling, None if answer else texts[-1]))

    def _marked(self, text: _Text, parts: list[_Part], frame: str) -> str:
        marked, at = [], 0
        for odd, span in enumerate(self._sought[text.by_model].split(text.value)):
            core = span.strip()
            if odd % 2 or not core:
                marked.append(span)
            else:
                begin = at + span.index(core)
                parts.append(_Part(text, begin, begin + len(core)))
                mark = f"{frame}{len(parts) - 1}{frame}"
                marked.append(span.replace(core, mark, 1))
            at += len(span)
        return "".join(marked)


class _Walk:
    """Goes through a rendering and its marks, and yields the prompt's pieces."""

    def __init__(
        self,
        text: str,
        scaffold: list[str],
        marks: list[_Mark],
        cuts: re.Pattern[str],
        calling: list[_Turn],
        end: _Text | None,
    ) -> None:
        """`scaffold`: the template's texts between the marks, one more than there are marks."""
        self._text = text
        self._scaffold = scaffold
        self._marks = marks
        self._cuts = cuts
        self._calling = [turn for turn in calling if isinstance(turn.content[0], _Text) and not turn.content[0].value]
        self._end = end
        self._done = 0  # characters of the text that were yielded

    def __iter__(self) -> Iterator[Piece]:
        at = 0
        for scaffold, mark in zip_longest(self._scaffold, self._marks):
            yield from self._ours(scaffold, at)
            at += len(self._cuts.sub("", scaffold))
            if mark is None or mark.part.text is self._end:
                return
            if at >= self._done:
                yield self._theirs(mark, at)
            at += len(mark.spelled)

    def _theirs(self, mark: _Mark, at: int) -> Piece:
        """Returns the piece with the text of a message at a mark: the whole text if the rendering has it as it was
        written, otherwise only the part that the mark stands for."""
        begin, text = at - mark.part.begin, mark.part.text
        wholes = [(text.value, text.tokens if text.whole == text.value else None)]
        if text.tokens is not None:
            wholes.insert(0, (text.whole, text.tokens))
        for whole, tokens in wholes:
            if begin >= self._done and self._text.startswith(whole, begin):
                self._done = begin + len(whole)
                return Piece(whole, False, tokens)
        self._done = at + len(mark.spelled)
        return Piece(mark.spelled, False)

    def _ours(self, scaffold: str, at: int) -> Iterator[Piece]:
        """Yields the pieces of the template's own text between two marks. Answers that consist only of calls have no
        marks, and their pieces are found here."""
        for each in self._cuts.split(scaffold):
            end = at + len(each)
            while self._calling and max(at, self._done) < end:
                answer = self._calling[0].content[0]
                assert isinstance(answer, _Text)
                begin = self._text.find(answer.whole, max(at, self._done), end)
                if answer.tokens is None or begin < 0:
                    break
                yield from _piece(self._text[max(at, self._done) : begin])
                yield Piece(answer.whole, False, answer.tokens)
                self._done = begin + len(answer.whole)
                self._calling.pop(0)
            yield from _piece(self._text[max(at, self._done) : end])
            self._done = max(self._done, end)
            at = end


def refused(failure: Exception, tools: Sequence[Json]) -> BadInput:
    """Returns the error for a conversation at which a template fails."""
    why = str(failure) or type(failure).__name__
    where = "these tools" if tools else "this conversation"
    return BadInput(
        "invalid_request",
        f"The model's chat template fails with {where}: {why}. Change or leave out what it names.",
        param="tools" if tools else "content",
    )


# -- folding ---------------------------------------------------------------------------------------------------


def _fold(shape: TemplateShape, instructions: str | None, messages: Sequence[ChatMessage]) -> list[_Turn]:
    """Returns the conversation's turns in the shape that the template accepts."""
    first_messages = [] if instructions is None else [ChatMessage(role="system", text=instructions)]
    turns: list[_Turn] = []
    for message in [*first_messages, *messages]:
        turns.append(_turn(shape, message, first=not turns))
    if shape.one_call:
        turns = _one_by_one(turns)
    if turns and turns[0].role == "system" and not shape.system:
        user = next((turn for turn in turns if turn.role == "user"), None)
        system = turns.pop(0) if user is not None else turns[0]
        if user is None:
            system.role = "user"
        else:
            user.content[:0] = [*system.content, GLUE]
    if shape.neighbours:
        return turns
    joined: list[_Turn] = []
    for turn in turns:
        last = joined[-1] if joined else None
        if last is not None and last.role == turn.role != "tool" and not last.calls:
            last.content += [GLUE, *turn.content]
            last.calls = turn.calls
        else:
            joined.append(turn)
    return joined


def _turn(shape: TemplateShape, message: ChatMessage, *, first: bool) -> _Turn:
    role: str = message.role
    if role == "developer" and not (first and shape.developer):
        role = "system"
    if role == "system" and not (first or shape.later_system):
        role = "user"
    whole, by_model = content_text(message), role == "assistant"
    if shape.guard and by_model and not (message.thoughts or message.calls):
        opened = message.text.startswith(_OPEN)
        thoughts, _, words = message.text.removeprefix(_OPEN).partition(_CLOSE) if opened else ("", "", message.text)
        if _CLOSE in words:
            words = words.lstrip("\n") if opened else words
            own = _Text(words, True, words, None if opened else message.tokens)
            return _Turn(role, [own], thoughts=[_Text(thoughts, True, thoughts, None)] * opened, guarded=True)
    if message.calls and not shape.calls:
        return _Turn(role, [_Text(whole, by_model, whole, message.tokens)])
    text = _Text(message.text, by_model, whole, message.tokens)
    if role == "tool" and not (shape.calls and message.call_id) and not shape.tool:
        return _Turn("user", ["<tool_response>\n", text, "\n</tool_response>"])
    made = _Turn(role, [text], message.calls, message.call_id, message.name)
    if message.thoughts and shape.thoughts:
        made.thoughts = [_Text(message.thoughts, by_model, message.thoughts, None)]
        if made.calls and shape.thoughts_alone:
            made.thoughts += [GLUE, text] * bool(message.text)
            made.content = [""]
    return made


def _one_by_one(turns: list[_Turn]) -> list[_Turn]:
    """Returns the turns with each call in a message of its own, before its output."""
    apart: list[_Turn] = []
    waiting = list(turns)
    while waiting:
        turn = waiting.pop(0)
        if len(turn.calls) < 2:
            apart.append(turn)
            continue
        count = next((at for at, each in enumerate(waiting) if each.role != "tool"), len(waiting))
        outputs, waiting = waiting[:count], waiting[count:]
        for call in turn.calls:
            own = [each for each in outputs if each.call_id == call[0]]
            first = call is turn.calls[0]
            apart += [msgspec.structs.replace(turn, calls=(call,)) if first else _Turn(turn.role, [""], (call,)), *own]
            outputs = [each for each in outputs if each not in own]
        apart += outputs
    return apart


def _rendered(
    turn: _Turn,
    shape: TemplateShape,
    words: Callable[[_Text], str] = lambda text: text.value,
    harmless: Callable[[str], str] = lambda text: text,
) -> dict[str, Json]:
    """Returns a turn as the message (role, content, calls) that the template expects. `words` returns the text to put
    in for a text of a person or model; `harmless` changes texts of calls."""
    thoughts, content = (
        "".join(each if isinstance(each, str) else words(each) for each in parts)
        for parts in (turn.thoughts, turn.content)
    )
    message: dict[str, Json] = {"role": turn.role, "content": content}
    if turn.guarded:
        message[_GUARD] = thoughts
    elif thoughts:
        message[shape.thoughts] = thoughts
    if turn.calls:
        message["tool_calls"] = [
            {
                "type": "function",
                "id": harmless(_call_id(call_id, shape)),
                "function": {"name": harmless(name), "arguments": _each_text(_arguments(arguments, shape), harmless)},
            }
            for call_id, name, arguments in turn.calls
        ]
    if turn.role == "tool" and turn.call_id is not None:
        message["tool_call_id"] = harmless(_call_id(turn.call_id, shape))
        if turn.name is not None:
            message["name"] = harmless(turn.name)
    return message


def _call_id(call_id: str, shape: TemplateShape) -> str:
    return hashlib.blake2b(call_id.encode()).hexdigest()[:9] if shape.short_ids else call_id


def _arguments(arguments: str, shape: TemplateShape) -> Json:
    if shape.calls != "objects":
        return arguments
    value = _read_json(arguments)
    return value if isinstance(value, dict) else arguments


def _read_json(arguments: str) -> Json:
    """Returns the value of a call's arguments; the text itself where it is no JSON or cannot be written as UTF-8."""
    try:
        value: Json = json.loads(arguments)
        json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair is no text
    except (ValueError, RecursionError):
        return arguments
    return value


# -- small things -------------------------------------------------------------------------------------------------


def _each_text(value: Any, change: Callable[[str], str]) -> Any:
    """Returns a value with `change` applied to every text in it."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(name): _each_text(inner, change) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_each_text(inner, change) for inner in value]
    return value


def _unused(texts: Sequence[_Text], turns: Sequence[_Turn], tools: Sequence[Json]) -> tuple[str, str]:
    """Returns two characters that occur in no text of a conversation."""
    everything = "".join(text.value for text in texts) + repr([(turn.calls, turn.call_id, turn.name) for turn in turns])
    everything += str(tools)
    free = [sign for sign in _NONCHARACTERS if sign not in everything and f"\\u{ord(sign):04x}" not in everything]
    if len(free) < 2:
        raise _TemplateFails(ValueError("it has every one of Unicode's noncharacters in it"))
    return free[0], free[1]


def _piece(text: str) -> Iterator[Piece]:
    if text:
        yield Piece(text, True)


def _spelled(text: str, ours: list[str], parts: list[_Part]) -> list[str] | None:
    """Returns how each part is spelled in the rendering, as written or escaped as in JSON. None if the rendering is not
    the texts of `ours` with the parts between them."""
    spelled, at = list[str](), len(ours[0])
    if not text.startswith(ours[0]):
        return None
    for part, behind in zip(parts, ours[1:], strict=True):
        value = part.text.value[part.begin : part.end]
        spellings = (value, json.dumps(value, ensure_ascii=False)[1:-1], json.dumps(value)[1:-1])
        spelling = next((each for each in spellings if text.startswith(each + behind, at)), None)
        if spelling is None:
            return None
        spelled.append(spelling)
        at += len(spelling) + len(behind)
    return spelled if at == len(text) else None


def _is_tag(text: str) -> bool:
    return any(character.isalpha() for character in text) and not text.isalnum()


def _one_of(texts: list[str]) -> re.Pattern[str]:
    """Returns a pattern for the longest of the texts; without texts it matches nothing."""
    return re.compile(f"({'|'.join(map(re.escape, sorted(texts, key=len, reverse=True)))})" if texts else r"(?!)()")


def _message(role: str, text: str) -> dict[str, Json]:
    return {"role": role, "content": text}


def _shows(render: Render, messages: list[dict[str, Json]], *words: str) -> bool:
    """Returns whether a rendering of the messages contains all the words."""
    try:
        text = render(messages, answer=True)
    except FAILURES:
        return False
    return all(word in text for word in words)
