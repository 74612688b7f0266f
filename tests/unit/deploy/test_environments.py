"""Environments and launchers: any Python goes on in `.venv`, pip's settings reach uv, what scripts say."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploy import generate_protos, setup_env
from deploy.environment import enter_environment
from deploy.generate_protos import MADE, PROTO, ROOT, main

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


def test_the_environment_stands_over_install_and_install_over_global() -> None:
    listed = (
        "global.index-url='https://one.invalid/simple'\n"
        "global.timeout='60'\n"
        "install.index-url='https://two.invalid/simple'\n"
        "download.timeout='5'\n"
        ":env:.find-links='wheels'\n"
    )
    assert setup_env.pip_settings(listed) == {
        "index-url": "https://two.invalid/simple",
        "timeout": "60",
        "find-links": "wheels",
    }
    overruled = listed + ":env:.index-url='https://three.invalid/simple'\n"
    assert setup_env.pip_settings(overruled)["index-url"] == "https://three.invalid/simple"


def test_every_pip_setting_becomes_uvs_and_no_other_does() -> None:
    settings = {
        "index-url": "https://a.invalid/simple",
        "extra-index-url": "https://b.invalid/simple\nhttps://c.invalid/simple",
        "find-links": "one\ntwo",
        "cert": "ca.pem",
    }
    plain = setup_env.uv_environment({}, {})
    assert not {"UV_DEFAULT_INDEX", "UV_INDEX", "UV_FIND_LINKS", "SSL_CERT_FILE", "UV_NO_INDEX"} & plain.keys()
    # One index may know a name but lack the locked version; pip would look at the next, and so must uv.
    assert setup_env.uv_environment(settings, {"PATH": "bin", "UV_FIND_LINKS": "uvs"}) == plain | {
        "UV_DEFAULT_INDEX": "https://a.invalid/simple",
        "UV_INDEX": "https://b.invalid/simple https://c.invalid/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_FIND_LINKS": "uvs",
        "SSL_CERT_FILE": "ca.pem",
        "PATH": "bin",
    }
    assert setup_env.uv_environment(settings, {})["UV_FIND_LINKS"] == "one,two"


def test_an_unknown_group_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(setup_env.SetupError, match=r"no requirements/nosuch\.lock.*base.*dev"):
        setup_env.install(tmp_path / "venv", ["nosuch"])
    assert not (tmp_path / "venv").exists()


def test_a_stamp_follows_the_lock_and_nothing_else(tmp_path: Path) -> None:
    lock = tmp_path / "x.lock"
    lock.write_text("a==1\n")
    first = setup_env.stamp_of(lock)
    assert first == hashlib.sha256(b"a==1\n").hexdigest()
    lock.write_text("a==2\n")
    assert setup_env.stamp_of(lock) != first


def test_an_old_python_is_refused_before_anything_is_made(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(setup_env, "PYTHON_MIN", (sys.version_info.major, sys.version_info.minor + 1))
    assert setup_env.main() == 1
    assert "or newer is needed" in capsys.readouterr().out


@pytest.mark.parametrize(("status", "shown"), [(0, ""), (1, "WARNING: a source is not there\n")])
def test_pip_warns_only_where_it_failed(
    status: int, shown: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho 'WARNING: a source is not there' >&2\nexit {status}\n")
    python.chmod(0o755)
    assert setup_env.run_pip(python, "download", "x") is (status == 0)
    assert capsys.readouterr().err == shown


def test_without_lists_of_packages_it_says_what_to_run(tmp_path: Path) -> None:
    """The script ended silently: nothing of what `apt-cache` printed was a server."""
    for program in ("apt-get", "apt-cache"):
        stub = tmp_path / "bin" / program
        stub.parent.mkdir(exist_ok=True)
        stub.write_text("#!/bin/sh\n")
        stub.chmod(0o755)
    script = tmp_path / "deploy" / "ensure_backups.sh"
    script.parent.mkdir()
    shutil.copy(ROOT / "deploy" / script.name, script)
    ended = subprocess.run(
        ["bash", str(script)],
        env={"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1 and "[backups] not run" in ended.stderr and "apt-get update" in ended.stderr


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the .proto in a copy of the repository's part that matters."""
    folder = (tmp_path / PROTO).parent
    folder.mkdir(parents=True)
    for name in (Path(PROTO).name, *MADE):
        shutil.copy((ROOT / PROTO).with_name(name), folder / name)
    monkeypatch.setattr(generate_protos, "ROOT", tmp_path)
    return folder


def generate(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["generate_protos.py", *arguments])
    return main()


def test_a_stale_module_fails_the_check_and_is_made_anew(
    copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate(monkeypatch, "--check") == 0
    stale = copy / MADE[0]
    good = stale.read_bytes()
    stale.write_bytes(b"# of another version\n")
    assert generate(monkeypatch, "--check") == 1
    assert MADE[0] in capsys.readouterr().err and stale.read_bytes() != good, "a check changes nothing"
    assert generate(monkeypatch) == 0 and stale.read_bytes() == good
