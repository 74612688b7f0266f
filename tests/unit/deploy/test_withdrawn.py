"""Releases that were withdrawn, on an index of one package in a folder."""

from __future__ import annotations

import hashlib
import os
import sys
import zipfile
from pathlib import Path

import pytest

from deploy.withdrawn import withdrawn_pins

UV = Path(sys.executable).parent / "uv"


def wheel(folder: Path, version: str) -> tuple[str, str]:
    """Its name and digest."""
    name = f"demo-{version}-py3-none-any.whl"
    with zipfile.ZipFile(folder / name, "w") as made:
        made.writestr(f"demo-{version}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: demo\nVersion: {version}\n")
        made.writestr(
            f"demo-{version}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        made.writestr(f"demo-{version}.dist-info/RECORD", "")
    return name, hashlib.sha256((folder / name).read_bytes()).hexdigest()


def test_a_withdrawn_release_is_named_and_others_are_not(tmp_path: Path) -> None:
    index, lock = tmp_path / "index", tmp_path / "some.lock"
    (index / "demo").mkdir(parents=True)
    digests, links = {}, []
    for version, mark in (("1.0", ""), ("1.1", ' data-yanked="it loses mail"')):
        name, digests[version] = wheel(index / "demo", version)
        links.append(f'<a href="{name}#sha256={digests[version]}"{mark}>{name}</a>')
    (index / "demo" / "index.html").write_text(f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>")
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "UV_DEFAULT_INDEX": index.as_uri()}

    def told(version: str, digest: str) -> list[str]:
        lock.write_text(f"demo=={version} --hash=sha256:{digest}\n")
        return withdrawn_pins(lock, UV, env)

    assert told("1.0", digests["1.0"]) == []
    (line,) = told("1.1", digests["1.1"])
    assert line.startswith("some.lock: ") and "demo==1.1" in line and "it loses mail" in line
    with pytest.raises(RuntimeError, match=r"(?s)some\.lock: .*demo==2\.0"):
        told("2.0", digests["1.0"])
