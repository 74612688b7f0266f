"""Creates `.venv` and installs locked dependency groups into it.

Decides: which Python is good enough, whether a lock is already installed, and how the person's pip
configuration reaches uv (which does not read it). A group is one file `requirements/GROUP.lock`.

Invariants: only what a lock names is installed, at the locked version, and only if its hash matches.
Packages are added or changed, never removed: several tools may share one environment. A stamp with the
lock's hash makes the next call a matter of milliseconds. Two calls at once wait for each other.

Does NOT know: what the packages are for, and any registry's address (locks record none; pip's or uv's own
settings say where packages come from).

Runs on the bare standard library, because nothing else is there yet:

    python3.11 deploy/setup_env.py base            # what the server needs
    python3.11 deploy/setup_env.py base dev        # and what `make test` needs
    python3.11 deploy/setup_env.py --venv .venv-x x    # another environment for requirements/x.lock
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import fcntl
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements"
PYTHON_MIN = (3, 11)

# pip option -> the uv variable that means the same. Lists are separated by spaces in both.
PIP_TO_UV = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "no-index": "UV_NO_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "timeout": "UV_HTTP_TIMEOUT",
    "cert": "SSL_CERT_FILE",
    "proxy": "ALL_PROXY",
}


class SetupError(Exception):
    """Setting up failed; the message says what to do."""


def log(text: str) -> None:
    print(f"[setup] {text}", flush=True)


def run(*command: str | Path, env: Mapping[str, str] | None = None) -> bool:
    """Run a command with its output passed through; True when it succeeded."""
    return subprocess.run([str(part) for part in command], env=env, cwd=ROOT).returncode == 0


def run_pip(python: str | Path, *words: str | Path) -> bool:
    """Runs pip; True when it succeeded. Its bars are drawn on a terminal; its warnings, of a newer pip or of a source
    that is not there, are shown only where it failed."""
    command = [str(python), "-m", "pip", *map(str, words)]
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True, errors="replace")
    if done.returncode != 0:
        sys.stderr.write(done.stderr)
    return done.returncode == 0


def pip_config(python: Path) -> str:
    command = [str(python), "-m", "pip", "config", "list"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def pip_settings(config_list: str) -> dict[str, str]:
    """The options that hold for `pip install`, from the output of `pip config list`.

    A line is `SECTION.OPTION='VALUE'`; the environment stands over `install`, which stands over `global`.
    """
    found: dict[str, str] = {}
    for section in ("global", "install", ":env:"):
        for line in config_list.splitlines():
            key, _, value = line.partition("=")
            name = key.removeprefix(f"{section}.")
            if name != key:
                found[name.removeprefix(".")] = str(ast.literal_eval(value))
    return found


def uv_environment(settings: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for uv: pip's settings in uv's words. What is set for uv itself stays as it is."""
    env = dict(environ)
    for option, variable in PIP_TO_UV.items():
        value = settings.get(option)
        if value:
            # UV_FIND_LINKS is the one list that uv separates by commas.
            separator = "," if variable == "UV_FIND_LINKS" else " "
            env.setdefault(variable, separator.join(value.split()))
    # pip looks at every index for the best match, uv at the first that knows the name. With pinned versions
    # and hashes it makes no difference to safety, and only pip's way finds a version that one index lacks.
    env.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")
    env.setdefault("UV_SYSTEM_CERTS", "true")
    env["UV_PYTHON_DOWNLOADS"] = "never"
    return env


