"""Compiles chat templates as Hugging Face's transformers does: Jinja in a sandbox, with the same tags, filters and
functions, so that a template gives the text that its authors saw.

One thing differs: `strftime_now` reads no clock. Whoever renders says what day it is, so that a conversation rendered
again is the same text. Source: `chat_template_utils.py` of transformers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

FAILURES: Final = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)
"""The exceptions that rendering a template may raise: a template is a program that somebody wrote."""


class Generation(Extension):
    """Accepts `{% generation %}` blocks, which mark the text that a model is trained on, and renders their content."""

    tags = {"generation"}  # noqa: RUF012 - as the base class declares it

    def parse(self, parser: Parser) -> nodes.Node:
        """Returns the statements of the block, in a scope of their own."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


def compile_template(source: str) -> jinja2.Template:
    """Compiles a template. Raises one of `FAILURES`."""
    return _environment().from_string(source)


def literals(source: str) -> frozenset[str]:
    """Returns the texts in a template's expressions: everything that the template can look for in a message."""
    tree = _environment().parse(source)
    texts = (node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str))
    return frozenset(texts)


def clock_at(unix_ms: int) -> Callable[[str], str]:
    """Returns a `strftime_now` for the day, in UTC, of a point in time. The hour is midnight: a prompt that named the
    minute would be computed anew at each turn."""
    day = datetime.fromtimestamp(unix_ms / 1000, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return day.strftime


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Returns a value as JSON, with nothing escaped for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = _raise
    return environment


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)
