"""Answers questions about texts with this process's engine and filters: tokens, and what the filters say.

Writes nothing and reads no session. Does not know policies: filters say what they find.
"""

from __future__ import annotations

from collections.abc import Iterator

from sessions.model.errors import BadInput, TooLarge
from sessions.model.inspection import (
    Answer,
    JudgedTexts,
    Judgement,
    Judgements,
    PromptTokens,
    Question,
    Refused,
    RefusedText,
    TextTokens,
    TokenIds,
)
from sessions.model.types import Principal, UnixMs
from sessions.ports import ChatMessage, Engine, FilterSet


class Inspector:
    def __init__(self, engine: Engine, filters: FilterSet, bytes_max: int) -> None:
        """`bytes_max`: of one text, as of a message."""
        self._engine = engine
        self._filters = filters
        self._bytes_max = bytes_max

    async def inspect(self, principal: Principal, question: Question) -> Answer:
        """Raises TooLarge for a text that no message may have, BadInput where nothing judges texts for the principal,
        and what the engine raises."""
        for text in _texts(question):
            if len(text) > self._bytes_max or len(text.encode()) > self._bytes_max:
                raise TooLarge(
                    "content_too_large", f"A text has at most {self._bytes_max} bytes: send it in parts.", param="input"
                )
        match question:
            case TextTokens():
                starts = self._engine.tokenizer.starts if question.starts else ()
                return self._ids([*starts, *await self._engine.tokenizer.text(question.text)])
            case PromptTokens():
                return self._ids(await self._prompt(question))
            case JudgedTexts():
                return await self._judge(principal, question.texts)
            case RefusedText():
                for each in self._filters.input_filters(principal):
                    verdict = await each.check(principal, question.text)
                    if verdict.action == "block":
                        return Refused(verdict.message)
                return Refused(None)

    async def _prompt(self, question: PromptTokens) -> list[int]:
        messages = [
            ChatMessage(role=each.role, text=each.text, name=each.name, call_id=each.call_id, calls=each.calls)
            for each in question.messages
        ]
        conversation = self._engine.tokenizer.conversation
        return list(
            await conversation(question.instructions, question.tools, messages, UnixMs(0), answer=question.answer)
        )

    def _ids(self, tokens: list[int]) -> TokenIds:
        return TokenIds(tuple(tokens), self._engine.info.context_window)

    async def _judge(self, principal: Principal, texts: tuple[str, ...]) -> Judgements:
        filters = self._filters.input_filters(principal)
        if not filters:
            raise BadInput("moderation_unavailable", "No policy judges messages here: see --policy.", param="input")
        judged, detectors = [], dict[str, None]()
        for text in texts:
            scores: dict[str, float] = {}
            for each in filters:
                for finding in (await each.check(principal, text)).findings:
                    scores[finding.category] = max(finding.score, scores.get(finding.category, 0.0))
                    detectors[finding.model] = None
            judged.append(Judgement(scores))
        return Judgements(tuple(judged), tuple(name for name in detectors if name))


def _texts(question: Question) -> Iterator[str]:
    match question:
        case TextTokens():
            yield question.text
        case PromptTokens():
            yield question.instructions or ""
            yield from (each.text for each in question.messages)
        case JudgedTexts():
            yield from question.texts
        case RefusedText():
            yield question.text
