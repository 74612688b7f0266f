"""How an actor's helpers call it without keeping it: an actor that is let go is free at once."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def weakly(method: Callable[P, T]) -> Callable[P, T | None]:
    """Returns a function that calls a bound method while its object is there, and returns None afterwards."""
    reference = weakref.WeakMethod(method)

    def call(*args: P.args, **kwargs: P.kwargs) -> T | None:
        bound = reference()
        return bound(*args, **kwargs) if bound is not None else None

    return call
