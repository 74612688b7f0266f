"""Options that several commands share, so that each is called and explained alike everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from cyclopts import Parameter

from transport.cli.plain_text import plain

Json = Annotated[bool, Parameter(name="--json", help="JSON instead of text", show_default=False)]
Tenant = Annotated[str, Parameter(metavar="TENANT", help="only this tenant's", show_default=False)]
Reason = Annotated[
    str, Parameter(metavar="TEXT", help="why an operator enters another tenant; audited", show_default=False)
]
ServerUrl = Annotated[
    str, Parameter(metavar="URL", help="of a running server: http://127.0.0.1:8080", show_default=False)
]


def text(metavar: str, about: str, *, choices: Sequence[str] | None = None) -> Parameter:
    """Returns an option of a command, whose help shows no default."""
    return Parameter(metavar=metavar, help=about, show_default=False, choices=choices)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Returns rows of cells, the titles first, as text with aligned columns."""
    rows = [[plain(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
