"""A guard's answer as a score: by the probabilities of its two words, or by the word itself."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from inference.moderation.guard_models import GuardVerdict, RemoteGuard, kind_of, open_guard_model
from inference.moderation.policy import BadPolicy, GuardConfig
from inference.moderation.worker_client import NotJudged


@asynccontextmanager
async def endpoint(answer: bytes, status: int = 200) -> AsyncIterator[tuple[str, list[bytes]]]:
    """An endpoint with one answer, and the requests that it gets."""
    requests: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        requests.append(head + await reader.readexactly(length))
        writer.write(f"HTTP/1.1 {status} X\r\ncontent-length: {len(answer)}\r\n\r\n".encode() + answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/", requests


def completion(text: str, *tops: tuple[str, float]) -> bytes:
    choice: dict[str, Any] = {"message": {"content": text}}
    if tops:
        top = [{"token": token, "logprob": math.log(p)} for token, p in tops]
        choice["logprobs"] = {"content": [{"token": "\n", "logprob": 0.0}, {**top[0], "top_logprobs": top}]}
    return json.dumps({"choices": [choice]}).encode()


async def judged(answer: bytes, status: int = 200, **config: Any) -> GuardVerdict:
    async with endpoint(answer, status) as (url, _):
        guard = await open_guard_model(GuardConfig(url=url, **config))
        return await guard.judge("text")


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        (completion("unsafe", ("uns", 0.6), (" SAFE", 0.2), ("I", 0.2)), 0.75),
        (completion("safe", ("safe", 0.9)), 0.0),  # blank tokens before the word do not count
        (completion("Unsafe."), 1.0),
        (completion(" safe\n"), 0.0),
    ],
)
async def test_the_score_is_the_odds_of_the_second_word(answer: bytes, score: float) -> None:
    assert (await judged(answer)).score == pytest.approx(score)


@pytest.mark.parametrize(
    ("answer", "status", "why"),
    [
        (completion("maybe"), 200, "neither"),
        (completion("I", ("I", 0.97), ("safe", 0.01)), 200, "neither"),
        (b'{"choices": []}', 200, "malformed"),
        (b"<html>", 200, "malformed"),
        (b"\xff\xfe", 200, "malformed"),
        (completion("", ("", 1.0)), 200, "nothing"),
        (b"{}", 503, "503"),
    ],
)
async def test_anything_else_is_no_judgement(answer: bytes, status: int, why: str) -> None:
    with pytest.raises(NotJudged, match=why):
        await judged(answer, status)


async def test_a_kind_is_read_where_the_text_is_unsafe() -> None:
    kinds = {"S1": "violence", "S4": "minors"}
    assert await judged(completion("unsafe\ns4,s1"), kinds=kinds) == (1.0, "violence")
    assert await judged(completion("safe s4"), kinds=kinds) == (0.0, "")
    assert kind_of(GuardConfig(url="x", kinds=kinds), "unsafe S12") == ""


async def test_a_request_bears_the_key_and_the_template(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-guard\n")
    async with endpoint(completion("safe")) as (url, requests):
        config = GuardConfig(url=url, key_file=str(tmp_path / "key"), template="<{text}>", logprobs=False)
        await (await RemoteGuard.open(config)).judge("hello")
    head, _, body = requests[0].partition(b"\r\n\r\n")
    assert b"POST /v1/chat/completions " in head and b"authorization: Bearer sk-guard\r\n" in head
    assert json.loads(body)["messages"][0]["content"] == "<hello>" and "logprobs" not in json.loads(body)


@pytest.mark.parametrize("key", ["", "two\nlines", "schlüssel"])
async def test_a_key_that_is_none_is_refused(tmp_path: Path, key: str) -> None:
    (tmp_path / "key").write_text(key)
    with pytest.raises(BadPolicy, match="no key"):
        await open_guard_model(GuardConfig(url="http://guard.example", key_file=str(tmp_path / "key")))
