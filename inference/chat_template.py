"""Renders conversations with the chat template of a model, so that they can be tokenised.

A template is a program from a whole conversation to a text. Most are a sum of pieces that are only ever concatenated:
an opening, something around each message, something around each answer. They are found by rendering probes and
comparing, and then verified: pieces put together must be the template's own text for every probe conversation. Then a
conversation is tokenised piece by piece and never again. A template that is no such sum (one that drops old thoughts,
names the day, or refuses what is sent) renders the whole conversation at each turn: `inference.whole_conversation`.

Only scaffold strings may be parsed for special tokens. Source: Hugging Face's chat templates (Jinja in a sandbox).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from inference.template_environment import FAILURES, clock_at, compile_template, literals, to_json
from inference.whole_conversation import Conversations, Piece, TemplateShape, content_text, probe, refused
from sessions.model.errors import BadInput
from sessions.model.generation import ThoughtMarks
from sessions.model.types import Json, Tool
from sessions.ports import ChatMessage
from sessions.turn.call_formats import FORMATS, format_of
from sessions.turn.channels import ANSWER_ENDS, END, FINAL, START, THOUGHT

LITERALS_MAX: Final = 1_000  # texts in a template that are tried; one with more renders whole conversations

log = structlog.get_logger(__name__)

CHATML: Final = """\
{%- set system = messages[0].content if messages[0].role == 'system' else '' -%}
{%- if system or tools -%}
{{ '<|im_start|>system\\n' + system }}
{%- if tools -%}
{{ ('\\n\\n' if system else '') + 'You may call functions. Their signatures, one JSON object a line:\\n<tools>' }}
{%- for tool in tools %}{{ '\\n' + (tool | tojson) }}{% endfor -%}
{{ '\\n</tools>\\nTo call one, write its name and arguments as JSON:' }}
{{- '\\n<tool_call>\\n{"name": NAME, "arguments": OBJECT}\\n</tool_call>' }}
{%- endif -%}
{{ '<|im_end|>\\n' }}
{%- endif -%}
{%- for message in messages -%}
{%- if not (loop.first and message.role == 'system') -%}
{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""
TOOLS_TEXT: Final = """\
You may call functions. Their signatures, one JSON object a line:
<tools>
SIGNATURES
</tools>
To call one, write its name and arguments as JSON:
<tool_call>
{"name": NAME, "arguments": OBJECT}
</tool_call>"""  # as `CHATML` has it
THOUGHT_MARKS: Final = (
    ("<think>", "</think>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
    ("<|channel>thought", "<channel|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
)
THINKING_VARIABLES: Final = ("enable_thinking", "thinking")  # that templates are told by to leave thoughts out
BUILT_IN: Final = {"chatml": CHATML}

# No template trims, escapes or searches these. Letters only, and no spelling that could be a special token.
_SYSTEM, _USER, _ANSWER, _TOOL = "Sqsystemq", "Uquserq", "Aqanswerq", "Fqfunctionq"
_BREAK: Final = "\ue000"  # cuts a special token's spelling inside a client's own text


class MessageScaffold(msgspec.Struct, frozen=True):
    """The template's text before and after a message of one role."""

    before: str
    after: str


class Scaffold(msgspec.Struct, frozen=True):
    """The texts that a chat template puts around messages. `roles` has those around each role of `ChatMessage`; `tools`
    says whether the template renders tools."""

    roles: dict[str, MessageScaffold]
    answer_opening: str
    answer_closing: str
    tools: bool


NO_SCAFFOLD: Final = Scaffold(
    dict.fromkeys(("system", "developer", "user", "assistant", "tool"), MessageScaffold("", "")), "", "", True
)
"""The scaffold of a template that renders whole conversations: a message by itself is its text."""


class ChatTemplate:
    """A chat template, taken apart as far as that is possible. Immutable.

    `whole`: it cannot be taken apart, so each prompt is rendered as a whole. `foldings`: the names of the ways in which
    a conversation is reshaped before the template can render it. `calls`: in which form the template gets tool calls;
    "": as text."""

    def __init__(self, source: str, *, bos: str, eos: str, specials: Sequence[str] = ()) -> None:
        """Compiles and examines the template. Raises BadInput when it cannot render one user message."""
        self.source = source
        self._specials = [special for special in specials if len(special) > 1]
        self._tokens = {"bos_token": bos, "eos_token": eos}
        self._no_tools: list[Json] | None = None
        try:
            self._template = compile_template(source)
            sought = literals(source)
            if _USER not in self._render_first():
                raise _unusable("it leaves out what a user says")
        except FAILURES as exc:
            raise _unusable(f"it fails: {str(exc) or type(exc).__name__}") from exc
        shape = probe(self.render)
        self._conversations = Conversations(self.render, shape, sought, self._specials)
        self.foldings = shape.foldings
        self.calls = f"{shape.calls} short ids" if shape.calls and shape.short_ids else shape.calls
        folds = not (shape.system and shape.neighbours)
        self.whole = "strftime_now" in source or folds or not self._is_sum(sought, shape)
        if self.whole:
            self.scaffold = msgspec.structs.replace(NO_SCAFFOLD, tools=self._renders_tools())

    def opening(self, instructions: str | None, tools: Sequence[Tool]) -> list[tuple[str, bool]]:
        """Returns the pieces of instructions and tools, each with whether special tokens may be parsed in it. Tools
        that the template has no place for follow the instructions, in the words of the built-in template."""
        if self.whole:
            whole = self.conversation(instructions, tools, (), 0, answer=False)
            return [(piece.text, piece.special) for piece in whole]
        functions = [self._function(tool) for tool in tools]
        try:
            return self._whole_opening(instructions, functions)
        except (*FAILURES, _NotSeparable) as exc:
            raise refused(exc, functions) from exc

    def conversation(
        self,
        instructions: str | None,
        tools: Sequence[Tool],
        messages: Sequence[ChatMessage],
        at: int,
        *,
        answer: bool,
        thinking: str = "",
    ) -> list[Piece]:
        """Returns the pieces of a whole prompt, rendered as on the day of `at` (unix ms). It ends where an answer
        begins, or, without `answer`, where the user's next words begin. `thinking`: whether, or with which effort, the
        template shall let the model reason; "": not said. Raises BadInput if the template refuses the conversation."""
        functions = [_function_of(tool) for tool in tools]
        if functions and not self.scaffold.tools:
            instructions, functions = _with_tools(instructions, [to_json(function) for function in functions]), []
        pieces = self._conversations.pieces
        return pieces(instructions, functions, messages, at, answer=answer, thinking=thinking)

    def announce(self) -> None:
        """Logs once how conversations are rendered."""
        history = "whole conversations" if self.whole else "pieces"
        log.info("chat_template", renders=history, foldings=self.foldings, tools=self.scaffold.tools)

    def answer_end(self) -> str:
        """Returns the scaffold that ends an answer; "" where there is none."""
        if not self.whole:
            return self.scaffold.answer_closing
        try:
            talk = [_message("user", _USER), _message("assistant", _ANSWER)]
            end = self.render(talk, answer=False).partition(_ANSWER)[2]
        except FAILURES:
            return ""
        return "" if end.startswith(END) and self.call_format() == "harmony" else end  # there it ends a message

    def call_format(self) -> str:
        """Returns the name of the format in which the model writes tool calls; "hermes" if the template has no place
        for tools."""
        return format_of(self.source) if self.scaffold.tools else "hermes"

    def thoughts(self) -> ThoughtMarks | None:
        """Returns the marks around thoughts, as far as the template says; None where it knows none."""
        if THOUGHT in self.source:
            end = f"{END}{START}assistant{FINAL}"
            efforts = self._heeds("low")
            return ThoughtMarks(THOUGHT, END, none=FINAL, end=end, channels=True, apart=True, efforts=efforts)
        open_, close = next((marks for marks in THOUGHT_MARKS if marks[1] in self.source), ("", ""))
        if not open_:
            return None
        question = [_message("user", _USER)]
        prompt = self.render(question, answer=True)
        if close == "<channel|>":
            none = f"{open_}\n{close}"
            return ThoughtMarks(open_, close, none=none, end=f"\n{close}", apart=True, asked=self._heeds("on"))
        without = [self._prompt_without_thoughts(variable) for variable in THINKING_VARIABLES]
        without = [text for text in without if text not in ("", prompt)]
        needs_hint = self._heeds("on") and not without  # the default prompt is the one without thoughts
        if needs_hint:
            prompt = self.render(question, answer=True, thinking="on")
        begun = prompt.rpartition(_USER)[2]
        opened = begun.count(open_) > begun.count(close)
        none = f"\n{close}\n\n" if opened else f"{open_}\n\n{close}\n\n"
        none = next((text[len(prompt) :] for text in without if text.startswith(prompt)), none)
        return ThoughtMarks(open_, close, opened, none, asked=needs_hint)

    def _prompt_without_thoughts(self, variable: str) -> str:
        """Returns the prompt of a question if the template's `variable` is false; "" if the template fails."""
        try:
            variables = self._variables([_message("user", _USER)], answer=True)
            return self._template.render(**variables, **{variable: False})
        except FAILURES:
            return ""

    def _heeds(self, thinking: str) -> bool:
        """Returns whether the template gives another text if `thinking` is passed to it."""
        question = [_message("user", _USER)]
        return self.whole and self.render(question, answer=True) != self.render(
            question, answer=True, thinking=thinking
        )

    @property
    def shown_specials(self) -> tuple[str, ...]:
        """The marks of thoughts and calls that an engine is to show even where they are special tokens."""
        marks = self.thoughts()
        own = () if marks is None or marks.channels else (marks.open, marks.close)
        return (*own, *FORMATS[self.call_format()].specials)

    @property
    def answer_ends(self) -> tuple[str, ...]:
        """The special tokens that end an answer, where the template has them inside one."""
        return tuple(mark for mark in (*ANSWER_ENDS, "<|tool_response>") if mark in self.source)

    def render(
        self,
        messages: list[dict[str, Json]],
        *,
        answer: bool,
        tools: list[Json] | None = None,
        at: int = 0,
        thinking: str = "",
    ) -> str:
        """Returns the template's own text for a whole conversation, as on the day of `at` (unix ms). `thinking` is as
        for `conversation`."""
        variables: dict[str, Any] = dict.fromkeys(THINKING_VARIABLES, True) if thinking else {}
        if thinking not in ("", "on"):
            variables["reasoning_effort"] = thinking
        return self._template.render(**self._variables(messages, answer=answer, tools=tools, at=at), **variables)

    def _variables(
        self, messages: list[dict[str, Json]], *, answer: bool, tools: list[Json] | None = None, at: int = 0
    ) -> dict[str, Any]:
        return {
            "messages": messages,
            "add_generation_prompt": answer,
            "tools": tools or self._no_tools,
            "documents": None,
            "strftime_now": clock_at(at),
            **self._tokens,
        }

    # -- inside --------------------------------------------------------------------------------------

    def _render_first(self) -> str:
        """Renders one user message. Some templates need an empty list where there are no tools, and accept only
        that."""
        try:
            return self.render([_message("user", _USER)], answer=True)
        except TypeError:
            self._no_tools = []
            return self.render([_message("user", _USER)], answer=True)

    def _whole_opening(self, instructions: str | None, functions: list[Json]) -> list[tuple[str, bool]]:
        if functions and not self.scaffold.tools:
            signatures = [to_json(function).replace(_BREAK, "") for function in functions]
            instructions, functions = _with_tools(instructions, signatures), []
        head = self._opening(_SYSTEM if instructions is not None else None, functions)
        if instructions is None:
            return self._pieces(head)
        before, _, after = head.partition(_SYSTEM)
        return [*self._pieces(before), (instructions, False), *self._pieces(after)]

    def _pieces(self, text: str) -> list[tuple[str, bool]]:
        return [(piece, True) for piece in text.split(_BREAK) if piece]

    def _function(self, tool: Tool) -> Json:
        return self._defuse(_function_of(tool))

    def _defuse(self, value: Json) -> Json:
        if isinstance(value, str):
            for special in self._specials:
                value = value.replace(special, special[0] + _BREAK + special[1:])
            return value
        if isinstance(value, dict):
            return {self._defuse(name): self._defuse(inner) for name, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self._defuse(inner) for inner in value]
        return value

    def _opening(self, system: str | None, functions: list[Json]) -> str:
        first = [] if system is None else [_message("system", system)]
        text = self.render([*first, _message("user", _USER)], answer=False, tools=functions)
        head = _between(text, "", _USER + self.scaffold.roles["user"].after)
        return _without_end(head, self.scaffold.roles["user"].before)

    def _is_sum(self, sought: Collection[str], shape: TemplateShape) -> bool:
        """Takes the template apart and returns whether every rendering of it is the sum of the parts. `sought` has the
        texts that the template looks for in messages."""
        try:
            self.scaffold = self._take_apart()
            self._verify()
            if self.scaffold.tools:
                self._opening(_SYSTEM, [_function_of(Tool(name=_TOOL, parameters={"type": "object"}))])
            if len(sought) > LITERALS_MAX:
                return False
            for text in sorted(sought):
                self._verify_words(text)
            user, answer = ChatMessage(role="user", text=_USER), ChatMessage(role="assistant", text=_ANSWER)
            self._verify_talk([user, user, answer, answer, user])
            if shape.calls:
                call = ChatMessage(role="assistant", text="", calls=(("call_1", _TOOL, '{"p": "q"}'),))
                output = ChatMessage(role="tool", text=_USER, call_id="call_1", name=_TOOL)
                self._verify_talk([user, call, output, answer, user])
        except (*FAILURES, _NotSeparable, BadInput):
            return False
        return True

    def _verify_talk(self, talk: Sequence[ChatMessage]) -> None:
        """Verifies that the parts put together give the template's own text for a conversation."""
        text = self._opening(None, [])
        for message in talk:
            around = self.scaffold.roles[message.role]
            text += around.before + content_text(message) + around.after
        pieces = self._conversations.pieces(None, [], talk, 0, answer=True)
        if text + self.scaffold.answer_opening != "".join(piece.text for piece in pieces):
            raise _NotSeparable("messages depend on their neighbours")

    def _verify_words(self, sought: str) -> None:
        """Verifies that a message holding `sought`, a text that the template looks for, is rendered like any other."""
        words = f"a{sought}b"
        user, around = self.scaffold.roles["user"], self.scaffold.roles["assistant"]
        head = "".join(text for text, _ in self._whole_opening(words, []))
        turn = f"{user.before}{words}{user.after}{around.before}"
        talk = [_message(role, words) for role in ("system", "user", "assistant", "user", "assistant", "user")]
        if self.render(talk, answer=True) != f"{head}{turn}{words}{around.after}{turn}{words}{around.after}{turn}":
            raise _NotSeparable("it looks into messages")

    def _take_apart(self) -> Scaffold:
        users = [f"{_USER}{number}" for number in range(3)]
        answers = [f"{_ANSWER}{number}" for number in range(2)]
        talk = [
            _message("user", users[0]),
            _message("assistant", answers[0]),
            _message("user", users[1]),
            _message("assistant", answers[1]),
            _message("user", users[2]),
        ]
        rendered = self.render(talk, answer=True)
        after_user = self.render(talk, answer=False).partition(users[2])[2]
        after_answer = self.render(talk[:4], answer=False).partition(answers[1])[2]
        answer_opening = _without_start(rendered.partition(users[2])[2], after_user)
        before_user = _without_start(_between(rendered, answers[0], users[1]), after_answer)
        if _between(rendered, users[0], answers[0]) != after_user + answer_opening:
            raise _NotSeparable("an answer in the history begins differently from a new one")
        if not answer_opening or not after_answer:
            raise _NotSeparable("nothing marks where an answer begins or ends")
        user = MessageScaffold(before_user, after_user)
        roles = {"user": user, "assistant": MessageScaffold(answer_opening, after_answer)}
        roles["system"] = self._role("system", talk, user) or user
        roles["developer"] = self._role("developer", talk, user) or roles["system"]
        roles["tool"] = self._role("tool", talk, user) or user
        return Scaffold(roles, answer_opening, after_answer, self._renders_tools())

    def _role(self, role: str, talk: list[dict[str, Json]], user: MessageScaffold) -> MessageScaffold | None:
        """Returns the text around a role's message in mid-conversation; None where the template does not know the
        role."""
        probe = f"R{role}q"
        try:
            text = self.render([*talk[:2], _message(role, probe), *talk[2:3]], answer=False)
            answer_closing = self.render(talk[:2], answer=False).partition(talk[1]["content"])[2]
            before = _without_start(_between(text, talk[1]["content"], probe), answer_closing)
            after = _without_end(_between(text, probe, talk[2]["content"]), user.before)
        except (*FAILURES, _NotSeparable):
            return None
        return MessageScaffold(before, after) if before else None

    def _renders_tools(self) -> bool:
        parameters = {"type": "object", "properties": {"p": {"type": "string", "description": "d"}}, "required": ["p"]}
        tool = {"type": "function", "function": {"name": _TOOL, "description": "d", "parameters": parameters}}
        try:
            return _TOOL in self.render([_message("user", _USER)], answer=True, tools=[tool])
        except FAILURES:
            return False

    def _verify(self) -> None:
        s = self.scaffold
        for system in (None, _SYSTEM):
            for turns in (1, 2, 3):
                messages = [] if system is None else [_message("system", system)]
                built = self._opening(system, [])
                for turn in range(turns):
                    messages.append(_message("user", f"{_USER}{turn}"))
                    built += f"{s.roles['user'].before}{_USER}{turn}{s.roles['user'].after}"
                    if turn < turns - 1:
                        messages.append(_message("assistant", f"{_ANSWER}{turn}"))
                        built += f"{s.answer_opening}{_ANSWER}{turn}{s.answer_closing}"
                built += s.answer_opening
                if self.render(messages, answer=True) != built:
                    raise _NotSeparable(f"its text of {turns} turns is not the sum of its parts")


def template_source(name: str | None, own: str | None, missing: str) -> str:
    """Returns the template that an engine's option names: the model's own (None), one of `BUILT_IN`, or a text itself.
    Raises BadInput with the message `missing` where the model has none."""
    source = own if name is None else BUILT_IN.get(name, name)
    if source is None:
        raise BadInput("bad_chat_template", missing, param="chat_template")
    return source


def template_beside(model: Path) -> str | None:
    """Returns the template in a repository's files beside a model file; None where there is none. Blocking."""
    try:
        jinja, settings = model.with_name("chat_template.jinja"), model.with_name("tokenizer_config.json")
        if jinja.is_file():
            return jinja.read_text()
        template = json.loads(settings.read_bytes()).get("chat_template") if settings.is_file() else None
    except (OSError, ValueError, AttributeError):
        return None
    return template if isinstance(template, str) else None


def _with_tools(instructions: str | None, signatures: Sequence[str]) -> str:
    text = TOOLS_TEXT.replace("SIGNATURES", "\n".join(signatures))
    return f"{instructions}\n\n{text}" if instructions else text


def _function_of(tool: Tool) -> Json:
    function = msgspec.to_builtins(tool)
    function.pop("type")
    function.pop("strict")
    return {"type": "function", "function": {name: value for name, value in function.items() if value is not None}}


class _NotSeparable(Exception):
    """Raised if renderings of the template are not the sum of its parts."""


def _unusable(why: str) -> BadInput:
    return BadInput(
        "bad_chat_template",
        f"The model's chat template cannot be used: {why.rstrip('.')}. Start with --chat-template chatml, which is"
        " built in, or give another template.",
        param="chat_template",
    )


def _message(role: str, text: str) -> dict[str, Json]:
    return {"role": role, "content": text}


def _between(text: str, left: str, right: str) -> str:
    found, _, rest = text.partition(left)[2].partition(right) if left else text.partition(right)
    if right not in text or (left and left not in text):
        raise _NotSeparable("it drops or changes a message")
    del rest
    return found


def _without_start(text: str, start: str) -> str:
    if not text.startswith(start):
        raise _NotSeparable("what stands between two messages depends on what follows")
    return text[len(start) :]


def _without_end(text: str, end: str) -> str:
    if not text.endswith(end):
        raise _NotSeparable("what stands before a message depends on what came before it")
    return text[: len(text) - len(end)]
