"""Reads completions of bare prompts: chat completions' reader, whose entries are text.

A prompt goes to the model as it is, behind nothing but what every prompt of the model begins with.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from sessions.model.types import Json
from transport.openai.chat import ChatCompletionReader
from transport.openai.chat_render import StreamUsage
from transport.openai.resume import StartedTurn
from transport.openai.turn_starter import TurnStarter


class CompletionReader(ChatCompletionReader):
    """Reads the responses of one bare prompt as a text completion.

    `first` is the index of its first choice, `echo` the text that each choice begins with, and `scored` the log
    probabilities of that text."""

    def __init__(
        self,
        starter: TurnStarter,
        started: StartedTurn,
        *,
        model: str,
        logprobs: bool,
        usage: StreamUsage,
        first: int = 0,
        echo: str = "",
        scored: Sequence[Any] = (),
    ) -> None:
        super().__init__(starter, started, model=model, logprobs=logprobs, usage=usage)
        self._first_index = first
        self._echo = echo
        self._scored = list(scored)
        self._lengths: dict[int, int] = {}  # of each choice's text so far

    async def whole(self) -> dict[str, Json]:
        whole = await super().whole()
        choices = [
            self._choice(entry, entry["message"]["content"] or entry["message"]["refusal"] or "")
            for entry in whole["choices"]
        ]
        return {**whole, "choices": choices}

    def _choice(self, entry: dict[str, Any], text: str) -> dict[str, Json]:
        index = entry["index"]
        begun = index in self._lengths
        at = self._lengths.get(index, len(self._echo))
        self._lengths[index] = at + len(text)
        logprobs = None if entry["logprobs"] is None else entry["logprobs"]["content"]
        if self._scored and not begun:
            logprobs, at = [*self._scored, *(logprobs or ())], 0
        return {
            "index": self._first_index + index,
            "text": text if begun else self._echo + text,
            "logprobs": None if logprobs is None else legacy_logprobs(logprobs, at),
            "finish_reason": entry["finish_reason"],
        }

    def _head(self, kind: str) -> dict[str, Json]:
        head = super()._head(kind)
        del head["service_tier"]
        return {**head, "id": f"cmpl-{head['id'].removeprefix('chatcmpl-')}", "object": "text_completion"}

    def _chunk(self, entries: list[dict[str, Json]], usage: dict[str, Json] | None) -> dict[str, Any]:
        texts = [each["delta"].get("content") or each["delta"].get("refusal") or "" for each in entries]
        shown = [self._choice(each, text) for each, text in zip(entries, texts, strict=True)]
        return super()._chunk(shown, usage)


def legacy_logprobs(entries: list[dict[str, Any]], at: int) -> dict[str, Json]:
    """Returns log probabilities in the form of text completions; `at` is where the first token's text begins."""
    tokens = [_name(each) for each in entries]
    return {
        "tokens": tokens,
        "token_logprobs": [each["logprob"] for each in entries],
        "top_logprobs": [
            None if each["logprob"] is None else {_name(one): one["logprob"] for one in each["top_logprobs"]}
            for each in entries
        ],
        "text_offset": list(itertools.accumulate((len(each["token"]) for each in entries[:-1]), initial=at))
        if entries
        else [],
    }


def _name(entry: dict[str, Any]) -> str:
    """Returns a token's text, or `bytes:\\x..` for a token that is only a part of a character, as OpenAI writes it."""
    raw = bytes(entry.get("bytes") or ())
    try:
        raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
    return str(entry["token"])
