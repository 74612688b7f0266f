"""How the person's pip configuration reaches uv, and what the setup and the model's fetcher refuse.

The scripts are no package (they run before anything is installed), so they are loaded by path.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"deploy_{name}", DEPLOY / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


setup_env = load("setup_env")


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


def test_every_pip_setting_becomes_uvs() -> None:
    settings = {
        "index-url": "https://a.invalid/simple",
        "extra-index-url": "https://b.invalid/simple\nhttps://c.invalid/simple",
        "find-links": "one\ntwo",
        "cert": "ca.pem",
    }
    env = setup_env.uv_environment(settings, {"PATH": "bin"})
    assert env["UV_DEFAULT_INDEX"] == "https://a.invalid/simple"
    assert env["UV_INDEX"] == "https://b.invalid/simple https://c.invalid/simple"
    assert env["UV_FIND_LINKS"] == "one,two"
    assert env["SSL_CERT_FILE"] == "ca.pem"
    assert env["PATH"] == "bin"
    # One index may know a name but lack the locked version; pip would look at the next, and so must uv.
    assert env["UV_INDEX_STRATEGY"] == "unsafe-best-match"


def test_what_is_set_for_uv_itself_stays() -> None:
    env = setup_env.uv_environment({"find-links": "pips"}, {"UV_FIND_LINKS": "uvs"})
    assert env["UV_FIND_LINKS"] == "uvs"


def test_nothing_is_invented_where_pip_has_no_settings() -> None:
    env = setup_env.uv_environment({}, {})
    assert not {"UV_DEFAULT_INDEX", "UV_INDEX", "UV_FIND_LINKS", "SSL_CERT_FILE", "UV_NO_INDEX"} & set(env)


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
