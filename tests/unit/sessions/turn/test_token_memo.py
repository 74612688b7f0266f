"""Which messages are tokenised again, and when what is remembered of them goes."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from sessions.model.types import TenantId, Tokens, Tool
from sessions.ports import ChatMessage
from sessions.turn import token_memo
from sessions.turn.token_memo import MESSAGES_MAX, NEW_MAX, TENANTS_MAX, TEXT_MAX, MemoTokenizer, TokenMemos

ACME, OTHER = TenantId("acme"), TenantId("other")


class CountingTokenizer:
    """A token a character."""

    fingerprint = "f1"
    starts: Tokens = ()
    answer_opening: Tokens = (1,)
    answer_closing: Tokens = (2,)

    def __init__(self) -> None:
        self.texts: list[str] = []

    async def opening(self, instructions: str | None, tools: Sequence[Tool]) -> Tokens:
        return (9,)

    async def message(self, message: ChatMessage) -> Tokens:
        return await self.text(message.text)

    async def text(self, text: str) -> Tokens:
        self.texts.append(text)
        return array("I", map(ord, text))


def user(text: str, **more: Any) -> ChatMessage:
    return ChatMessage(role="user", text=text, **more)


async def test_a_message_is_remembered_once_its_answer_is_stored_and_for_its_tenant_alone() -> None:
    memos, inner = TokenMemos(), CountingTokenizer()
    tokenizer = MemoTokenizer(inner, memos, ACME)
    first = await tokenizer.message(user("Hi"))
    await MemoTokenizer(inner, memos, ACME).message(user("Hi"))
    assert inner.texts == ["Hi", "Hi"], "nothing was stored yet"
    tokenizer.keep()
    assert await MemoTokenizer(inner, memos, ACME).message(user("Hi")) == first
    assert len(inner.texts) == 2
    await MemoTokenizer(inner, memos, OTHER).message(user("Hi"))
    assert len(inner.texts) == 3


async def test_messages_that_differ_in_anything_are_tokenised_by_themselves() -> None:
    memos, inner = TokenMemos(), CountingTokenizer()
    tokenizer = MemoTokenizer(inner, memos, ACME)
    await tokenizer.message(user("Hi"))
    tokenizer.keep()
    for message in (user("hi"), ChatMessage(role="system", text="Hi"), user("Hi", name="f")):
        before = len(inner.texts)
        await tokenizer.message(message)
        assert len(inner.texts) == before + 1
    inner.fingerprint = "f2"
    await tokenizer.message(user("Hi"))
    assert inner.texts[-1] == "Hi"


async def test_long_messages_and_those_with_calls_are_not_remembered() -> None:
    memos, inner = TokenMemos(), CountingTokenizer()
    tokenizer = MemoTokenizer(inner, memos, ACME)
    for message in (user("x" * (TEXT_MAX + 1)), user("Hi", calls=(("c", "f", "{}"),))):
        await tokenizer.message(message)
        tokenizer.keep()
        await tokenizer.message(message)
    assert len(inner.texts) == 4


async def test_what_is_forgotten_is_tokenised_again() -> None:
    memos, inner = TokenMemos(), CountingTokenizer()
    tokenizer = MemoTokenizer(inner, memos, ACME)
    await tokenizer.message(user("Hi"))
    tokenizer.keep()
    memos.forget(OTHER)
    await tokenizer.message(user("Hi"))
    assert len(inner.texts) == 1
    memos.forget(ACME)
    await tokenizer.message(user("Hi"))
    assert len(inner.texts) == 2


async def test_it_is_bounded() -> None:
    memos, inner = TokenMemos(), CountingTokenizer()
    tokenizer = MemoTokenizer(inner, memos, ACME)
    for number in range(NEW_MAX + 1):
        await tokenizer.message(user(f"{number}"))
    tokenizer.keep()
    await tokenizer.message(user("0"))
    assert len(inner.texts) == NEW_MAX + 2, "the oldest of those that waited has made room"
    names = token_memo.Names((bytes([number % 256, number // 256]), (1,)) for number in range(MESSAGES_MAX + 3))
    memos.put(OTHER, names)
    assert memos.get(OTHER, bytes([2, 0])) is None and memos.get(OTHER, bytes([3, 0])) == (1,)
    for number in range(TENANTS_MAX):
        memos.put(TenantId(f"t{number}"), token_memo.Names({b"n": (1,)}))
    assert memos.get(OTHER, bytes([3, 0])) is None and memos.get(TenantId("t0"), b"n") == (1,)


async def test_all_else_is_the_engines_tokenizer() -> None:
    tokenizer = MemoTokenizer(CountingTokenizer(), TokenMemos(), ACME)
    assert (tokenizer.fingerprint, tokenizer.starts) == ("f1", ())
    assert (tokenizer.answer_opening, tokenizer.answer_closing) == ((1,), (2,))
    assert await tokenizer.opening(None, ()) == (9,) and list(await tokenizer.text("a")) == [97]
