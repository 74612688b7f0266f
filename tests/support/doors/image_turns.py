"""Three turns about an image, through the door of chat completions."""

from __future__ import annotations

import base64
from typing import Any

import httpx

from tests.support.engines.tiny_projector import noise


def url_of(seed: int) -> str:
    return f"data:image/png;base64,{base64.b64encode(noise(seed)).decode()}"


async def three_turns(http: httpx.AsyncClient, model: str, seed: int | None) -> list[tuple[str, dict[str, Any], Any]]:
    """Returns each answer's text, usage and log probabilities. `seed`: that of the image; None for a conversation
    without one."""
    content: list[dict[str, Any]] = [{"type": "text", "text": "where does the river go?"}]
    if seed is not None:
        content.insert(0, {"type": "image_url", "image_url": {"url": url_of(seed)}})
    messages: list[dict[str, Any]] = [{"role": "user", "content": content}]
    answers = []
    for question in ("and where?", "and it?", ""):
        body = {"model": model, "messages": messages, "temperature": 0, "max_tokens": 12, "logprobs": True}
        answer = (await http.post("/v1/chat/completions", json=body)).json()
        (choice,) = answer["choices"]
        text = choice["message"]["content"]
        answers.append((text, answer["usage"], choice["logprobs"]))
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": question}]
    return answers


async def sees(http: httpx.AsyncClient, model: str) -> bool:
    """Returns whether a model's entry in the list of models says that it sees."""
    models = (await http.get("/v1/models")).json()["data"]
    return any(each["id"] == model and each["input_modalities"] == ["text", "image"] for each in models)
