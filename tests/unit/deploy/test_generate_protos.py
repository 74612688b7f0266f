"""The gRPC modules in the repository are what their .proto makes, and a stale one is reported and remade."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from deploy import generate_protos
from deploy.generate_protos import MADE, PROTO, ROOT, main


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the .proto in a copy of the repository's part that matters."""
    folder = (tmp_path / PROTO).parent
    folder.mkdir(parents=True)
    for name in (Path(PROTO).name, *MADE):
        shutil.copy((ROOT / PROTO).with_name(name), folder / name)
    monkeypatch.setattr(generate_protos, "ROOT", tmp_path)
    return folder


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["generate_protos.py", *arguments])
    return main()


def test_a_stale_module_fails_the_check_and_is_made_anew(
    copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--check") == 0
    stale = copy / MADE[0]
    good = stale.read_bytes()
    stale.write_bytes(b"# of another version\n")
    assert run(monkeypatch, "--check") == 1
    assert MADE[0] in capsys.readouterr().err and stale.read_bytes() != good, "a check changes nothing"
    assert run(monkeypatch) == 0 and stale.read_bytes() == good
