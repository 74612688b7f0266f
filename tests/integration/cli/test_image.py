"""A server run from what the image takes of this checkout, and from nothing else; and what systemd hears of it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.image.dockerfile import copied

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """/opt/sessile, without its environment."""
    folder = tmp_path_factory.mktemp("opt") / "sessile"
    for source in copied():
        target = folder / source
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / source, target)
    return folder


def files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


def test_it_serves_from_what_is_copied_writes_only_data_and_reports_to_systemd(tree: Path, tmp_path: Path) -> None:
    before, data, notify = files(tree), tmp_path / "data", socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notify.bind(str(tmp_path / "notify"))
    notify.settimeout(PATIENCE_S)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("SESSILE_")},
        "SESSILE_DATA": str(data),
        "SESSILE_METRICS_PORT": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "NOTIFY_SOCKET": str(tmp_path / "notify"),
        "WATCHDOG_USEC": "600000",
    }
    command = [sys.executable, str(tree / "app.py"), "serve", "--engine", "sim", "--port", "0"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            ready: dict[str, str] = {}
            for line in iter(server.stdout.readline, ""):
                name, _, address = line.strip().partition(": ")
                ready[name] = address
                if name == "Sessile is ready":
                    break
            port = ready["Metrics are ready"].removesuffix("/metrics").rpartition(":")[2]
            for question in ("alive", "ready"):
                health = [sys.executable, str(tree / "deploy" / "image" / "health.py"), question]
                done = subprocess.run(health, env=environment | {"SESSILE_METRICS_PORT": port}, capture_output=True)
                assert (done.returncode, done.stdout) == (0, b"ok\n")
            heard: list[str] = []
            while "WATCHDOG=1" not in heard:
                heard += notify.recv(4096).decode().split("\n")
            assert heard[0] == "STATUS=starting" and heard[1].startswith("EXTEND_TIMEOUT_USEC=")
            assert heard.index("READY=1") < heard.index("WATCHDOG=1") and "STATUS=ready" in heard
            server.send_signal(signal.SIGTERM)
            while "STATUS=ended" not in heard:
                heard += notify.recv(4096).decode().split("\n")
            assert heard.index("STATUS=draining") < heard.index("STATUS=ended") and "STOPPING=1" in heard
            assert server.wait(PATIENCE_S) == 0
        finally:
            server.kill()
            notify.close()
    assert files(tree) == before, "its root file system may be read-only"


def test_a_gateway_needs_no_engine(tree: Path) -> None:
    """The variant `gateway` has no llama.cpp."""
    text = (
        "import runpy, sys; sys.modules['xllamacpp'] = None; sys.path.insert(0, sys.argv[1]);"
        "sys.argv = ['app.py', 'replicas', '--directory', 'redis://127.0.0.1:1'];"
        "runpy.run_path('app.py', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", text, str(tree)], cwd=tree, capture_output=True, text=True)
    assert done.returncode == 2 and "does not answer" in done.stderr, done.stderr
