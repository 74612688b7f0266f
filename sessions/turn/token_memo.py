"""Remembers the tokens of messages whose answers are kept in the result cache: a hit tokenises nothing.

A tokenizer may be a round trip away, which is then a good part of what a hit takes. Messages are remembered by a keyed
hash of what they say, for their tenant alone, and only once their answer was stored: so never what is personal, and
nobody learns from the time of a hit what `X-Cache` does not say. They are forgotten with the tenant's answers.

Bounded; lost with the process, which costs a round trip each.
"""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import msgspec

from sessions.model.types import TenantId, Tokens, Tool
from sessions.ports import ChatMessage, Tokenizer

TENANTS_MAX: Final = 1_000
MESSAGES_MAX: Final = 1_024  # of a tenant
TEXT_MAX: Final = 4_096  # characters: the round trip is not what longer texts cost
NEW_MAX: Final = 4  # messages of one session that wait for their answer to be stored

Names = OrderedDict[bytes, Tokens]
_encode = msgspec.msgpack.Encoder().encode


class TokenMemos:
    """Of all tenants of one replica."""

    def __init__(self) -> None:
        self._key = os.urandom(32)
        self._of: OrderedDict[TenantId, Names] = OrderedDict()

    def name(self, fingerprint: str, message: ChatMessage) -> bytes:
        return hashlib.blake2b(_encode((fingerprint, message)), key=self._key, digest_size=16).digest()

    def get(self, tenant: TenantId, name: bytes) -> Tokens | None:
        known = self._of.get(tenant)
        tokens = None if known is None else known.get(name)
        if known is not None and tokens is not None:
            known.move_to_end(name)
        return tokens

    def put(self, tenant: TenantId, messages: Names) -> None:
        known = self._of.setdefault(tenant, OrderedDict())
        self._of.move_to_end(tenant)
        known.update(messages)
        while len(known) > MESSAGES_MAX:
            known.popitem(last=False)
        while len(self._of) > TENANTS_MAX:
            self._of.popitem(last=False)

    def forget(self, tenant: TenantId) -> None:
        self._of.pop(tenant, None)


class MemoTokenizer:
    """The engine's tokenizer as one session uses it. Implements `Tokenizer`."""

    def __init__(self, tokenizer: Tokenizer, memos: TokenMemos, tenant: TenantId) -> None:
        self._tokenizer = tokenizer
        self._memos = memos
        self._tenant = tenant
        self._new: Names = OrderedDict()

    @property
    def fingerprint(self) -> str:
        return self._tokenizer.fingerprint

    @property
    def starts(self) -> Tokens:
        return self._tokenizer.starts

    @property
    def answer_opening(self) -> Tokens:
        return self._tokenizer.answer_opening

    @property
    def answer_closing(self) -> Tokens:
        return self._tokenizer.answer_closing

    async def opening(self, instructions: str | None, tools: Sequence[Tool]) -> Tokens:
        return await self._tokenizer.opening(instructions, tools)

    async def text(self, text: str) -> Tokens:
        return await self._tokenizer.text(text)

    async def message(self, message: ChatMessage) -> Tokens:
        if len(message.text) > TEXT_MAX or message.calls:
            return await self._tokenizer.message(message)
        name = self._memos.name(self.fingerprint, message)
        tokens = self._memos.get(self._tenant, name)
        if tokens is None:
            tokens = self._new[name] = await self._tokenizer.message(message)
            if len(self._new) > NEW_MAX:
                self._new.popitem(last=False)
        return tokens

    def keep(self) -> None:
        """An answer to what was tokenised last was stored."""
        if self._new:
            self._memos.put(self._tenant, self._new)
            self._new = OrderedDict()
