"""Takes a chat template apart, so that a conversation can be tokenised piece by piece and never again.

A template is a program from a whole conversation to a text. The ledger needs it as pieces that are only ever
concatenated: an opening, something around each message, something around each answer. They are found by
rendering probes and comparing, and then verified: pieces put together must be the template's own text for every
probe conversation. A template that cannot be taken apart (one that rewrites earlier messages when a later one
comes) is refused at the start rather than being followed almost.

Only scaffold strings may be parsed for special tokens. Source: Hugging Face's chat templates (Jinja in a sandbox).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import jinja2
import msgspec
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from sessions.model.errors import BadInput
from sessions.model.types import Json, Tool
from sessions.turn.tool_call_parser import CLOSE, OPEN

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
BUILT_IN: Final = {"chatml": CHATML}

# No template trims, escapes or searches these. Letters only, and no spelling that could be a special token.
_SYSTEM, _USER, _ANSWER = "Sqsystemq", "Uquserq", "Aqanswerq"
_BREAK: Final = "\ue000"  # cuts a special token's spelling inside a client's own text


# What a template raises, being a program that somebody wrote.
_FAILS: Final = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)


class MessageScaffold(msgspec.Struct, frozen=True):
    """The scaffold before and after a message's text."""

    before: str
    after: str


class Scaffold(msgspec.Struct, frozen=True):
    """A template taken apart. `roles` has every role of `ChatMessage`; `tools` says whether it renders tools."""

    roles: dict[str, MessageScaffold]
    answer_opening: str
    answer_closing: str
    tools: bool


class ChatTemplate:
    """Renders openings and knows the scaffold of everything else. Immutable."""

    def __init__(self, source: str, *, bos: str, eos: str, specials: Sequence[str] = ()) -> None:
        """Raises BadInput when the template cannot be taken apart."""
        self.source = source
        self._specials = [special for special in specials if len(special) > 1]
        self._tokens = {"bos_token": bos, "eos_token": eos}
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise
        try:
            self._template = environment.from_string(source)
            self.scaffold = self._take_apart()
            self._verify()
        except _NotSeparable as exc:
            raise _refused(str(exc)) from exc
        except _FAILS as exc:
            raise _refused(f"it fails: {str(exc) or type(exc).__name__}") from exc

    def opening(self, instructions: str | None, tools: Sequence[Tool]) -> list[tuple[str, bool]]:
        """The pieces of an opening, each with whether special tokens may be parsed in it. Tools that the template has
        no place for stand behind the instructions, in the words of the built-in one."""
        try:
            return self._whole_opening(instructions, [self._function(tool) for tool in tools])
        except (*_FAILS, _NotSeparable) as exc:
            why = f"The model's chat template fails with these tools: {str(exc) or type(exc).__name__}."
            raise BadInput("invalid_request", f"{why} Change or leave out what it names.", param="tools") from exc

    def render(self, messages: list[dict[str, Json]], *, answer: bool, tools: list[Json] | None = None) -> str:
        """The template's own text for a whole conversation."""
        return self._template.render(
            messages=messages, add_generation_prompt=answer, tools=tools or None, **self._tokens
        )

    # -- inside --------------------------------------------------------------------------------------

    def _whole_opening(self, instructions: str | None, functions: list[Json]) -> list[tuple[str, bool]]:
        if functions and not self.scaffold.tools:
            signatures = "\n".join(_tojson(function).replace(_BREAK, "") for function in functions)
            tools_text = TOOLS_TEXT.replace("SIGNATURES", signatures)
            instructions, functions = f"{instructions}\n\n{tools_text}" if instructions else tools_text, []
        head = self._opening(_SYSTEM if instructions is not None else None, functions)
        if instructions is None:
            return self._pieces(head)
        before, _, after = head.partition(_SYSTEM)
        return [*self._pieces(before), (instructions, False), *self._pieces(after)]

    def _pieces(self, text: str) -> list[tuple[str, bool]]:
        return [(piece, True) for piece in text.split(_BREAK) if piece]

    def _function(self, tool: Tool) -> Json:
        function = msgspec.to_builtins(tool)
        function.pop("type")
        function.pop("strict")
        plain = {name: value for name, value in function.items() if value is not None}
        return {"type": "function", "function": self._defuse(plain)}

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
        """What stands around a message of a role in mid-conversation; None where the template has no such thing."""
        probe = f"R{role}q"
        try:
            text = self.render([*talk[:2], _message(role, probe), *talk[2:3]], answer=False)
            answer_closing = self.render(talk[:2], answer=False).partition(talk[1]["content"])[2]
            before = _without_start(_between(text, talk[1]["content"], probe), answer_closing)
            after = _without_end(_between(text, probe, talk[2]["content"]), user.before)
        except (*_FAILS, _NotSeparable):
            return None
        return MessageScaffold(before, after) if before else None

    def _renders_tools(self) -> bool:
        tool = {"type": "function", "function": {"name": "Fqfunctionq", "description": "d", "parameters": {}}}
        messages = [_message("system", _SYSTEM), _message("user", _USER)]
        try:
            return "Fqfunctionq" in self.render(messages, answer=False, tools=[tool])
        except _FAILS:
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
    """The text of the template that an engine's option names: the model's own (None), one of `BUILT_IN`, or itself.
    Raises BadInput with `missing`: the model has none."""
    source = own if name is None else BUILT_IN.get(name, name)
    if source is None:
        raise BadInput("bad_chat_template", missing, param="chat_template")
    return source


def template_beside(model: Path) -> str | None:
    """The template in the files that a repository has beside a model file; None where there is none. Blocking."""
    try:
        jinja, settings = model.with_name("chat_template.jinja"), model.with_name("tokenizer_config.json")
        if jinja.is_file():
            return jinja.read_text()
        template = json.loads(settings.read_bytes()).get("chat_template") if settings.is_file() else None
    except (OSError, ValueError, AttributeError):
        return None
    return template if isinstance(template, str) else None


def call_text(name: str, arguments: str) -> str:
    """A tool call as Hermes-style models write it."""
    try:
        value = json.loads(arguments)
    except ValueError:
        value = arguments
    return f"{OPEN}\n{json.dumps({'name': name, 'arguments': value}, ensure_ascii=False)}\n{CLOSE}"


class _NotSeparable(Exception):
    """The template is no sum of parts."""


def _refused(why: str) -> BadInput:
    return BadInput(
        "bad_chat_template",
        f"The model's chat template cannot be taken apart: {why}. Start with --chat-template chatml, which is"
        " built in, or give a template whose messages do not depend on later ones.",
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


def _tojson(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)
