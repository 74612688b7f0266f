"""Debian's nginx and HAProxy between a client and a server, as Kubernetes' ingress controllers set them up.

Both keep their connections to the server and give them to whoever comes next: to one of all their clients' requests.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[3]
FOLDER: Final = ROOT / "dist" / "proxies"
NGINX: Final = """
daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
    uwsgi_temp_path {folder}; scgi_temp_path {folder};
    client_header_timeout 100ms; client_body_timeout 100ms; proxy_read_timeout 5s; lingering_close off;
    large_client_header_buffers 4 16k; underscores_in_headers on; ignore_invalid_headers off;
    # ingress-nginx's own map, where it keeps connections to its upstreams
    map $http_upgrade $connection_upgrade {{ default upgrade; '' ''; }}
    upstream server {{ server 127.0.0.1:{server}; keepalive 1; }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://server; proxy_http_version 1.1;
            proxy_set_header Host $host; proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection $connection_upgrade;
            proxy_request_buffering {buffering}; proxy_next_upstream off;
        }}
    }}
}}
"""
HAPROXY: Final = """
global
    maxconn 256
defaults
    mode http
    option http-keep-alive
    {accepts}
    http-reuse always
    timeout connect 2s
    timeout client 100ms
    timeout server 5s
    timeout http-request 100ms
    timeout http-keep-alive 60s
frontend in
    bind 127.0.0.1:{port}
    default_backend out
backend out
    server one 127.0.0.1:{server} maxconn 4 pool-max-conn 1
"""
KINDS: Final = {
    "nginx": (NGINX, {"buffering": "on"}),
    "nginx, unbuffered": (NGINX, {"buffering": "off"}),
    "haproxy": (HAPROXY, {"accepts": ""}),
    "haproxy, lenient": (HAPROXY, {"accepts": "option accept-invalid-http-request"}),
}


@asynccontextmanager
async def proxied(kind: str, server: int, folder: Path) -> AsyncIterator[int]:
    """A proxy of a kind in front of a server's port; gives its own."""
    program = "haproxy" if kind.startswith("haproxy") else "nginx"
    binary = FOLDER / "usr" / "sbin" / program
    if not binary.is_file():
        pytest.fail(f"{program} is missing: run deploy/ensure_proxies.sh, which says why")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    template, more = KINDS[kind]
    path = folder / "proxy.conf"
    path.write_text(template.format(server=server, port=port, folder=folder, **more))
    arguments: list[str | Path] = (
        ["-f", path] if program == "haproxy" else ["-e", folder / "error.log", "-c", path, "-p", folder]
    )
    libraries = str(FOLDER / "usr" / "lib" / f"{os.uname().machine}-linux-gnu")
    process = await asyncio.create_subprocess_exec(
        binary,
        *arguments,
        env=os.environ | {"LD_LIBRARY_PATH": libraries},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        await _listening(port, process)
        yield port
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _listening(port: int, process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                assert process.stdout is not None
                if process.returncode is not None:
                    said = (await process.stdout.read()).decode(errors="replace")
                    raise AssertionError(f"the proxy ended: {said}") from None
                await asyncio.sleep(0)
            else:
                writer.close()
                return
