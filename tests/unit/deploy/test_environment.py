"""Any Python starts `app.py`: one without our packages goes on in `.venv`, or prints how to make it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.environment import enter_environment

ROOT = Path(__file__).resolve().parents[3]
VERSION = "0.2.0"


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python that knows none of our packages."""
    folder = tmp_path_factory.mktemp("bare") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60)
    return str(folder / "bin" / "python")


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What of a fresh clone is needed to start, without an environment."""
    for name in ("app.py", "sessile", "deploy/environment.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy2(ROOT / name, tmp_path / name)
    return tmp_path


def test_a_python_with_our_packages_goes_on(tmp_path: Path) -> None:
    enter_environment(tmp_path)


def test_a_bare_python_goes_on_in_the_environment(bare: str, tmp_path: Path) -> None:
    done = run(bare, str(ROOT / "app.py"), "--version", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{VERSION}\n", "")


def test_a_fresh_clone_names_the_command_that_makes_the_environment(bare: str, clone: Path) -> None:
    done = run(bare, "app.py", "serve", cwd=clone)
    assert done.returncode == 2 and not done.stdout
    assert done.stderr == f"sessile: there is no environment yet: make it with `make setup` in {clone}\n"


def test_an_environment_that_lacks_packages_is_not_entered_again(bare: str, clone: Path) -> None:
    (clone / ".venv").symlink_to(Path(bare).parent.parent)
    for command in ((bare, "app.py"), ("./sessile", "--version")):
        done = run(*command, cwd=clone)
        assert done.returncode == 2 and f"{clone / '.venv'} lacks packages" in done.stderr
        assert "`make setup`" in done.stderr


def test_the_launcher_starts_every_command_from_any_folder(tmp_path: Path) -> None:
    assert os.access(ROOT / "sessile", os.X_OK)
    done = run(str(ROOT / "sessile"), "--version", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"{VERSION}\n")
    link = tmp_path / "link"
    link.symlink_to(ROOT / "sessile")
    done = run(str(link), "keys", "create", "--tenant", "acme", "--data", "data", "--json", cwd=tmp_path)
    assert (done.returncode, done.stdout[:1]) == (0, "{"), done.stderr
    assert (tmp_path / "data").is_dir(), "paths are the caller's"
