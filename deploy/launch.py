"""Starts the server as `make serve` does: on the GPU where one fits, with packages and a model that are fetched first.

    python3 deploy/launch.py [OPTIONS OF `./sessile serve`]

Says what it found and what it chose, makes the environment that goes with it (`.venv`, or `.venv-vllm-cuda` with vLLM
for an NVIDIA GPU), fetches the default model where no other one is named, and becomes the server. What a person has set
(--device, --engine, --model, as an option, a SESSILE_* variable or a line of --config) is never overruled.

Runs on the bare standard library.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # as a script its own folder alone is there

from deploy.devices import Choice, DeviceError, Devices, choose, find_devices, packages_cuda
from deploy.setup_env import ROOT, SetupError, install
from deploy.shipped_models import DEFAULT, SHIPPED, shipped_model

SETTINGS = ("device", "engine", "model")
HUB = "hf:"


class LaunchPlan(NamedTuple):
    """How the server is started."""

    choice: Choice
    group: str  # the lock of its environment
    fetch: str  # the shipped model to fetch first; "": none
    convert: bool  # into the format that vLLM reads
    arguments: tuple[str, ...]  # of `app.py serve`


def given_settings(arguments: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """What a person has set, of the settings that are looked at here. A file that cannot be read is the server's to
    refuse."""
    given: dict[str, str] = {}
    flags: dict[str, str] = {}
    for index, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name.startswith("--"):
            flags[name[2:].replace("-", "_")] = value if equals else next(iter(arguments[index + 1 : index + 2]), "")
    if "config" in flags:
        with contextlib.suppress(OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
            given |= {name: str(value) for name, value in tomllib.loads(Path(flags["config"]).read_text()).items()}
    given |= {name: text for name in SETTINGS if (text := environ.get(f"SESSILE_{name.upper()}"))}
    return {name: value for name, value in (given | flags).items() if name in SETTINGS}


def plan(
    arguments: Sequence[str], given: Mapping[str, str], machine: Devices, cuda: tuple[int, int] | None
) -> LaunchPlan:
    """Raises DeviceError for a device that was named and cannot be used, and for a file that its engine cannot read."""
    engine, model = given.get("engine", ""), given.get("model", "default")
    if engine in ("sim", "chat"):
        why = "the simulated engine" if engine == "sim" else "a provider's model"
        return LaunchPlan(Choice("llama", "cpu", why), "base", "", False, tuple(arguments))
    gguf = is_gguf(model)
    if gguf and engine == "vllm" and not model.startswith(HUB):  # of a hub's, its list of files says more than a name
        raise DeviceError(f"--engine vllm reads a folder, or hf:ORG/REPO, and {model} is a GGUF: leave --engine out")
    choice = choose(
        machine,
        device=given.get("device", "auto"),
        engine="llama" if gguf and not engine else engine,
        cuda=cuda,
        named="" if engine else f"because {model} is a GGUF, which vLLM does not read",
    )
    shipped = shipped_model(DEFAULT.name if model == "default" else model)
    fetch = shipped.name if shipped is not None else ""
    added = () if engine or choice.engine == "llama" else ("--engine", "vllm")
    return LaunchPlan(
        choice,
        choice.environment.removeprefix(".venv-") if choice.engine == "vllm" else "base",
        fetch,
        bool(fetch) and choice.engine == "vllm",
        (*arguments, *added),
    )


def is_gguf(model: str) -> bool:
    """Whether `--model` names GGUF files, which llama.cpp reads: by its ending, or as repositories of a hub are named
    that hold nothing else."""
    if not model.startswith(HUB):
        return model.lower().endswith(".gguf")
    repository, _, file = model.removeprefix(HUB).partition(":")
    name = repository.partition("@")[0].rpartition("/")[2]
    return bool(file) or "gguf" in re.split(r"[-_.]", name.lower())


def main(arguments: Sequence[str]) -> int:
    machine = find_devices()
    try:
        start = plan(arguments, given_settings(arguments, os.environ), machine, packages_cuda())
        print(f"[device] {machine}; chosen: {start.choice.why}", flush=True)
        environment = ROOT / start.choice.environment
        install(environment, [start.group])
    except (DeviceError, SetupError, OSError, subprocess.CalledProcessError) as error:
        print(f"[device] {error}", flush=True)
        return 2
    python = str(environment / "bin" / "python")
    added: tuple[str, ...] = ()
    if start.fetch:
        steps = [[python, "deploy/fetch_model.py", start.fetch]]
        if start.convert:
            model = SHIPPED[start.fetch].path
            steps.append([python, "deploy/convert_model.py", "--model", str(model), "--dtype", "bfloat16"])
            names = f"{model.stem},{start.fetch}"
            added = ("--model", str(model.with_name(f"{model.stem}-vllm-bf16")), "--served-model-name", names)
        for step in steps:
            if subprocess.run(step, cwd=ROOT).returncode:
                return 1
    become([python, str(ROOT / "app.py"), "serve", *start.arguments, *added])


def become(command: Sequence[str]) -> NoReturn:
    """The server in this process' place, so that a signal reaches it and nobody in between."""
    sys.stdout.flush()
    os.execv(command[0], list(command))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
