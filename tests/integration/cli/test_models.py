"""A model by name, from the command line: pulled from a stand-in of the hub, listed, served, removed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import httpx
import pytest

from testbed.server_process import ROOT, ServerProcess
from tests.support.engines.hub_server import HubRepo, HubServer

pytestmark = pytest.mark.slow

REPO, NAME = "acme/tiny-GGUF", "hf:acme/tiny-GGUF:Q4_1"


def sessile(*arguments: str, folder: Path, hub: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HF_ENDPOINT": hub, "SESSILE_MODEL_FOLDER": str(folder), "HF_TOKEN": "hf_test"}
    command = [sys.executable, "app.py", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.model
def test_a_model_of_a_hub_is_pulled_served_under_its_names_and_removed(
    model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with HubServer() as hub:
        hub.repos[REPO] = HubRepo({"tiny-Q4_1.gguf": model_path.read_bytes(), "README.md": b"#"})
        hub.cut_after, hub.cuts_left = 30_000_000, 2
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("SESSILE_MODEL_FOLDER", str(tmp_path))
        flags = ("--slots", "1", "--context", "512", "--threads", "1")
        with ServerProcess("--model", NAME, "--served-model-name", "tiny,gpt-4o", *flags) as server:
            base = f"http://127.0.0.1:{server.port}/v1"
            with urllib.request.urlopen(f"{base}/models") as listed:
                assert [each["id"] for each in json.load(listed)["data"]][:2] == ["tiny", "gpt-4o"]
            body = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
            asked_for = urllib.request.Request(
                f"{base}/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
            )
            with urllib.request.urlopen(asked_for) as answer:
                assert json.load(answer)["model"] == "tiny"
    nowhere = hub.url  # it is gone; what was pulled is enough
    listed_models = sessile("models", "list", "--json", folder=tmp_path, hub=nowhere)
    rows = {row["name"]: row for row in json.loads(listed_models.stdout)}
    assert rows["hf:acme/tiny-GGUF:tiny-Q4_1.gguf"]["licence"] == "apache-2.0"
    removed = sessile("models", "remove", NAME, folder=tmp_path, hub=nowhere)
    assert removed.stdout.startswith("removed hf:acme/tiny-GGUF")
    assert list((tmp_path / "hub").iterdir()) == []
    again = sessile("models", "pull", NAME, folder=tmp_path, hub=nowhere)
    assert again.returncode == 2 and "The hub cannot be reached" in again.stderr and "Traceback" not in again.stderr


def test_what_is_no_model_is_refused_with_what_there_is(tmp_path: Path) -> None:
    with HubServer() as hub:
        hub.repos[REPO] = HubRepo({"README.md": b"#"})
        for name, sentence in (
            ("nonsense", "expected hf:ORG/REPO"),
            (f"hf:{REPO}", "has no GGUF file"),
            ("hf:acme/nothing", "The hub has no hf:acme/nothing"),
        ):
            refused = sessile("models", "pull", name, folder=tmp_path, hub=hub.url)
            assert refused.returncode == 2 and sentence in refused.stderr and "Traceback" not in refused.stderr


@pytest.mark.model
def test_a_model_that_does_not_fit_is_refused_with_what_would(model_path: Path, tmp_path: Path) -> None:
    flags = ("--model", str(model_path), "--slots", "4096", "--context", "8192", "--data", str(tmp_path))
    refused = sessile("serve", "--port", "0", *flags, folder=tmp_path, hub="http://127.0.0.1:1")
    assert refused.returncode == 2 and "Traceback" not in refused.stderr
    assert "4096 × 8192 tokens of KV" in refused.stderr and "what would fit is --slots " in refused.stderr


@pytest.mark.model
def test_a_shipped_model_has_one_name_for_the_command_and_the_api(model_path: Path) -> None:
    flags = ("--slots", "1", "--context", "512", "--threads", "1")
    with (
        ServerProcess("--model", "SMOLLM2-135M", *flags) as server,
        httpx.Client(base_url=f"http://127.0.0.1:{server.port}/v1", timeout=60) as http,
    ):
        assert http.get("/models").json()["data"][0]["id"] == model_path.stem

        def answered(name: str) -> httpx.Response:
            turn = {"model": name, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
            return http.post("/chat/completions", json=turn)

        for name in ("smollm2-135m", "SmolLM2-135M", model_path.stem):
            assert answered(name).json()["model"] == model_path.stem
        refused = answered("smollm2-135")
    assert refused.status_code == 404
    assert "Did you mean 'smollm2-135m'?" in refused.json()["error"]["message"]
