"""The systemd units: what they run is what the program takes, and systemd's own tools have nothing against them."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

from actors.handoff.drain import DrainLimits
from transport.cli.commands import VERSION, parse

ROOT = Path(__file__).resolve().parents[3]
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
SERVERS = [each for each in UNITS if "Type=notify" in each.read_text()]
EXPOSURE_MAX = 20  # tenths, of `systemd-analyze security`
analyze = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd's tools are not here")


def directives(path: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for line in path.read_text().splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found[name].append(value)
    return found


def test_there_is_one_for_each_role() -> None:
    servers = ["sessile-gateway.service", "sessile-replica@.service", "sessile.service"]
    assert [each.name for each in SERVERS] == servers
    assert {each.name for each in UNITS} == set(servers)


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_every_setting_and_command_is_one_of_the_program(path: Path, tmp_path: Path) -> None:
    unit = directives(path)
    given = dict(each.split("=", 1) for each in unit["Environment"])
    copied = {name for each in unit["ExecStartPre"] for name in re.findall(r"%d/([\w-]+)", each)}
    loaded = {each.partition(":")[0] for each in unit["LoadCredential"]}
    named = {name for each in given.values() for name in re.findall(r"%d/([\w-]+)", each)}
    runtime = {Path(each).name for each in given.values() if each.startswith("%t/")}
    assert copied | named == loaded and runtime == copied, "each credential is used, and none that is not loaded"
    for name in copied:
        text = {"directory": "redis://valkey:6379", "journal": "postgresql://u@host/sessile"}.get(name, "0" * 64)
        (tmp_path / name).write_text(text)
    environment = {name: re.sub(r"%t/[^/]+", str(tmp_path), value) for name, value in given.items()}
    program, *arguments = shlex.split(unit["ExecStart"][0])
    assert program == "/opt/sessile/sessile"
    ours = {name: value for name, value in environment.items() if name.startswith(("SESSILE_", "HF_"))}
    assert parse(arguments, ours, VERSION) is not None


@pytest.mark.parametrize("path", SERVERS, ids=lambda path: path.name)
def test_a_model_is_pulled_into_its_own_folder_and_has_an_hour(path: Path) -> None:
    """The process prolongs its start itself only from then on."""
    unit = directives(path)
    given = dict(each.split("=", 1) for each in unit["Environment"])
    if "gateway" not in path.name:
        folders = {given[name] for name in ("SESSILE_MODEL_FOLDER", "HF_HOME")}
        assert {str(Path(each).parent) for each in folders} == {given["SESSILE_DATA"]} and len(folders) == 2
        assert unit["TimeoutStartSec"] == ["3600"]


@pytest.mark.parametrize("path", SERVERS, ids=lambda path: path.name)
def test_the_end_has_the_time_that_draining_takes(path: Path) -> None:
    unit = directives(path)
    assert unit["Type"] == ["notify"] and int(unit["WatchdogSec"][0]) > 0
    needed = DrainLimits().drain_s + 30 if "replica" in path.name else 15
    assert int(unit["TimeoutStopSec"][0]) >= needed


@analyze
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_takes_it(path: Path, tmp_path: Path) -> None:
    """Its program does not lie at its place here."""
    copy = tmp_path / path.name
    program = str(ROOT / "sessile").replace(" ", r"\x20")
    for each in UNITS:
        (tmp_path / each.name).write_text(each.read_text().replace("/opt/sessile/sessile", program))
    done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@analyze
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_it_is_closed(path: Path) -> None:
    command = ["systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE_MAX}", str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout.splitlines()[-1]
