"""Policies with each kind of guard, for tests of what a server listens on."""

from __future__ import annotations

from pathlib import Path
from typing import Final

POLICY: Final = """
[policies.default]
deadline_ms = 60000
[policies.default.input]
{filter} = {{ action = "flag", threshold = 0.5 }}
"""
FILE: Final = """
[guards.default]
model_path = "{model_path}"
context = 512
"""
ENDPOINT: Final = """
[guards.default]
url = "http://127.0.0.1:9/v1"
"""


def guard_flags(guard: str, folder: Path, model_path: Path) -> list[str]:
    """Flags for a server with a guard: "none", a "classifier", an "endpoint" or the model "file"."""
    if guard == "none":
        return []
    where = {"endpoint": ENDPOINT, "file": FILE.format(model_path=model_path)}.get(guard, "")
    policy = folder / "policy.toml"
    policy.write_text(where + POLICY.format(filter="guard" if where else "toxicity"))
    return ["--policy", str(policy)]
