"""One server with a real model, as `make serve` starts it: asked, killed in the middle of an answer, started again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from testbed.server_process import ServerProcess

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


@pytest.mark.slow
def test_an_added_tool_outlives_its_server_and_its_secret_is_in_no_file(tmp_path: Path) -> None:
    """Added over the API, killed -9 behind the answer, started again: a turn names it; its header stands nowhere."""
    data, tools, log, secret = tmp_path / "data", tmp_path / "tools.toml", tmp_path / "log", "s3cr3t-of-the-weather"
    tools.touch()
    flags = ("--engine", "sim", "--tools", str(tools), "--log-level", "debug")
    with ServerProcess(*flags, data=str(data), log=log) as server:
        table = {"url": "https://weather.example/now", "headers": {"authorization": f"Bearer {secret}"}}
        with http(server) as client:
            made = client.put("/v1/tools/weather", json=table)
            server.kill()
        server.start()
        with http(server) as client:
            shown = client.get("/v1/tools/weather")
            assert shown.status_code == 200 and shown.headers["etag"] == made.headers["etag"]
            tool = {"type": "function", "name": "weather", "server": True}
            body = {"model": model_name(server), "input": "hello", "tools": [tool], "max_output_tokens": 8}
            assert client.post("/v1/responses", json=body).status_code == 200
            other = client.post("/v1/responses", json={**body, "tools": [{**tool, "name": "other"}]})
            assert other.status_code == 404
    kept = [each for each in data.rglob("*") if each.is_file()]
    assert data / "journal.db" in kept
    assert [each for each in (log, *kept) if secret.encode() in each.read_bytes()] == []


def http(server: ServerProcess) -> httpx.Client:
    return httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=120)


def model_name(server: ServerProcess) -> str:
    with http(server) as client:
        return str(client.get("/v1/models").json()["data"][0]["id"])


def events(answer: httpx.Response) -> Any:
    for line in answer.iter_lines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))
