"""`serve --engine chat`: a conversation whose model a provider has, which is a server of our own here."""

from __future__ import annotations

import asyncio
import base64
import re
from typing import Any

import httpx
import pytest

from tests.support.doors.server_process import ServerProcess
from tests.support.images.made import a_pattern, encoded

QUESTION = {"role": "user", "content": "Tell of a river."}


def in_front_of(provider: ServerProcess, model: str = "simulated") -> ServerProcess:
    url = f"http://127.0.0.1:{provider.port}/v1"
    return ServerProcess("--engine", "chat", "--engine-url", url, "--model", model)


def as_url(size: tuple[int, int]) -> str:
    return f"data:image/png;base64,{base64.b64encode(encoded(a_pattern(size=size))).decode()}"


async def ask(server: ServerProcess, **body: Any) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}/v1", timeout=120) as http:
        answer = await http.post("/chat/completions", json={"model": "simulated", "max_tokens": 40, **body})
        return answer.raise_for_status().json()  # type: ignore[no-any-return]


@pytest.mark.slow
async def test_a_conversation_is_the_providers_and_an_answer_that_it_breaks_off_is_incomplete() -> None:
    with ServerProcess("--engine", "sim") as provider, in_front_of(provider) as server:
        messages: list[dict[str, Any]] = [QUESTION]
        for _ in range(2):
            answer, its_own = [await ask(each, messages=messages) for each in (server, provider)]
            (choice,) = answer["choices"]
            assert choice["message"]["content"] == its_own["choices"][0]["message"]["content"]
            assert choice["finish_reason"] == its_own["choices"][0]["finish_reason"]
            messages += [choice["message"], {"role": "user", "content": "And then?"}]
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}/v1", timeout=120) as http:
            body = {"model": "simulated", "input": "A long story.", "background": True, "max_output_tokens": 4_000}
            begun = (await http.post("/responses", json=body)).json()
            async with http.stream("GET", f"/responses/{begun['id']}?stream=true") as stream:
                async for line in stream.aiter_lines():
                    if '"response.output_text.delta"' in line and provider.process is not None:
                        await asyncio.to_thread(provider.kill)
            ended = (await http.get(f"/responses/{begun['id']}")).json()
        assert (ended["status"], ended["incomplete_details"]) == ("incomplete", {"reason": "recovery_incompatible"})
        assert ended["output"][0]["content"][0]["text"]


@pytest.mark.slow
async def test_images_go_on_to_a_provider_that_says_that_its_model_sees() -> None:
    with ServerProcess("--engine", "sim", "--images", "yes") as provider, in_front_of(provider) as server:
        answers = []
        for url in (as_url((96, 64)), as_url((64, 96))):
            parts = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": url}}]
            answer, its_own = [
                await ask(each, messages=[{"role": "user", "content": parts}]) for each in (server, provider)
            ]
            said = answer["choices"][0]["message"]["content"]
            assert said == its_own["choices"][0]["message"]["content"], "the provider got the same image"
            answers.append(said)
        assert answers[0] != answers[1]
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}/v1", timeout=120) as http:
            models = (await http.get("/models")).json()["data"]
        assert "image" in next(model for model in models if model["id"] == "simulated")["input_modalities"]


@pytest.mark.slow
async def test_a_model_that_the_provider_does_not_list_is_refused_at_the_start(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with ServerProcess("--engine", "sim") as provider:
        server = in_front_of(provider, "gpt")
        with pytest.raises(RuntimeError):
            await asyncio.to_thread(server.start)
    assert re.search(r"has no model 'gpt'\. It has .*simulated", capfd.readouterr().err)
