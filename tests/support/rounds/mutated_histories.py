"""Histories that are changed before they are resent, in twenty ways at random places, and what of them is computed.

A round is one conversation through the whole server's door: it is answered here turn by turn, or brought along as a
whole and answered once. Then it is resent with one change. What stands behind the first difference is found by
rendering both with the model's template; what was computed is `prompt_tokens` less `cached_tokens`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import httpx

from inference.tokens import as_tokens, common_prefix

Messages = list[dict[str, Any]]
Mutation = Callable[[random.Random, Messages], Messages]

_TEXT: Final = """river lake stone bridge winter harbour letter window garden engine copper morning evening silver
market forest island signal number colour answer question reason history teacher captain village mountain weather
kitchen"""
_WORDS: Final = _TEXT.split()


def sentence(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(_WORDS) for _ in range(words)).capitalize() + "."


def _of_role(rng: random.Random, messages: Messages, role: str) -> int:
    """A place in a history, not its last message."""
    return rng.choice([at for at, each in enumerate(messages[:-1]) if each["role"] == role])


def _answer(change: Callable[[random.Random, str], str]) -> Mutation:
    def mutate(rng: random.Random, messages: Messages) -> Messages:
        at = _of_role(rng, messages, "assistant")
        messages[at] = {**messages[at], "content": change(rng, messages[at]["content"])}
        return messages

    return mutate


def _question(change: Callable[[random.Random, str], str]) -> Mutation:
    def mutate(rng: random.Random, messages: Messages) -> Messages:
        at = _of_role(rng, messages, "user")
        messages[at] = {**messages[at], "content": change(rng, messages[at]["content"])}
        return messages

    return mutate


def _system(change: Callable[[random.Random, str], str]) -> Mutation:
    def mutate(rng: random.Random, messages: Messages) -> Messages:
        messages[0] = {**messages[0], "content": change(rng, messages[0]["content"])}
        return messages

    return mutate


def _without(role: str, count: int = 1) -> Mutation:
    def mutate(rng: random.Random, messages: Messages) -> Messages:
        at = _of_role(rng, messages, role)
        return messages[:at] + messages[at + count :]

    return mutate


def _put_in(roles: tuple[str, ...]) -> Mutation:
    def mutate(rng: random.Random, messages: Messages) -> Messages:
        at = _of_role(rng, messages, "user")
        return messages[:at] + [{"role": role, "content": sentence(rng, 6)} for role in roles] + messages[at:]

    return mutate


def _up_to_a_question(rng: random.Random, messages: Messages) -> Messages:
    return messages[: _of_role(rng, messages, "user") + 1]


def _twice(rng: random.Random, messages: Messages) -> Messages:
    for _ in range(2):
        messages = rng.choice((MUTATIONS["question edited at its end"], MUTATIONS["answer cut"]))(rng, messages)
    return messages


def _cut(rng: random.Random, text: str) -> str:
    return text[: rng.randrange(len(text) + 1)]


def _hole(rng: random.Random, text: str) -> str:
    begin, end = sorted(rng.randrange(len(text) + 1) for _ in range(2))
    return text[:begin] + text[end:]


def _word_changed(rng: random.Random, text: str) -> str:
    words = text.split(" ")
    words[rng.randrange(len(words))] = rng.choice(_WORDS)
    return " ".join(words)


MUTATIONS: Final[dict[str, Mutation]] = {
    "answer trimmed": _answer(lambda rng, text: text.strip()),
    "white space behind an answer": _answer(lambda rng, text: text + rng.choice(("\n", " ", "\n\n"))),
    "answer cut": _answer(_cut),
    "answer emptied": _answer(lambda rng, text: ""),
    "a dot for an answer": _answer(lambda rng, text: "."),
    "answer replaced": _answer(lambda rng, text: sentence(rng, 8)),
    "answer's beginning removed": _answer(lambda rng, text: text[rng.randrange(len(text) + 1) :]),
    "answer's middle removed": _answer(_hole),
    "answer dropped": _without("assistant"),
    "question dropped": _without("user"),
    "exchange dropped": _without("user", 2),
    "question edited at its end": _question(lambda rng, text: f"{text} {sentence(rng, 3)}"),
    "word of a question changed": _question(_word_changed),
    "question replaced": _question(lambda rng, text: sentence(rng, 9)),
    "message put in": _put_in(("user",)),
    "exchange put in": _put_in(("user", "assistant")),
    "system prompt changed at its end": _system(lambda rng, text: f"{text} {sentence(rng, 4)}"),
    "word of the system prompt changed": _system(_word_changed),
    "an earlier question once more": _up_to_a_question,
    "two changes": _twice,
}


class HistoryRound(NamedTuple):
    """What a resent history cost. `behind`: tokens behind the first difference."""

    mutation: str
    imported: bool
    prompt_tokens: int
    behind: int
    computed: int
    same_session: bool

    def is_within(self, block: int) -> bool:
        return self.computed <= self.behind + block


class BegunHistory(NamedTuple):
    """What a client has of a conversation. `held`: the tokens that were computed for it."""

    messages: Messages
    held: list[int]
    session: str
    imported: bool


class HistoryRounds:
    """Plays conversations with one server. Each has words of its own from its system prompt on."""

    def __init__(self, http: httpx.AsyncClient, model: str, *, exchanges: int, answer_tokens: int) -> None:
        self._http = http
        self._model = model
        self._exchanges = exchanges
        self._answer_tokens = answer_tokens

    async def begin(self, rng: random.Random) -> BegunHistory:
        """A conversation that has been answered."""
        imported = rng.random() < 0.5
        messages: Messages = [{"role": "system", "content": sentence(rng, rng.randrange(20, 60))}]
        for number in range(self._exchanges):
            messages.append({"role": "user", "content": sentence(rng, rng.randrange(6, 25))})
            if imported and number < self._exchanges - 1:
                messages.append({"role": "assistant", "content": sentence(rng, rng.randrange(5, 30))})
            else:
                text, usage, session = await self._complete(messages)
                messages.append({"role": "assistant", "content": text})
        held = (await self._tokens(messages))[: usage["prompt_tokens"] + usage["completion_tokens"] - 1]
        return BegunHistory(messages, held, session, imported)

    async def resend(self, mutation: str, rng: random.Random, given: BegunHistory) -> HistoryRound:
        """Goes on with it, changed."""
        question = {"role": "user", "content": sentence(rng, 5)}
        changed = MUTATIONS[mutation](rng, [*given.messages, question])
        prompt = await self._tokens(changed)
        _, usage, session = await self._complete(changed, answer_tokens=1)
        return HistoryRound(
            mutation,
            given.imported,
            usage["prompt_tokens"],
            len(prompt) - common_prefix(as_tokens(given.held), as_tokens(prompt)),
            usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"],
            session == given.session,
        )

    async def _complete(self, messages: Messages, answer_tokens: int | None = None) -> tuple[str, dict[str, Any], str]:
        most = answer_tokens or self._answer_tokens
        body = {"model": self._model, "messages": messages, "max_tokens": most, "temperature": 0.8}
        answer = await self._http.post("/v1/chat/completions", json=body)
        answer.raise_for_status()
        whole = answer.json()
        return whole["choices"][0]["message"]["content"] or "", whole["usage"], answer.headers["x-session-id"]

    async def _tokens(self, messages: Messages) -> list[int]:
        answer = await self._http.post("/tokenize", json={"model": self._model, "messages": messages})
        answer.raise_for_status()
        return list(answer.json()["tokens"])
