"""Lets an actor's helpers call the actor without keeping it in memory: once nothing else refers to the actor, it is
freed at once."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def weakly(method: Callable[P, T]) -> Callable[P, T | None]:
    """Returns a function that calls a bound method as long as its object exists, and afterwards does nothing and
    returns None."""
    reference = weakref.WeakMethod(method)

    def call(*args: P.args, **kwargs: P.kwargs) -> T | None:
        bound = reference()
        return bound(*args, **kwargs) if bound is not None else None

    return call
