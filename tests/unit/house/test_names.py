"""Each public class name exists once, and names are made of the field's words."""

from __future__ import annotations

import pytest

from tests.support.house import Module, class_names_defined_twice, everything, ruled_out_names

pytestmark = pytest.mark.xdist_group("tree")  # one worker reads the tree once


def test_each_public_class_name_exists_once() -> None:
    assert everything()["class names defined twice"] == []


def test_a_class_name_that_exists_twice_is_seen() -> None:
    tree = [
        Module("sessions/a.py", "class Turn: ...\nclass _Slot: ...\n"),
        Module("bench/b.py", "def f():\n    class Turn: ...\nclass _Slot: ...\nclass Other: ...\n"),
    ]
    assert class_names_defined_twice(tree) == ["Turn"]


def test_no_type_or_public_function_has_a_word_that_is_ruled_out() -> None:
    assert everything()["ruled-out words"] == []


def test_a_word_that_is_ruled_out_is_seen_in_every_spelling() -> None:
    source = """
Wanted = int
class KeysAsked:
    def was_told(self): ...
    def _said(self): ...
async def ask_again(): ...
def find(): ...
def task(): ...
def foundation(): ...
class NotFound: ...
class Gone: ...
class SessionNotFound: ...
def not_found(): ...
"""
    assert ruled_out_names([Module("a.py", source)]) == [
        "a.py:KeysAsked",
        "a.py:KeysAsked.was_told",
        "a.py:Wanted",
        "a.py:ask_again",
    ]
