"""One server with a real model, as `make serve` starts it: asked, killed in the middle of an answer, started again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.doors.server_process import ServerProcess

QUESTION = "Tell a long story about a river, a bridge and a town."


@pytest.mark.model
def test_an_answer_outlives_its_server(tmp_path: Path, model_path: Path) -> None:
    with ServerProcess("--model", str(model_path), "--threads", "1", data=str(tmp_path / "data")) as server:
        # Greedy: a sampled answer may end within a sentence, before anything was cut off. In the background: any other
        # is cancelled if its client is not back within seconds, which a slow start may take.
        body = {
            "model": model_name(server),
            "input": QUESTION,
            "stream": True,
            "background": True,
            "max_output_tokens": 120,
            "temperature": 0,
        }
        response, shown = "", ""
        with http(server) as client, client.stream("POST", "/v1/responses", json=body) as answer:
            for event in events(answer):
                response = event.get("response", {}).get("id", response)
                shown += event["delta"] if event["type"] == "response.output_text.delta" else ""
                if len(shown) > 20:
                    break
            server.kill()
        server.start()
        with http(server) as client, client.stream("GET", f"/v1/responses/{response}?stream=true") as answer:
            done = [event for event in events(answer) if event["type"] in ("response.completed", "response.incomplete")]
    text = done[-1]["response"]["output"][0]["content"][0]["text"]
    assert text.startswith(shown) and len(text) > len(shown)


def test_a_start_says_what_a_user_can_use_and_no_more(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with ServerProcess("--engine", "sim", "--log-level", "info", data=str(tmp_path / "data"), log=log):
        pass
    said = [json.loads(line)["event"] for line in log.read_text().splitlines() if line.startswith("{")]
    assert said[: said.index("stopping")] == ["server_started"]


def http(server: ServerProcess) -> httpx.Client:
    return httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=120)


def model_name(server: ServerProcess) -> str:
    with http(server) as client:
        return str(client.get("/v1/models").json()["data"][0]["id"])


def events(answer: httpx.Response) -> Any:
    for line in answer.iter_lines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))
