"""Leaves out parameters that the server does not know, where its settings say so, and names them in a `Warning`.

By default they are refused: what a client wants and does not get should show. `--unknown-parameters ignore` is for
clients that send other servers' parameters to everybody.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from fastapi import Request

from sessions.model.generation import unsupported_field, without_fields
from sessions.model.types import Sampling
from transport.model_catalog import ModelCard

NAMES_MAX: Final = 16  # in one header
NAME_CHARS: Final = 64


def take_out(body: Any, problems: Sequence[dict[str, Any]]) -> list[str]:
    """Removes the fields that pydantic's `problems` report as unknown from a parsed body. Returns their paths."""
    taken = []
    for problem in problems:
        _, *path = problem["loc"]
        if problem["type"] == "extra_forbidden" and path:
            inside = body
            for part in path[:-1]:
                inside = inside[part] if isinstance(inside, dict | list) and _has(inside, part) else None
            if isinstance(inside, dict) and path[-1] in inside:
                del inside[path[-1]]
                taken.append(".".join(str(part) for part in path))
    return taken


def _has(inside: dict[str, Any] | list[Any], part: Any) -> bool:
    return part in inside if isinstance(inside, dict) else isinstance(part, int) and part < len(inside)


def leave_out(request: Request, names: Iterable[str]) -> None:
    """Notes parameters that a request is carried out without; the answer's `Warning` names them."""
    noted: list[str] = request.scope.setdefault("state", {}).setdefault("left_out", [])
    noted += [name for name in names if name not in noted]


def check_optional(request: Request, model: ModelCard, sampling: Sampling) -> Sampling:
    """Returns the sampling parameters without those that the model's engine lacks, which the answer's `Warning` names.
    Raises BadInput for them if the server refuses unknown ones. `top_logprobs` alone asks for nothing."""
    names = model.unhonoured(sampling)
    asking = [name for name in names if name != "top_logprobs"]
    if asking and not request.app.state.gateway.ignores_unknown:
        raise unsupported_field(model.id, asking[0])
    leave_out(request, asking)
    return without_fields(sampling, names)


def warning(request: Request) -> dict[str, str]:
    """Returns the `Warning` header that names the ignored parameters; empty if there are none."""
    names = request.scope.get("state", {}).get("left_out", ())
    if not names:
        return {}
    shown = ", ".join(map(_plain, names[:NAMES_MAX])) + (", ..." if len(names) > NAMES_MAX else "")
    return {"warning": f'299 - "Parameters were ignored: {shown}"'}


def _plain(name: str) -> str:
    """Returns a name shortened and reduced to characters that a header's quoted string may have."""
    return "".join(char if char.isascii() and char.isprintable() and char not in '"\\' else "?" for char in name)[
        :NAME_CHARS
    ]
