"""Each command loads what it needs and no more: which of the heavy parts are in memory when it ends. Figures of time are
nobody's business here: a part that is not loaded takes none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SERVER = ("uvicorn", "starlette", "grpc", "transport.gateway", "actors.hosting", "inference.factory")
DATABASES = ("redis", "asyncpg", "persistence.sqlite", "persistence.postgres")
ENGINES = ("xllamacpp", "vllm", "torch", "spacy", "jinja2", "huggingface_hub", "inference.llama.engine")
LITTLE = ("structlog", "urllib.request", "cryptography", "sessions.machine")
REPORT = """
import atexit, sys
atexit.register(lambda: print("loaded", *sorted(sys.modules), file=sys.stderr))
"""


@pytest.mark.parametrize(
    ("words", "not_loaded"),
    [
        (("--help",), (*SERVER, *DATABASES, *ENGINES, *LITTLE)),
        (("--version",), (*SERVER, *DATABASES, *ENGINES, *LITTLE)),
        (("serve", "--help"), (*SERVER, *DATABASES, *ENGINES, *LITTLE)),
        (("keys", "create", "--help"), (*SERVER, *DATABASES, *ENGINES, *LITTLE)),
        (("srve",), (*SERVER, *DATABASES, *ENGINES, *LITTLE)),
        (("models", "list"), (*SERVER, *DATABASES, *ENGINES)),
        (("keys", "list", "--url", "http://127.0.0.1:1"), (*SERVER, *DATABASES, *ENGINES)),
        (("audit", "verify", "--url", "http://127.0.0.1:1"), (*SERVER, *DATABASES, *ENGINES)),
        (("encryption", "status", "--url", "http://127.0.0.1:1"), (*SERVER, *DATABASES, *ENGINES)),
        (("tokens", "list", "--url", "http://127.0.0.1:1"), (*SERVER, *DATABASES, *ENGINES)),
        (("users", "export", "mary", "--url", "http://127.0.0.1:1"), (*SERVER, *DATABASES, *ENGINES)),
        (("keys", "list", "--data", "nowhere"), (*SERVER, *ENGINES, "redis")),
        (("audit", "verify", "--data", "nowhere"), (*SERVER, *ENGINES, "redis")),
        (("users", "erase", "mary", "--tenant", "acme", "--data", "nowhere"), (*SERVER, *ENGINES, "redis")),
        (("usage", "reconcile", "--data", "nowhere"), (*SERVER, *ENGINES, "redis")),
        (("restore", "--from", "nowhere"), (*SERVER, *ENGINES, "redis")),
        (("plan", "--json"), (*SERVER, *DATABASES, *ENGINES)),
        (("replicas", "--directory", "redis://127.0.0.1:1"), ("transport.gateway", "uvicorn", *ENGINES)),
        (("doctor", "--directory", "redis://127.0.0.1:1"), ("transport.gateway", "uvicorn", *ENGINES)),
    ],
    ids=lambda value: " ".join(value[:2]) if value and value[0] not in SERVER else "",
)
def test_a_command_loads_only_what_it_needs(
    words: tuple[str, ...], not_loaded: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(REPORT)
    done = subprocess.run(
        [sys.executable, str(ROOT / "app.py"), *words],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    (report,) = (line for line in done.stderr.splitlines() if line.startswith("loaded "))
    loaded = report.split()
    assert "transport.cli.commands" in loaded, done.stderr
    assert [name for name in loaded if any(name == each or name.startswith(f"{each}.") for each in not_loaded)] == []
