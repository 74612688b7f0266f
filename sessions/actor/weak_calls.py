"""Lets an actor's helpers call the actor without keeping it in memory: once nothing else refers to the actor, it is
freed at once."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class WeakCall(Generic[P, T]):
    """A bound method that does not keep its object: once the object is gone, calling it does nothing and returns None.
    Small, because each resident actor has several: all of one object share its weak reference."""

    __slots__ = ("_function", "_owner")

    def __init__(self, method: Callable[P, T]) -> None:
        """`method` must be a bound method."""
        self._owner = weakref.ref(method.__self__)  # type: ignore[attr-defined]
        self._function = method.__func__  # type: ignore[attr-defined]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T | None:
        owner = self._owner()
        return None if owner is None else self._function(owner, *args, **kwargs)
