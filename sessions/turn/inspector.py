"""Answers questions about texts with this process's engine and filters: their tokens, and the filters' findings.

Writes nothing and reads no session. Does not know policies: filters return their findings.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence

from sessions.model.errors import BadInput, TooLarge
from sessions.model.generation import TokenScore, unsupported_scores
from sessions.model.inspection import (
    AboutTokenizer,
    Answer,
    BarePrompt,
    DecodedTexts,
    JudgedTexts,
    Judgement,
    Judgements,
    PromptScores,
    PromptTokens,
    Question,
    Refused,
    RefusedText,
    TextTokens,
    TokenIds,
    TokenTexts,
)
from sessions.model.types import Json, Principal, UnixMs
from sessions.ports import ChatMessage, Engine, FilterSet, ScoresPrompts
from sessions.turn.context_fitting import too_long


class Inspector:
    def __init__(self, engine: Engine, filters: FilterSet, bytes_max: int) -> None:
        """`bytes_max` is the longest text in bytes, the same as for a message."""
        self._engine = engine
        self._filters = filters
        self._bytes_max = bytes_max

    async def inspect(self, principal: Principal, question: Question) -> Answer:
        """Answers a question. Raises TooLarge for a text that is longer than a message may be, BadInput if the
        principal has no filters that judge texts, and what the engine raises."""
        for text in _texts(question):
            if len(text) > self._bytes_max or len(text.encode()) > self._bytes_max:
                raise TooLarge(
                    "content_too_large", f"A text has at most {self._bytes_max} bytes: send it in parts.", param="input"
                )
        match question:
            case TextTokens():
                special = self._engine.tokenizer.about.special_ids.get(question.text)
                if special is not None:  # by its spelling clients ask which token ends an answer
                    return self._ids([special])
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
            case TokenTexts():
                return DecodedTexts(tuple(self._text(tokens) for tokens in question.sequences))
            case AboutTokenizer():
                return self._engine.tokenizer.about
            case BarePrompt():
                return await self._score(principal, question)

    def _text(self, tokens: Sequence[int]) -> str:
        size = self._engine.tokenizer.about.vocabulary_size
        if (wrong := next((token for token in tokens if token >= size), None)) is not None:
            message = f"{wrong} is no token id of this model: it has {size}, from 0 on."
            raise BadInput("invalid_request", message, param="prompt")
        return b"".join(self._engine.tokenizer.pieces(tokens)).decode("utf-8", "replace")

    async def _score(self, principal: Principal, question: BarePrompt) -> PromptScores:
        engine, tokenizer = self._engine, self._engine.tokenizer
        if not isinstance(engine, ScoresPrompts):
            raise unsupported_scores(engine.info.model)
        starts: tuple[int, ...] = ()
        if isinstance(question.prompt, str):
            text, starts = question.prompt, tuple(tokenizer.starts)
            prompt = [*starts, *await tokenizer.text(text)]
        else:
            text, prompt = self._text(question.prompt), list(question.prompt)
        if len(prompt) > engine.info.context_window:
            raise too_long(len(prompt), engine.info.context_window)
        for each in self._filters.input_filters(principal):
            verdict = await each.check(principal, text)
            if verdict.action != "pass":
                message = verdict.message or "This prompt was refused."
                raise BadInput("content_filter", message, param="prompt")
        if not prompt:
            return PromptScores((), 0)
        scores = await engine.score(prompt, max(1, question.top))
        before = [TokenScore(None, ()), *scores[:-1]]
        decoder, entries = codecs.getincrementaldecoder("utf-8")("replace"), []
        for piece, score in list(zip(tokenizer.pieces(prompt), before, strict=True))[len(starts) :]:
            entries.append(self._entry(decoder.decode(piece), piece, score, question.top))
        if not question.next_too or self._filters.output_filters(principal):
            return PromptScores(tuple(entries), len(prompt))
        token, logprob = scores[-1].top[0]
        ended = token in tokenizer.about.ends
        piece = b"" if ended else tokenizer.pieces([token])[0]
        following = TokenScore(logprob, scores[-1].top)
        shown = self._entry(piece.decode("utf-8", "replace"), piece, following, question.top)
        return PromptScores(tuple(entries), len(prompt), shown, ended)

    def _entry(self, text: str, piece: bytes, score: TokenScore, top: int) -> dict[str, Json]:
        tokens = score.top[:top]
        pieces = self._engine.tokenizer.pieces([token for token, _ in tokens])
        others = [
            {"token": other.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(other)}
            for other, (_, logprob) in zip(pieces, tokens, strict=True)
        ]
        return {"token": text, "logprob": score.logprob, "bytes": list(piece), "top_logprobs": others}

    async def _prompt(self, question: PromptTokens) -> list[int]:
        messages = [
            ChatMessage(
                role=each.role,
                text=each.text,
                name=each.name,
                call_id=each.call_id,
                calls=each.calls,
                names_images=each.names_images,
            )
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
        case BarePrompt(prompt=str(text)):
            yield text
