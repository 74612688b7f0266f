"""The image without a daemon: what it reads of the Dockerfile, what it takes away, what its SBOM names."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from deploy.image import build
from deploy.image.dockerfile import DOCKERFILE, PACKAGES, debian_packages, image_config
from deploy.image.slim import is_stripped_safely, slim
from deploy.sbom import Locked, Pin, sbom

LIBRARY = b"\x7fELF" + bytes(2_000_000)


def test_it_is_run_as_the_dockerfile_says() -> None:
    config = image_config()
    assert config.user == "10001:10001" and config.workdir == "/data" and config.volumes == ["/data"]
    assert config.entrypoint == ["/usr/bin/tini", "--", "/opt/sessile/sessile"] and config.cmd == ["serve"]
    assert config.env["SESSILE_METRICS_PORT"] == "9464" and config.env["PATH"].startswith("/opt/sessile/.venv/bin:")
    assert config.ports == ["8080", "8081", "7400", "9464"] and config.stop_signal == "SIGTERM"
    assert config.health[1:] == ["/opt/sessile/deploy/image/health.py", "alive"]


@pytest.mark.parametrize("variant", ["cpu", "gateway", "cuda"])
def test_both_ways_take_the_same_of_debian(variant: str) -> None:
    expression = re.search(r'\$\(sed -n "(.+?)" /tmp/packages.txt\)', DOCKERFILE.read_text())
    assert expression is not None
    script = expression[1].replace("$VARIANT", variant)
    shown = subprocess.run(["sed", "-n", script, PACKAGES], capture_output=True, text=True, check=True).stdout.split()
    assert shown == debian_packages(variant)
    assert ("gcc" in shown) is (variant == "cuda") and {"tini", "python3.11-minimal"} <= set(shown)
    assert set(build.UNUSED).isdisjoint(shown)


def test_what_no_process_reads_is_taken_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = ["a/__init__.py", "a/tests.py", "a/testing/x.py", "a/lib.so", "a.libs/lib.so.1", "a-1.dist-info/METADATA"]
    dropped = ["a/x.pyi", "a/include/x.h", "a/tests/test_x.py", "pip/__init__.py", "uv-1.dist-info/METADATA", "bin/x"]
    for name in kept + dropped:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(LIBRARY if ".so" in name else b"text")
    tool = tmp_path.parent / "tools" / "strip"
    tool.parent.mkdir()
    tool.write_text('#!/usr/bin/env python3\nimport sys\nopen(sys.argv[3], "wb").write(b"stripped")\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent), prepend=":")
    linked = tmp_path.parent / "linked.so"
    linked.hardlink_to(tmp_path / "a" / "lib.so")
    assert slim(tmp_path) > 1_900_000
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()) == sorted(kept)
    assert (tmp_path / "a" / "lib.so").read_bytes() == b"stripped" and linked.read_bytes() == LIBRARY
    assert (tmp_path / "a.libs" / "lib.so.1").read_bytes() == LIBRARY
    assert not is_stripped_safely(tmp_path / "a" / "__init__.py")


def test_the_bill_names_debians_packages() -> None:
    pin = Pin("pypi", "msgspec", "0.22.0")
    text = sbom({pin: Locked(frozenset(), ("base",))}, {pin: "BSD-3-Clause"}, debian={"libstdc++6": "12.2.0-14"})
    found = {each["purl"]: each["version"] for each in json.loads(text)["components"]}
    assert found == {"pkg:pypi/msgspec@0.22.0": "0.22.0", "pkg:deb/debian/libstdc%2B%2B6@12.2.0-14": "12.2.0-14"}


def test_absent_tools_are_named_before_anything_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool in ("umoci", "strip") else f"/usr/bin/{tool}")
    with pytest.raises(build.BuildError, match="apt-get install binutils umoci"):
        build.build("cpu", tmp_path / "out")
    assert not (tmp_path / "out").exists()
