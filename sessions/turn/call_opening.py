"""Saves an engine the tokens at the beginning of a call that are decided before it writes them.

An answer that must call one certain function begins with its name, whatever the model computes. These words are added
to the end of the prompt, where they are computed in one step together with what else is new there, and not one step for
each token:

    prompt | {"name": "look", "arguments":      computed in one step
                                          {"at": 5}}      written, under the same grammar

The caller gets all of the answer, as if the engine had written it. This works only if a grammar can be continued from
tokens (`EngineInfo.continues_formats`).

Pure; does not know grammars or tools' schemas.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final

import msgspec

from sessions.model.errors import SessileError
from sessions.model.generation import Chunk, EngineInfo, Finish, GenerationRequest
from sessions.model.types import Tokens, Tool
from sessions.ports import Engine

LEFT_MIN: Final = 16  # tokens that the arguments may take: with fewer left, the engine writes all of it
_UNFIT: Final = "recovery_incompatible"  # the code of a grammar that does not go on from these words


def call_opening(info: EngineInfo, tools: Sequence[Tool]) -> str:
    """Returns the words that a call of one of `tools` must begin with; "" if they are not decided, or the engine
    cannot go on behind them."""
    if not info.continues_formats or len(tools) != 1 or not tools[0].name.isascii():
        return ""
    return f'{{"name": {json.dumps(tools[0].name)}, "arguments":'


async def generate_behind(
    engine: Engine, request: GenerationRequest, opening: str
) -> AsyncGenerator[Chunk | Finish, None]:
    """Yields a run of the engine as if it had written `opening` itself at the beginning of the answer."""
    tokens = await engine.tokenizer.text(opening)
    if request.max_tokens - len(tokens) < LEFT_MIN:
        begun, behind = False, request
    else:
        begun, behind = True, _behind(request, tokens)
    try:
        async with aclosing(engine.generate(behind)) as parts:  # type: ignore[type-var]
            async for part in parts:
                yield _joined(part, tokens if begun else (), opening, len(request.prompt))
                begun = False
        return
    except SessileError as error:
        if error.code != _UNFIT or not begun:
            raise
    async with aclosing(engine.generate(request)) as parts:  # type: ignore[type-var]
        async for part in parts:
            yield part


def _behind(request: GenerationRequest, tokens: Tokens) -> GenerationRequest:
    opening = array("I", tokens)
    return msgspec.structs.replace(
        request,
        prompt=array("I", request.prompt) + opening,
        emitted=opening,
        max_tokens=request.max_tokens - len(opening),
    )


def _joined(part: Chunk | Finish, tokens: Tokens, opening: str, num_prompt: int) -> Chunk | Finish:
    """Returns an engine's output as it would be if it had written the opening itself: `tokens` and `opening` are added
    before its first output, and `num_prompt` is the length of the prompt without them."""
    cached = min(part.cached_tokens, num_prompt)
    if isinstance(part, Finish):
        return Finish(part.reason, num_prompt, cached)
    if not tokens:
        return part if part.cached_tokens == cached else msgspec.structs.replace(part, cached_tokens=cached)
    return Chunk((*tokens, *part.tokens), opening + part.text, part.logprobs, cached)
