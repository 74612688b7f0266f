"""Speaks to vLLM's own server: `/v1/completions` with token ids both ways (from version 0.10.2 on).

Its prefix cache is kept apart by tenant (`cache_salt`). How much of a prompt it reused is known at the end of a run,
where its option `enable_prompt_tokens_details` is set; else nothing counts as reused.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Final

import msgspec

from inference.remote.dialects import RemoteRunEnded, cache_namespace, next_event, refusal
from inference.remote.folder_dialect import FolderDialect
from inference.remote.pool import RemoteServer
from sessions.model.errors import BadInput, Unavailable
from sessions.model.generation import Chunk, GenerationRequest
from sessions.model.types import Json

NO_IDS: Final = "The model's server names no token ids: vLLM does from 0.10.2 on."


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens_details: dict[str, Any] | None = None

    @property
    def cached_tokens(self) -> int:
        return int((self.prompt_tokens_details or {}).get("cached_tokens") or 0)


class _Choice(msgspec.Struct, frozen=True):
    text: str = ""
    token_ids: tuple[int, ...] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class _Event(msgspec.Struct, frozen=True):
    choices: tuple[_Choice, ...] = ()
    usage: _Usage | None = None
    error: Any = None


_DECODER: Final = msgspec.json.Decoder(_Event)
_ENCODER: Final = msgspec.json.Encoder()


class VllmDialect(FolderDialect):
    """Talks to vLLM's server. Implements `ServerDialect`."""

    build = "remote-vllm/1"

    def check(self, request: GenerationRequest) -> None:
        self._body("", request)

    async def run(
        self, server: RemoteServer, model: str, request: GenerationRequest
    ) -> AsyncGenerator[Chunk | RemoteRunEnded, None]:
        body = _ENCODER.encode(self._body(model, request))
        status, answer, stream = await server.http.stream(f"{server.path}/v1/completions", body)
        try:
            if status != 200:
                raise refusal(status, server.without_key(answer), stream.header("retry-after"))
            reason = ""
            ends = self._stops(request)
            while (event := await next_event(stream, _DECODER)) is not None:
                if event.error is not None:
                    raise Unavailable("engine_unavailable", "The model's server broke an answer off.")
                for choice in event.choices:
                    if choice.token_ids is None:
                        raise BadInput("engine_refused", NO_IDS)
                    reason = choice.finish_reason or ""
                    tokens = choice.token_ids
                    if reason == "stop" and tokens and (choice.stop_reason in (None, tokens[-1]) or tokens[-1] in ends):
                        tokens = tokens[:-1]
                    if tokens or choice.text:
                        yield Chunk(tokens, choice.text)
                if not event.choices and event.usage is not None:
                    yield RemoteRunEnded("length" if reason == "length" else "stop", event.usage.cached_tokens)
                    return
            raise Unavailable("engine_unavailable", "The model's server cut an answer short.")
        finally:
            stream.close()

    def _body(self, model: str, request: GenerationRequest) -> dict[str, Json]:
        assert self._tokenizer is not None
        body: dict[str, Json] = {
            "model": model,
            "prompt": list(request.prompt),
            "max_tokens": request.max_tokens,
            "seed": request.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            "cache_salt": cache_namespace(request.key),
            **self._parameters(request, min_tokens="min_tokens"),
        }
        if (schema := self._schema(request)) is not None:
            body["response_format"] = {"type": "json_schema", "json_schema": {"name": "output", "schema": schema}}
        if self._tokenizer.shows_specials:
            body |= {"skip_special_tokens": False, "spaces_between_special_tokens": False}
        return body
