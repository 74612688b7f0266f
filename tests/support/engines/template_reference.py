"""What transformers' `apply_chat_template` gives, from an environment set up as its is, and the foldings that
docs/models.md names, done on the messages themselves.

    python -m tests.support.engines.template_reference FOLDER

prints a row for each `*.jinja` of a folder, as docs/models.md has them, and behind it what differs from transformers'
text. Official templates are in the source package of llama-cpp-python, under `vendor/llama.cpp/models/templates`.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import jinja2
import msgspec
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from inference.chat_template import TOOLS_TEXT, ChatTemplate
from inference.template_environment import FAILURES
from inference.whole_conversation import call_text
from sessions.model.errors import BadInput
from sessions.model.types import Tool
from sessions.ports import ChatMessage
from tests.support.engines.chat_templates import SPECIALS

DAY: Final = 1_782_000_000_000  # unix ms
Messages = list[dict[str, Any]]
Render = Callable[[Messages, list[Any] | None], str]

LOOK: Final = Tool(
    name="look",
    description="Looks something up.",
    parameters={"type": "object", "properties": {"q": {"type": "string", "description": "What."}}, "required": ["q"]},
)
SIGNATURE: Final = {
    "type": "function",
    "function": {"name": "look", "description": "Looks something up.", "parameters": LOOK.parameters},
}


def _said(role: Any, text: str, **more: Any) -> ChatMessage:
    return ChatMessage(role=role, text=text, **more)


_CALL: Final = (("call_1", "look", '{"q": "ü <|im_end|> \\n"}'),)
_THOUGHT: Final = "<think>\nHm, well.\n</think>\n\nThe answer."
SCENARIOS: Final[dict[str, tuple[str | None, tuple[Tool, ...], tuple[ChatMessage, ...]]]] = {
    "system": ("Be brief.", (), (_said("user", "Hello"),)),
    "alternation": (
        "Be brief.",
        (),
        (_said("user", "one"), _said("user", "two"), _said("assistant", "three"), _said("user", "four")),
    ),
    "tools": (
        "Be brief.",
        (LOOK,),
        (
            _said("user", "Where?"),
            _said("assistant", "", calls=_CALL),
            _said("tool", '{"found": true}', call_id="call_1", name="look"),
            _said("assistant", "There."),
            _said("user", "Thanks"),
        ),
    ),
    "thoughts": (
        None,
        (),
        tuple(
            _said(role, text)
            for role, text in zip(
                ("user", "assistant", "user", "assistant", "user"),
                ("Why?", _THOUGHT, "So?", _THOUGHT, "And?"),
                strict=True,
            )
        ),
    ),
    "ten turns": (
        None,
        (),
        tuple(_said(("user", "assistant")[number % 2], f"words {number}, ü 日") for number in range(19)),
    ),
}


class _Generation(Extension):
    tags = {"generation"}  # noqa: RUF012 - as the base class declares it

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


def reference(source: str) -> Render:
    """Returns a function that renders as transformers does, on the day `DAY`."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )

    def fail(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment.filters["tojson"] = lambda value, ensure_ascii=False, **more: json.dumps(
        value, ensure_ascii=ensure_ascii, **more
    )
    environment.globals["raise_exception"] = fail
    environment.globals["strftime_now"] = datetime.fromtimestamp(DAY / 1000, UTC).strftime
    template = environment.from_string(source)

    def render(messages: Messages, tools: list[Any] | None) -> str:
        return template.render(
            messages=messages,
            tools=tools,
            documents=None,
            add_generation_prompt=True,
            bos_token="<s>",
            eos_token="</s>",
        )

    return render


def as_messages(instructions: str | None, said: Sequence[ChatMessage]) -> Messages:
    """A conversation as Hugging Face's libraries write it."""
    messages: Messages = [] if instructions is None else [{"role": "system", "content": instructions}]
    for each in said:
        message: dict[str, Any] = {"role": each.role, "content": each.text}
        if each.calls:
            message["tool_calls"] = [
                {"type": "function", "id": name, "function": {"name": function, "arguments": json.loads(arguments)}}
                for name, function, arguments in each.calls
            ]
        if each.role == "tool":
            message |= {"tool_call_id": each.call_id, "name": each.name}
        messages.append(message)
    return messages


def folded(messages: Messages, foldings: Sequence[str], *, tools: bool, calls: str, offered: bool) -> Messages:
    """The conversation as docs/models.md says that it is told to a template that does not take it."""
    told = [dict(message) for message in messages]
    if offered and not tools:
        text = TOOLS_TEXT.replace("SIGNATURES", json.dumps(SIGNATURE, ensure_ascii=False))
        if told[0]["role"] == "system":
            told[0]["content"] += "\n\n" + text
        else:
            told.insert(0, {"role": "system", "content": text})
    for message in told:
        if "tool_calls" in message and not calls:
            made = [each["function"] for each in message.pop("tool_calls")]
            texts = [call_text(each["name"], json.dumps(each["arguments"])) for each in made]
            message["content"] = "\n".join([message["content"]] * bool(message["content"]) + texts)
        elif "tool_calls" in message:
            for each in message["tool_calls"]:
                if calls.startswith("texts"):
                    each["function"] = {**each["function"], "arguments": '{"q": "ü <|im_end|> \\n"}'}
                if calls.endswith("short ids"):
                    each["id"] = _short(each["id"])
        if message["role"] == "tool" and calls.endswith("short ids"):
            message["tool_call_id"] = _short(message["tool_call_id"])
        if message["role"] == "tool" and "tool" in foldings:
            message.update(role="user", content=f"<tool_response>\n{message['content']}\n</tool_response>")
    if "system" in foldings and told[0]["role"] == "system":
        system = told.pop(0)
        told[0]["content"] = f"{system['content']}\n\n{told[0]['content']}"
    if "neighbours" not in foldings:
        return told
    joined: Messages = []
    for message in told:
        if joined and joined[-1]["role"] == message["role"] != "tool" and "tool_calls" not in joined[-1]:
            joined[-1]["content"] += "\n\n" + message["content"]
        else:
            joined.append(message)
    return joined


def _short(name: str) -> str:
    return hashlib.blake2b(name.encode()).hexdigest()[:9]


def prompt_text(
    template: ChatTemplate, instructions: str | None, tools: Sequence[Tool], said: Sequence[ChatMessage]
) -> str:
    """The text of a prompt, whichever way it is made."""
    if template.whole:
        return "".join(piece.text for piece in template.conversation(instructions, tools, said, DAY, answer=True))
    text = "".join(piece for piece, _ in template.opening(instructions, tools))
    for each in said:
        around = template.scaffold.roles[each.role]
        calls = [call_text(name, arguments) for _, name, arguments in each.calls]
        text += around.before + "\n".join([each.text] * bool(each.text) + calls) + around.after
    return text + template.scaffold.answer_opening


class Row(msgspec.Struct, frozen=True):
    """The behaviour of a family's template. Families that behave the same share a row of docs/models.md."""

    renders: str
    foldings: tuple[str, ...]
    tools: str
    thoughts: str
    calls: str
    differs: tuple[str, ...]  # scenarios whose prompt is neither the template's nor what docs name

    @property
    def cells(self) -> str:
        """The cells behind the names of the families that do the same."""
        foldings = ", ".join(self.foldings) or "–"
        return f"| {self.renders} | {foldings} | {self.tools} | {self.thoughts} | `{self.calls}` |"


def tried(source: str, specials: Sequence[str]) -> Row:
    """Puts every scenario through a template. Raises BadInput where it is refused at the start."""
    template, render = ChatTemplate(source, bos="<s>", eos="</s>", specials=specials), reference(source)
    tools, calls = template.scaffold.tools, template.calls if template.whole else ""
    differs = []
    for name, (instructions, offered, said) in SCENARIOS.items():
        messages, functions = as_messages(instructions, said), [SIGNATURE] if offered else None
        told = folded(messages, template.foldings, tools=tools, calls=calls, offered=bool(offered))
        wanted = [_or_none(render, messages, functions), _or_none(render, told, functions if tools else None)]
        try:
            text = prompt_text(template, instructions, offered, said)
        except BadInput as error:
            differs.append(f"{name}: {error.public_message}")
            continue
        if wanted[0] is None or (offered and not tools):
            wanted = wanted[1:]
        if text not in wanted:
            differs.append(name)
    place = "yes" if tools else "no"
    kind, calls = "whole" if template.whole else "pieces", template.call_format()
    return Row(kind, template.foldings, place, _thoughts(template), calls, tuple(differs))


def _thoughts(template: ChatTemplate) -> str:
    """Returns what the table says of the template's part in a model's thoughts."""
    marks = template.thoughts()
    if marks is None:
        return "–"
    return "if asked" if marks.asked else "opened" if marks.opened else "yes"


def _or_none(render: Render, messages: Messages, functions: list[Any] | None) -> str | None:
    for offered in (functions, functions or []):  # some templates take a list alone
        try:
            return render(messages, offered)
        except FAILURES:
            continue
    return None


def print_rows(folder: Path) -> None:
    """Prints a row for each template of the folder, and how many of them are as they should be."""
    files, right, refused = sorted(folder.glob("*.jinja")), 0, 0
    if not files:
        sys.exit(f"{folder} holds no *.jinja.")
    for file in files:
        try:
            row = tried(file.read_text(), SPECIALS)
        except BadInput as error:
            refused += 1
            print(f"| {file.stem} | refused | {error.public_message}")
            continue
        right += not row.differs
        print(f"| {file.stem} {row.cells}", *row.differs)
    print(f"{len(files)} templates: {refused} refused, {right} as transformers renders them or folded")


if __name__ == "__main__":
    print_rows(Path(sys.argv[1]))
