"""Checks every lock for releases that their makers have withdrawn from the package index (PEP 592).

    .venv/bin/python -m deploy.withdrawn [LOCK ...]

A release is withdrawn when it turns out to be broken or unsafe, and every index says so; known vulnerabilities are
`make audit`'s, which needs an index that tells them. Installs nothing. Ends with 1 and names each withdrawn release, or
what the index would not give.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from deploy.setup_env import REQUIREMENTS, pip_config, pip_settings, uv_environment

MARK = " is yanked"


def withdrawn_pins(lock: Path, uv: Path, env: Mapping[str, str]) -> list[str]:
    """What uv says of the lock's withdrawn releases, a line each. Raises RuntimeError where it cannot tell."""
    with tempfile.TemporaryDirectory() as nowhere:
        options = ["--dry-run", "--no-deps", "--require-hashes", "--target", nowhere, "-r", str(lock)]
        done = subprocess.run([str(uv), "pip", "install", *options], capture_output=True, text=True, env=dict(env))
    if done.returncode:
        raise RuntimeError(f"{lock.name}: {done.stderr.strip()}")
    return [f"{lock.name}: {line}" for line in done.stderr.splitlines() if MARK in line]


def main(arguments: Sequence[str]) -> int:
    uv = Path(sys.executable).parent / "uv"
    env = uv_environment(pip_settings(pip_config(Path(sys.executable))), os.environ)
    locks = [Path(each) for each in arguments] or sorted(REQUIREMENTS.glob("*.lock"))
    try:
        found = [line for lock in locks for line in withdrawn_pins(lock, uv, env)]
    except RuntimeError as error:
        found = [str(error)]
    print("\n".join(found) or f"{len(locks)} locks, no release withdrawn")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