@contextlib.contextmanager
def hold_lock(venv: Path) -> Iterator[None]:
    """Hold the environment for this process; a second caller waits until the first is done."""
    lock_path = ROOT / ".cache" / f"setup-{venv.name}.lock"
    lock_path.parent.mkdir(exist_ok=True)
    with lock_path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log(f"another setup is at work on {venv.name}; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def ensure_venv(venv: Path) -> Path:
    """The environment's Python, after creating the environment if it is missing or broken."""
    python = venv / "bin" / "python"
    works = python.exists() and run(python, "-c", "pass")
    if works and importable(python, "pip"):
        return python
    if venv.exists() and not works:
        log(f"{venv.name} does not work (its Python is gone): making it anew")
    log(f"creating {venv.name} with Python {sys.version.split()[0]}")
    # Without --clear an environment that merely lacks pip is completed and keeps its packages.
    if not run(sys.executable, "-m", "venv", *([] if works else ["--clear"]), venv):
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise SetupError(
            f"this Python cannot make virtual environments; on Debian: apt-get install python{version}-venv"
        )
    return python


def importable(python: Path, module: str) -> bool:
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return run(python, "-c", code)


def stamp_of(lock: Path) -> str:
    return hashlib.sha256(lock.read_bytes()).hexdigest()


def ensure_uv(venv: Path, python: Path) -> Path | None:
    """uv inside the environment, or None where it cannot be had (pip then does the work, slower)."""
    uv = venv / "bin" / "uv"
    lock = REQUIREMENTS / "bootstrap.lock"
    stamp = venv / ".installed-bootstrap"
    if uv.exists() and stamp.exists() and stamp.read_text() == stamp_of(lock):
        return uv
    log("fetching the installer (uv)")
    if run_pip(python, "install", "--quiet", "--require-hashes", "--no-deps", "-r", lock):
        stamp.write_text(stamp_of(lock))
        return uv
    log("uv cannot be had here: going on with pip alone, which takes longer")
    return None


def install(venv: Path, groups: list[str]) -> None:
    """Install every group whose lock changed since its stamp was written."""
    locks = {group: REQUIREMENTS / f"{group}.lock" for group in groups}
    for group, lock in locks.items():
        if not lock.is_file():
            raise SetupError(f"no requirements/{group}.lock: known groups are {', '.join(known_groups())}")
    stamps = {group: venv / f".installed-{group}" for group in groups}

    def is_done(group: str) -> bool:
        return stamps[group].exists() and stamps[group].read_text() == stamp_of(locks[group])

    if (venv / "bin" / "python").exists() and all(is_done(group) for group in groups):
        return
    started = time.monotonic()
    with hold_lock(venv):
        python = ensure_venv(venv)
        pending = [group for group in groups if not is_done(group)]
        if not pending:
            return
        uv = ensure_uv(venv, python)
        for group in pending:
            lock = locks[group]
            count = sum("==" in line for line in lock.read_text().splitlines())
            log(f"installing {group} ({count} packages from requirements/{lock.name})")
            if uv is not None:
                env = uv_environment(pip_settings(pip_config(python)), os.environ)
                done = run(
                    uv, "pip", "install", "--python", python, "--require-hashes", "--no-deps", "-r", lock, env=env
                )
            else:
                done = run_pip(python, "install", "--require-hashes", "--no-deps", "-r", lock)
            if not done:
                raise SetupError(
                    f"installing requirements/{lock.name} failed; the lines above say why. Nothing is half"
                    " done: run the same command again once the cause is gone"
                )
            stamps[group].write_text(stamp_of(lock))
    log(f"{', '.join(groups)} ready in {time.monotonic() - started:.0f} s")


def known_groups() -> list[str]:
    return sorted(path.stem for path in REQUIREMENTS.glob("*.lock"))


def main() -> int:
    os.umask(0o022)  # a server that was started as root, PostgreSQL among them, runs what is installed as somebody else
    if sys.version_info < PYTHON_MIN:
        log(f"Python {'.'.join(map(str, PYTHON_MIN))} or newer is needed; this is {sys.version.split()[0]}")
        return 1
    parser = argparse.ArgumentParser(description="Create the environment and install locked dependencies.")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv", help="environment folder (.venv)")
    parser.add_argument("groups", nargs="+", metavar="GROUP", help=f"one of {', '.join(known_groups())}")
    arguments = parser.parse_args()
    try:
        install(arguments.venv.resolve(), arguments.groups)
    except (SetupError, OSError, subprocess.CalledProcessError) as error:
        log(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
