"""Parses thoughts and tool calls out of a model's text: the last stage between the pipeline and the log.

The hermes format, which ChatML models speak:

    text <tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call> more text or calls

Text is passed on as text, and a call as its beginning and then its arguments as they come. Held back are: what may
become a tag, white space around calls, a call until its name is known, and the last brace of its arguments until the
call is complete. A client gets the calls of its functions as the model wrote them, also those of a function that does
not exist and those with arguments that do not fit: it can tell the model, which then does better. Only functions that
are `strict`, and those that the server carries out, are checked: their calls are passed on only once they are complete
and fit the schema (otherwise `MisfitCall` is raised, and the next run must follow the schema). A call whose name cannot
be read is text.

    released:  some text <tool_call>{"name": "f", "arguments": {"a
    ledger:    some text |
    tail:                 <tool_call>{"name": "f", "arguments": {"a      raw, up to what went on

Inside a call no token goes to the ledger: the raw text stays in the tail. A run that continues the answer first feeds
the tail to a new parser. The resulting pieces were written before, so it continues exactly where the log ends, and a
call is made once.

Thoughts come before text or a call, between a model's own marks, and are pieces of their own; the tokens of the marks
and of the white space around them belong to what follows. If the mark behind a thought is a token, only that ends it
(`sessions.turn.closing_marks`). If the marks occur in no text (`CallFormat.verbatim`), white
space around a thought is text. Thoughts' tokens go to the ledger as they come, since it has
all that the model wrote:

    released:  <think>\\nHm, 2 + 2 is 4.\\n</think>\\n\\nFour
    pieces:    Thought("Hm, 2 + 2 is 4."), Text("Four")

If a model writes in channels (`sessions.turn.channels`), thoughts, texts and calls are messages with a header each. A
header is held back until it is complete, and its tokens belong to what follows it. Two texts in a row are separated by
a blank line, and so are two thoughts.

All this takes time linear in the text, whatever it is: each search goes on where the one before ended, and behind
FAILURES_MAX marks in the same text that began no call, the rest of what was read for them is text.

Pure; one object per engine run. Does not know engines or the log.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, TypeGuard

from sessions.machine import event_writer
from sessions.model.errors import Internal
from sessions.model.generation import ThoughtMarks
from sessions.model.types import Json, Sampling, TextOptions, Tool
from sessions.turn import call_text
from sessions.turn.call_formats import FORMATS, CallFormat
from sessions.turn.call_text import CallReading, Reader, any_of
from sessions.turn.channels import ANSWER_ENDS, CHANNEL, CONSTRAIN, END, MARKS, MESSAGE, START, Header, read_header
from sessions.turn.closing_marks import ClosingMarks
from sessions.turn.output_pipeline import Release, beginnings, held_back, reach

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"
CALL_FORMAT: Final = "tool_call"  # the name of the format of a call that must be made
NAME_CHARS_MAX: Final = 256  # of a function that a model calls
HEAD_CHARS_MAX: Final = 4096  # of a call up to its arguments: a name may be all escapes
FAILURES_MAX: Final = 8  # calls that fail one inside the other, before what was read for them is text

_HEAD: Final = re.compile(
    r'\s*\{\s*"name"\s*:\s*(?P<name>"(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)
_VERBATIM_HEAD: Final = re.compile(r'(?P<name>"(?:[^"\\]|\\.)*")\n')
_NO_PARAMETERS: Final[dict[str, Json]] = {"type": "object", "properties": {}, "additionalProperties": False}
_VALUES: Final = frozenset({"const", "enum", "default", "examples"})  # keywords that hold values, not schemas
_OF_SCHEMAS: Final = frozenset({"properties", "patternProperties", "$defs", "definitions"})  # names to schemas
_TAIL: Final = re.compile(r"\s*\}\s*")


class MisfitCall(Internal):
    """Raised for a call of a checked tool whose arguments do not fit its parameters."""

    def __init__(self, tool: Tool, why: str) -> None:
        super().__init__("tool_call_invalid", f"The model called {tool.name!r} with arguments that do not fit: {why}.")
        self.tool = tool


class ParsedCall(NamedTuple):
    """A complete call of a checked tool. Its arguments are a JSON object, still to be checked against the tool's
    parameters."""

    tool: Tool
    arguments: str


class ParsedRelease(NamedTuple):
    """A release after parsing: its pieces, the token ids that the pieces cover completely, the raw text behind those,
    and the calls that the pieces complete. Those calls must be checked before the pieces are passed on
    (`MisfitCall`)."""

    pieces: tuple[event_writer.Piece, ...]
    tokens: bytes
    tail: str
    calls: tuple[ParsedCall, ...] = ()


def forced_tools(sampling: Sampling, tools: Sequence[Tool]) -> tuple[Tool, ...]:
    """Returns the functions of which the answer must call one; empty if the model need not call any."""
    match sampling.tool_choice:
        case "required":
            return tuple(tools)
        case {"type": "function", "name": name}:
            return tuple(tool for tool in tools if tool.name == name)
    return ()


def constrained_output(sampling: Sampling, tools: Sequence[Tool]) -> TextOptions:
    """Returns the output format that makes the engine write a call of one of these tools: one JSON object, with nothing
    around it."""
    shapes: list[Json] = []
    for index, tool in enumerate(tools):
        place = "#/properties/arguments" if len(tools) == 1 else f"#/anyOf/{index}/properties/arguments"
        shapes.append(
            {
                "type": "object",
                "properties": {
                    "name": {"const": tool.name},
                    "arguments": _placed(tool.parameters or _NO_PARAMETERS, place),
                },
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    schema = shapes[0] if len(shapes) == 1 else {"anyOf": shapes}
    return TextOptions({"type": "json_schema", "name": CALL_FORMAT, "schema": schema})


def _placed(schema: Json, place: str) -> Json:
    """Returns a schema for use inside another one, at `place`: references to its root are changed to point there."""
    if isinstance(schema, list):
        return [_placed(each, place) for each in schema]
    if not isinstance(schema, dict) or "$id" in schema:
        return schema
    placed: dict[str, Json] = {}
    for keyword, value in schema.items():
        if keyword in _OF_SCHEMAS and isinstance(value, dict):
            placed[keyword] = {name: _placed(inner, place) for name, inner in value.items()}
        else:
            placed[keyword] = value if keyword in _VALUES else _placed(value, place)
    reference = schema.get("$ref")
    if isinstance(reference, str) and (reference == "#" or reference.startswith("#/")):
        placed["$ref"] = place + reference[1:]
    return placed


def state_at_ledger(
    thoughts: ThoughtMarks | None,
    tail: str,
    *,
    begun: bool,
    thinking: bool,
    in_text: bool,
    opens: Sequence[str] = (OPEN,),
) -> tuple[bool, bool]:
    """Returns two flags: whether the ledger ends inside a thought, and whether text comes right before its end. The
    first mark in `tail`, the text behind the ledger, shows that; without one, the flags `thinking` and `in_text`, which
    describe the end of what was written. `begun`: the answer has begun; if not, the chat template decides. `opens` are
    the marks of calls."""
    if thoughts is None:
        return False, in_text
    if thoughts.channels:  # each mark may stand behind a thought or a text: what is before the first was written
        return (False, False) if any(mark in tail for mark in MARKS) else (thinking, thinking or in_text)
    marks = (thoughts.close, thoughts.open, *opens)
    first = min(((at, mark) for mark in marks if (at := tail.find(mark)) >= 0), default=(0, ""))[1]
    if first in (thoughts.close, thoughts.open):
        return (first == thoughts.close,) * 2
    if not begun:
        return thoughts.opened, False
    return (thinking and not first,) * 2 if thinking else (False, in_text)


class ToolCallParser:
    """Parses one run's releases into pieces. Call `accept` with each release, then `finish`; both raise MisfitCall if a
    checked call is incomplete. It has many attributes because they are the state of one automaton, which can be fed
    with pieces of any size."""

    def __init__(
        self,
        tools: Sequence[Tool],
        *,
        tail: str = "",
        in_text: bool = False,
        bare: bool = False,
        parallel: bool = True,
        calls: bool = True,
        written: CallFormat = FORMATS["hermes"],
        thoughts: ThoughtMarks | None = None,
        thinking: bool = False,
        heading: bool = False,
        closings: ClosingMarks | None = None,
    ) -> None:
        """`tail` is text written beyond the ledger before this run; `in_text`: text comes right before it; `thinking`:
        the ledger ends inside a thought. `bare`: the whole answer is one call without tags. Without `parallel` the
        answer ends after its first call; without `calls` it has none. `written` is the format of calls. `heading`: a
        header comes next, if the model writes in channels. `closings`: the marks behind thoughts that are tokens; None
        if every one ends its thought."""
        self._tools = {tool.name: tool for tool in tools}
        self._thoughts = thoughts
        self._closings = closings
        self._run_begin = len(tail)  # where the run's own text begins
        self._format = written
        self._starts = written.starts if calls and not bare else ""
        self._opens = written.opens if calls else ()
        self._closes = written.closes or (CLOSE,)  # of a call that is followed
        first = (thoughts.open,) if thoughts is not None else ()
        self._first = (*first, *written.closes) if calls else first  # marks that behind text are text
        self._in_channels = written.channels or (thoughts is not None and thoughts.channels)
        self._marks = MARKS if self._in_channels else (*self._opens, *self._first)
        if self._in_channels or written.verbatim:
            self._first = ()
        self._calls = calls
        self._heading = heading and self._in_channels and not bare
        self._last = _kind(thinking=thinking) if thinking or in_text else None  # what was passed on last
        self._glue = ""  # what tells the message that begins here from the one before
        self._mark = OPEN  # the mark before the call that is being read
        self._lead = ""  # text between this call and the one before, if this one has no mark
        self.thinking = thinking
        self.reasoning_tokens = 0  # how many of the released tokens are thoughts
        self._thought_chars = 0  # characters of thoughts since the last release
        self._bare = bare
        self._parallel = parallel
        self.ended = False
        self._whole: list[ParsedCall] = []  # checked calls that are whole, since the last release
        self._in_text = in_text
        self._inside = bare
        self._text = ""  # fed and not looked at, or held back
        self._num_fed = 0  # code points; the indexes of what was fed that follow count from the first one
        self._lead_end = self._blank_end = 0  # where the white space ends that `_text` is known to begin with
        self._marks_start = self._tags_start = 0  # where the next mark, or closing tag, may begin
        self._reading: CallReading | None = None  # of the call at this place
        self._failures = 0  # calls that failed before `_failed_end`
        self._failed_end = 0  # how far the text was read for calls that failed
        self._skipped = (
            0  # code points before it that were not passed on either: white space, the tag of an unknown call
        )
        self._call: _Call | None = None  # inside, once the function is known
        self._tokens = b""  # token ids that the pipeline has released and this parser has not
        self._since = tail  # raw text behind the ledger
        self._tail = tail  # its end, of which the pipeline has not released the tokens
        self._feed(tail)
        if self._text and not (self._inside and self._mark):  # it looks like the beginning of a call or its tag, but
            self._text, self._in_text = "", not self.thinking  # what is held back is not in a tail: it was text
            self._inside, self._heading, self._skipped, self._lead, self._reading = False, False, 0, "", None

    def accept(self, release: Release) -> ParsedRelease:
        self._thought_chars = 0
        self._tokens += release.tokens
        self._since += release.text
        self._tail = release.tail
        pieces = self._feed(release.text)
        if self._thought_chars:
            self.reasoning_tokens += -(-(len(release.tokens) // 4) * self._thought_chars // len(release.text))
        return self._passed(pieces)

    def finish(self, reason: Literal["stop", "max_output_tokens", "content_filter"]) -> ParsedRelease:
        """Ends the answer: text that was held back is passed on as what it turned out to be. If the model ended by
        itself (`reason` stop) an open call ends too; a checked call must then be complete."""
        pieces: list[event_writer.Piece] = []
        while not self.ended and self._inside and (read := self._reader) and (reason == "stop" or not self._mark):
            self._read_calls(read, pieces, ends=True)
            pieces += self._feed("")
        if not self.ended and self._inside and self._reader is None and (self._call is not None or self._text.strip()):
            if reason == "stop":
                self._close(len(self._text), pieces, tag="")
        elif not self.ended and not self._inside and self._is_text(reason) and not self._may_be_mark(reason):
            self._show(self._text, pieces)
            self._text = ""
        if not self._text.strip() and not self._inside:  # nothing that means anything was dropped
            self._text, self._skipped = "", 0
        return self._passed(pieces)

    def _is_text(self, reason: str) -> bool:
        """Returns whether what is held back at the end is text: white space only if the answer was cut off behind text
        that it belongs to."""
        continues_text = self._format.verbatim and self._in_text and not self.thinking
        return bool(self._text.strip()) or (continues_text and reason != "stop")

    def _may_be_mark(self, reason: str) -> bool:
        """Returns whether the text that is held back at the end is probably the beginning of a mark or header, so that
        it is dropped."""
        held = self._text.strip()
        if self._heading:
            return self._mark in (START, CHANNEL) or held.startswith("<|") or reason != "stop"
        is_mark = len(held) > 1 and held in beginnings(self._next_marks())
        return bool(self._format.specials) and reason != "stop" and is_mark

    def _passed(self, pieces: list[event_writer.Piece]) -> ParsedRelease:
        """Returns pieces with the tokens up to the last text that was passed on; tokens of text that is held back are
        not included."""
        num_held = self._skipped + len(self._text)
        calls, self._whole = tuple(self._whole), []
        if self._inside or num_held:
            return ParsedRelease(tuple(pieces), b"", self._since[: len(self._since) - num_held], calls)
        tokens, self._tokens, self._since = self._tokens, b"", self._tail
        return ParsedRelease(tuple(pieces), tokens, self._tail, calls)

    def _feed(self, text: str) -> list[event_writer.Piece]:
        pieces: list[event_writer.Piece] = []
        self._text += text
        self._num_fed += len(text)
        while self._text and not self.ended and self._step(pieces):
            pass
        return pieces

    def _step(self, pieces: list[event_writer.Piece]) -> bool:
        """Reads the next part of the text. Returns whether there may be another part to read now."""
        if self._inside:
            return self._go_on_inside(pieces)
        return self._read_header(pieces) if self._heading else self._go_on(pieces)

    def _go_on(self, pieces: list[event_writer.Piece]) -> bool:
        """Reads text or thoughts, up to a mark or to what may become one. Returns whether there may be more to read
        now."""
        before, marks, begin = len(self._text), self._next_marks(), self._begin
        if self._starts and not (self.thinking or self._in_text):
            begun = self._text[max(0, self._lead_end - begin) :].lstrip(self._format.between or None)
            marked = any(mark.startswith(begun[: len(mark)]) for mark in marks)
            if begun and begun[0] in self._starts and not marked and self._may_be_bare(begun):
                self._skipped += before - len(begun)
                self._lead = self._text[: before - len(begun)].lstrip()
                self._text, self._inside, self._mark = begun, True, ""
                return True
            if not begun:
                self._lead_end = begin + before
                return False
        match = call_text.scan(any_of(marks), self._text, max(0, self._marks_start - begin))
        while match is not None and self._is_quoted(match[0], begin + match.start()):
            match = call_text.scan(any_of(marks), self._text, match.end())
        at, mark = (match.start(), match[0]) if match is not None else (-1, "")
        free = at if at >= 0 else before - held_back(self._text, beginnings(marks), reach(marks))
        is_blank = min(free, max(0, self._blank_end - begin))
        blank = free - is_blank - len(self._text[is_blank:free].rstrip())
        blank = free if blank == free - is_blank else blank
        if not mark:
            self._marks_start = begin + max(0, before - reach(marks))
            self._blank_end = begin + free if blank == free else self._blank_end
        shown = self._text[: free - blank]
        if mark in self._first and (shown or self._in_text) and not self.thinking:
            shown, blank = self._text[: at + len(mark)], 0  # behind text it is text
            mark = ""
        elif self._format.verbatim and (shown or self._in_text) and mark and mark == self._thought_open:
            shown, blank = self._text[:at], 0
        if shown:
            self._show(shown, pieces)
            self._skipped = 0
        if self.thinking:
            self._thought_chars += len(shown) + (blank + len(mark) if mark else 0)
        self._text = self._text[at + len(mark) :] if mark else self._text[len(shown) :]
        if mark:
            self._skipped += blank + len(mark)
            self._mark = mark
            if self._in_channels:
                if mark not in (MESSAGE, CONSTRAIN):  # outside a header these two mean nothing
                    self._heading, self.thinking, self._in_text = True, False, False
            else:
                self._inside = mark in self._opens
                self._in_text = self._format.verbatim and self.thinking and not self._inside
                self.thinking = mark == self._thought_open
        return len(self._text) < before

    def _is_quoted(self, mark: str, place: int) -> bool:
        """Returns whether the mark at a place of all that was fed is part of a thought that only spells it."""
        closes = self.thinking and self._thoughts is not None and mark == self._thoughts.close
        return closes and self._closings is not None and not self._closings.is_at(place - self._run_begin)

    def _read_header(self, pieces: list[event_writer.Piece]) -> bool:
        """Reads the header of a message once it is complete, and begins the call, thought or text that it announces. A
        message without a header is text. Returns False if more text is needed."""
        begun = self._mark if self._mark in (START, CHANNEL) else ""
        try:
            header = read_header(begun + self._text)
        except ValueError:
            header = Header(len(begun))
        if header is None:
            return False
        end = header.end - len(begun)
        self._skipped += end
        self._text, self._heading = self._text[end:], False
        if not header.whole:
            return True
        name = header.recipient if header.recipient in self._tools else header.function
        if self._calls and _is_name(name):
            self._inside, self._glue = True, ""
            self._begin_call(name, pieces)
            return True
        self.thinking = header.channel == "analysis" or bool(header.recipient and not header.function)
        self._glue = "\n\n" if self._last is _kind(thinking=self.thinking) else ""
        return True

    @property
    def _reader(self) -> Reader | None:
        """The function that reads the call at this place; None if its arguments are passed on as they come."""
        if self._bare:
            return None
        return self._format.read if self._mark else self._format.read_bare or self._format.read

    def _may_be_bare(self, text: str) -> bool:
        return self._format.may_be_bare(text, self._tools)

    @property
    def _begin(self) -> int:
        """The index of the first code point of `_text` among all that were fed."""
        return self._num_fed - len(self._text)

    def _next_marks(self) -> tuple[str, ...]:
        """Returns the marks that may end the text, or the thought, that is being read."""
        if self.thinking and self._thoughts is not None and not self._in_channels:
            return (self._thoughts.close, *(self._opens if self._format.ends_thoughts else ()))
        return self._marks

    @property
    def _thought_open(self) -> str:
        return "" if self._thoughts is None else self._thoughts.open

    def _show(self, text: str, pieces: list[event_writer.Piece]) -> None:
        """Passes text or a thought on, without white space at the beginning of the message."""
        shown = text if self._in_text else text.lstrip()
        if shown:
            self._last = _kind(thinking=self.thinking)
            pieces.append(self._last(self._glue + shown))
            self._in_text, self._glue = True, ""

    def _go_on_inside(self, pieces: list[event_writer.Piece]) -> bool:
        if (read := self._reader) is not None:
            return self._read_calls(read, pieces)
        if self._call is None:
            head = None
            if self._tags_start - self._begin < HEAD_CHARS_MAX:  # else it was looked for in as much already
                head = (_VERBATIM_HEAD if self._format.verbatim else _HEAD).match(self._text, 0, HEAD_CHARS_MAX)
            name = _string(head["name"]) if head is not None else None
            if head is None or not _is_name(name):
                return self._close_at_tag(pieces)
            self._text = self._text[head.end() :]
            self._skipped += head.end()
            self._begin_call(name, pieces)
        assert self._call is not None
        arguments = self._call.scan(self._text)
        if arguments:
            if _is_checked(self._call.tool):
                self._skipped += len(arguments)
            else:
                pieces.append(event_writer.CallArguments(arguments))
            self._text = self._text[len(arguments) :]
        return (self._call.whole or self._call.cut) and self._close_at_tag(pieces)

    def _begin_call(self, name: str, pieces: list[event_writer.Piece]) -> None:
        """Begins a call whose name was read. A call of a checked tool is held back until it is complete."""
        self._call, self._last = _Call(self._tool(name), *self._closes if self._format.verbatim else ()), None
        if not _is_checked(self._call.tool):
            self._in_text, self._skipped = False, 0
            pieces.append(event_writer.CallBegin(name))

    def _read_calls(self, read: Reader, pieces: list[event_writer.Piece], *, ends: bool = False) -> bool:
        """Reads calls with `read` once they are complete; text that is no call is passed on as text. `ends`: no more
        text comes. Returns whether there may be more to read now."""
        try:
            if not self._mark and not self._may_be_bare(self._text):
                raise ValueError("no call")
            self._reading = self._reading or CallReading(read, self._tools)
            calls = self._reading.feed(self._text, ends=ends)
            if calls is None:
                return False
            if not calls or not all(_is_name(name) for name, _ in calls):
                raise ValueError("no call")
        except (ValueError, RecursionError):
            self._pass_failed(pieces)
            return bool(self._text)
        end, self._reading = self._reading.at, None
        for name, text in calls if self._parallel else calls[:1]:
            tool = self._tool(name)
            if _is_checked(tool):
                self._whole.append(_whole_call(tool, text))
            pieces.append(event_writer.CallBegin(name))
            pieces.append(event_writer.CallArguments(text))
        self._text, self._inside, self._in_text, self._skipped = self._text[end:], False, False, 0
        self._lead = ""
        self.ended = not self._parallel
        return bool(self._text)

    def _pass_failed(self, pieces: list[event_writer.Piece]) -> None:
        """Passes the mark of what is no call on as text, with the first character behind it: another mark may follow.
        Where too many calls failed, one inside the other, all that was read for them is passed on."""
        begin = self._begin
        read = self._reading.at if self._reading is not None else 0
        self._failures = self._failures + 1 if begin < self._failed_end else 1
        self._failed_end = max(self._failed_end, begin + read)
        end = 1 if self._failures <= FAILURES_MAX else max(1, self._failed_end - begin)
        head, self._text, self._lead = self._lead + self._mark + self._text[:end], self._text[end:], ""
        pieces.append(event_writer.Text(head))
        self._inside, self._in_text, self._skipped, self._reading = False, True, 0, None

    def _close_at_tag(self, pieces: list[event_writer.Piece]) -> bool:
        marks = () if self._bare else (START, END, *ANSWER_ENDS) if self._in_channels else self._closes
        match = call_text.scan(any_of(marks), self._text, max(0, self._tags_start - self._begin))
        if match is None:
            self._tags_start = self._begin + max(0, len(self._text) - reach(marks))
            return False
        mark = match[0]
        self._close(match.start(), pieces)
        self._text, self._mark, self._heading = self._text[len(mark) :], mark, self._in_channels
        return bool(self._text)

    def _close(self, end: int, pieces: list[event_writer.Piece], tag: str = CLOSE) -> None:
        """Ends a call before index `end`, where the mark `tag` is: passes on the rest of its arguments, and goes on
        with text."""
        call, raw = self._call, self._text[:end]
        self._text = self._text[end:]
        self._in_text = False
        is_call = True
        if call is None:
            is_call = self._close_unread(raw, tag, pieces)
        elif _is_checked(call.tool):
            rest = raw[1:]
            is_apart = call.verbatim or (self._in_channels and not self._bare)  # from the name, in no object
            ends = not rest.strip() if is_apart else _TAIL.fullmatch(rest)
            if not call.whole or not ends:
                raise MisfitCall(call.tool, "they are not whole")
            arguments = (call.text or "{}") if call.verbatim else call.text + "}"
            self._whole.append(_whole_call(call.tool, arguments))
            pieces += (event_writer.CallBegin(call.tool.name), event_writer.CallArguments(arguments))
        elif call.whole and not call.verbatim:
            pieces.append(event_writer.CallArguments(raw[0]))
        elif not call.text.strip():
            pieces.append(event_writer.CallArguments("{}"))
        self._call, self._inside, self._skipped = None, False, 0
        self.ended = self._bare or (is_call and not self._parallel)

    def _close_unread(self, raw: str, tag: str, pieces: list[event_writer.Piece]) -> bool:
        """Passes on a call whose arguments could not be passed on as they came. Returns False if it names no function,
        and passes it on as text."""
        try:
            body = json.loads(raw)
        except (ValueError, RecursionError):
            body = None
        name = body.get("name") if isinstance(body, dict) else None
        if not isinstance(body, dict) or not _is_name(name):
            pieces.append(event_writer.Text(raw if self._bare or self._format.closes else OPEN + raw + tag))
            self._in_text = True
            return False
        arguments = body.get("arguments", body.get("parameters", {}))
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        tool = self._tool(name)
        if _is_checked(tool):
            self._whole.append(_whole_call(tool, text))
        pieces.append(event_writer.CallBegin(name))
        pieces.append(event_writer.CallArguments(text))
        return True

    def _tool(self, name: str) -> Tool:
        return self._tools.get(name) or Tool(name=name)


def _kind(*, thinking: bool) -> type[event_writer.Thought | event_writer.Text]:
    return event_writer.Thought if thinking else event_writer.Text


def _is_checked(tool: Tool) -> bool:
    return tool.strict or tool.server is True


_SURROGATE: Final = re.compile("[\ud800-\udfff]")  # half a pair, which no text on the wire can hold


def _is_name(name: object) -> TypeGuard[str]:
    return isinstance(name, str) and 0 < len(name) <= NAME_CHARS_MAX and not _SURROGATE.search(name)


class _Call:
    """The arguments of a call as they come: a JSON object, read up to its last brace; or, if the call is verbatim, all
    text up to its closing mark."""

    def __init__(self, tool: Tool, end: str = "") -> None:
        """`end` is the closing mark of a verbatim call, a character that arguments never have; "" if the call is not
        verbatim."""
        self.tool = tool
        self.verbatim = bool(end)
        self._end = end
        self.text = ""  # the part that was passed on
        self.whole = False  # only the last brace, or the closing mark, is left
        self.cut = False  # whether what comes is no JSON: most likely the closing tag
        self._depth = 0
        self._quoted = self._escaped = False

    def scan(self, text: str) -> str:
        """Returns the beginning of `text` that belongs to the arguments, without their last brace."""
        if self.whole or self.cut:
            return ""
        if self.verbatim:
            text, mark, _ = text.partition(self._end)
            self.whole = bool(mark)
            self.text += text
            return text
        for index, character in enumerate(text):
            if self._escaped:
                self._escaped = False
            elif self._quoted:
                self._escaped = character == "\\"
                self._quoted = character != '"'
            elif character == '"':
                self._quoted = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth == 0:
                    self.whole = True
                    text = text[:index]
                    break
            elif character == "<":
                self.cut = True
                text = text[:index]
                break
        self.text += text
        return text


def _whole_call(tool: Tool, arguments: str) -> ParsedCall:
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError) as exc:
        raise MisfitCall(tool, "they are no JSON") from exc
    if not isinstance(value, dict):
        raise MisfitCall(tool, "they are no object")
    return ParsedCall(tool, arguments)


def _string(quoted: str) -> str | None:
    try:
        value = json.loads(quoted)
    except ValueError:
        return None
    return value if isinstance(value, str) else None
