"""Common prefixes and text that comes in bytes."""

from __future__ import annotations

import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.tokens import LONG, Utf8Stream, as_tokens, common_prefix

tokens = st.lists(st.integers(0, 3) | st.integers(0, 2**32 - 1), max_size=300)


@given(tokens, tokens, tokens)
def test_common_prefix_is_the_naive_one(shared: list[int], left: list[int], right: list[int]) -> None:
    a, b = as_tokens([*shared, *left]), as_tokens([*shared, *right])
    naive = 0
    while naive < min(len(a), len(b)) and a[naive] == b[naive]:
        naive += 1
    assert common_prefix(a, b) == common_prefix(b, a) == naive


@given(st.text(), st.lists(st.integers(1, 5), min_size=1))
def test_text_comes_whole_however_its_bytes_are_cut(text: str, sizes: list[int]) -> None:
    data = text.encode()
    stream, out, at = Utf8Stream(), "", 0
    for index in range(len(data) + 1):
        size = sizes[index % len(sizes)]
        out += stream.feed(data[at : at + size])
        at += size
        assert text.startswith(out)
        if at >= len(data):
            break
    assert out == text and stream.pending == b""


@given(st.text(min_size=1), st.data())
def test_a_stream_that_continues_another_finishes_its_character(text: str, data: st.DataObject) -> None:
    whole = text.encode()
    cut = data.draw(st.integers(0, len(whole)))
    first = Utf8Stream()
    begun = first.feed(whole[:cut])
    assert begun + Utf8Stream([whole[:cut]]).feed(whole[cut:]) == text


def test_bytes_that_are_no_text_become_replacement_characters() -> None:
    stream = Utf8Stream()
    assert stream.feed(b"a\xff") == "a�"
    assert stream.feed(b"\xf0\x9f") == ""
    assert stream.feed(b"b") == "�b"


@pytest.mark.parametrize("length", [LONG - 1, LONG, LONG + 1, 50_000])
def test_a_long_common_prefix_ends_where_the_two_differ(length: int) -> None:
    left = array.array("I", range(length))
    assert common_prefix(left, left[:]) == length
    assert common_prefix(left, left + left) == common_prefix(left + left, left) == length
    for at in (0, 1, LONG - 2, length // 2, length - 1):
        right = left + left
        right[at] += 1
        assert common_prefix(left, right) == common_prefix(right, left) == at
    left.append(1)  # nothing holds on to it
