"""What two neighbours cannot read of each other is seen, and what they can is let be."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import pytest
from msgspec import inspect

from tests.support.neighbours.shapes import breaches, describe


class A1(msgspec.Struct, array_like=True, tag=1):
    a: int
    b: Literal["x", "y"] = "x"


class A2(A1, array_like=True, tag=1):
    c: str = ""


class A3(msgspec.Struct, array_like=True, tag=1):
    c: str
    a: int


class Another(msgspec.Struct, array_like=True, tag=2):
    z: int = 0


class Wider(msgspec.Struct, array_like=True, tag=1):
    a: int
    b: Literal["x", "y", "z"] = "x"


class M1(msgspec.Struct):
    a: int
    b: int = 0


class M2(msgspec.Struct):
    c: int
    b: int


def shape(kind: Any) -> dict[str, Any]:
    named: dict[str, Any] = {}
    return {"it": {"is": describe(inspect.type_info(kind), named), "of": named}}


@pytest.mark.parametrize(
    ("old", "new"), [(A1, A1), (A1, A2), (A1 | Another, A2 | Another), (list[A1], list[A2]), (M1, M1)]
)
def test_a_field_behind_the_rest_with_a_default_is_no_breach(old: Any, new: Any) -> None:
    assert breaches(shape(old), shape(new)) == []


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (A1, A3, "its first fields are other ones"),
        (A1 | int, A1 | Another | int, "tag 2 is new to the neighbour"),
        (A1 | Another, A1, "tag 2 is read no more"),
        (A1, Wider, "['z'] are known to one side alone"),
        (M1, M2, "a, which the neighbour needs, is not written any more"),
        (M1, M2, "c is new and has no default"),
        (M1, M2, "b had a default, which the neighbour may leave out"),
        (tuple[int, str], tuple[int], "2 parts, now 1"),
        (dict[str, int], dict[str, str], "was IntType, is StrType"),
        (int, int | None, "NoneType is new to the neighbour"),
    ],
)
def test_a_breach_is_named(old: Any, new: Any, says: str) -> None:
    assert any(says in each for each in breaches(shape(old), shape(new))), breaches(shape(old), shape(new))


def test_what_is_no_more_is_named() -> None:
    assert breaches(shape(A1), {}) == ["it is gone"]
