"""Checks that each lock is what its inputs resolve to, without installing anything.

    .venv/bin/python -m deploy.resolve [LOCK ...]

uv resolves `requirements/GROUP.in` with the lock as its preference, from the index that this machine's settings name,
for the platform that the lock is for; the versions and hashes must come out as they stand. So a lock of packages that
no test can install (vLLM for GPUs) is known to be whole and installable. Ends with 1 and says what differs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from deploy.setup_env import REQUIREMENTS, pip_config, pip_settings, uv_environment

LINUX: Final = ("--python-platform", "x86_64-manylinux_2_28")
GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "base": ("--universal", "--constraint", "requirements/dev.lock"),
    "dev": ("--universal",),
    "clients-open-webui": (*LINUX, "--override", "requirements/clients-open-webui.overrides"),
    "vllm-cuda": (*LINUX, "--override", "requirements/vllm-cuda.overrides"),
}
"""The locks that are resolved: of what the server needs, what tests need, and what no test of `make test` installs."""
BESIDE_THE_INDEX: Final = ("clients-open-webui",)
"""The locks with a package that no ordinary index has: torch without CUDA, from PyTorch's own or a `find-links`."""
COMMON: Final = ("--quiet", "--python-version", "3.11", "--generate-hashes", "--no-header", "--no-annotate")


def differences(group: str, uv: Path, env: Mapping[str, str]) -> list[str]:
    """How a group's lock differs from what its input resolves to, a line each. Raises RuntimeError where uv cannot
    tell."""
    lock = REQUIREMENTS / f"{group}.lock"
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder) / lock.name
        shutil.copyfile(lock, fresh)  # uv prefers the versions that stand in its output
        command = [str(uv), "pip", "compile", *COMMON, "--no-emit-index-url", "--no-emit-find-links", *GROUPS[group]]
        done = subprocess.run(
            [*command, f"requirements/{group}.in", "-o", str(fresh)],
            capture_output=True, text=True, env=dict(env), cwd=REQUIREMENTS.parent,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{lock.name}: {done.stderr.strip()}")
        return compare(lock.name, lock.read_text(), fresh.read_text())


def sources(group: str, env: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment for uv: most locks are made without what a machine has besides the index."""
    beside = () if group in BESIDE_THE_INDEX else ("UV_FIND_LINKS", "UV_INDEX")
    return {name: value for name, value in env.items() if name not in beside}


def compare(name: str, locked: str, resolved: str) -> list[str]:
    """What differs between two locks. A hash that the index has besides those that are locked is none: makers add
    wheels for new platforms to an old release."""
    mine, fresh = _pins(locked), _pins(resolved)
    lines = [f"{name}: {pin} is locked and not needed" for pin in mine if pin not in fresh]
    lines += [f"{name}: {pin} is needed and not locked" for pin in fresh if pin not in mine]
    return lines + [
        f"{name}: {pin} has hashes that the index lacks" for pin in mine if mine[pin] - fresh.get(pin, mine[pin])
    ]


def _pins(text: str) -> dict[str, set[str]]:
    pins: dict[str, set[str]] = {}
    pin = ""
    for line in text.splitlines():
        if "==" in line and not line.startswith((" ", "#")):
            pin = line.split(";")[0].rstrip("\\ ").strip()
            pins[pin] = set()
        elif "--hash=" in line:
            pins[pin].add(line.strip().rstrip("\\ "))
    return pins


def main(arguments: Sequence[str]) -> int:
    uv = Path(sys.executable).parent / "uv"
    env = uv_environment(pip_settings(pip_config(Path(sys.executable))), os.environ)
    groups = list(arguments) or list(GROUPS)
    try:
        found = [line for group in groups for line in differences(group, uv, sources(group, env))]
    except RuntimeError as error:
        found = [str(error)]
    print("\n".join(found) or f"{len(groups)} locks are what their inputs resolve to")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
