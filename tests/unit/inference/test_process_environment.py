"""vLLM's processes get what they need of the environment and none of its secrets."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from inference.process_environment import only_handed_over

SECRETS = {
    "SESSILE_API_KEY": "a",
    "SESSILE_JOURNAL": "postgresql://user:password@127.0.0.1/db",
    "AWS_SECRET_ACCESS_KEY": "b",
    "HF_TOKEN": "c",
    "VLLM_API_KEY": "d",
    "HTTPS_PROXY": "http://user:password@127.0.0.1",
}


def test_a_process_that_is_spawned_meanwhile_has_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("VLLM_FLAG", "1")
    with only_handed_over(os.environ):
        os.environ["VLLM_LATER"] = "2"
        seen = subprocess.run([sys.executable, "-c", "import os; print(*os.environ)"], capture_output=True, text=True)
    names = set(seen.stdout.split())
    assert {"PATH", "VLLM_FLAG", "VLLM_LATER"} <= names and not names & set(SECRETS)
    assert {name: os.environ[name] for name in SECRETS} == SECRETS and os.environ.pop("VLLM_LATER") == "2"


def test_what_was_put_away_comes_back_where_the_start_fails() -> None:
    environment = dict(SECRETS)
    with pytest.raises(RuntimeError), only_handed_over(environment):
        assert not environment
        raise RuntimeError
    assert environment == SECRETS
