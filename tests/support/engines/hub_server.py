"""A stand-in for a model hub on loopback: repositories with revisions, large files behind a redirect, ranges.

It can be made to behave badly: cut connections, serve other bytes, ignore ranges, refuse. What it was sent is kept, so
that a test can look at how often, and from which byte on, a file was fetched.
"""

from __future__ import annotations

import hashlib
import json
import socket
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

LARGE = 1 << 12  # larger files are in large-file storage


class Fetch(NamedTuple):
    """A request for a file's bytes."""

    name: str
    begin: int


class HubRepo:
    """One commit of a repository."""

    def __init__(self, files: dict[str, bytes], *, licence: str = "apache-2.0", gated: bool = False) -> None:
        self.files = files
        self.licence = licence
        self.gated = gated
        self.commit = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
        self.checksums = True
        self.served = dict(files)  # what comes over the wire: a test may put other bytes here

    def info(self, name: str) -> dict[str, Any]:
        siblings = []
        for file, data in self.files.items():
            entry: dict[str, Any] = {"rfilename": file, "size": len(data)}
            entry["blobId"] = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            if len(data) > LARGE:
                entry["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
            if not self.checksums:
                del entry["blobId"]
                entry.pop("lfs", None)
            siblings.append(entry)
        return {
            "_id": "0", "id": name, "modelId": name, "sha": self.commit, "private": False, "gated": self.gated,
            "cardData": {"license": self.licence}, "tags": [], "downloads": 0, "likes": 0, "siblings": siblings,
        }  # fmt: skip


class HubServer:
    """Serves repositories until the block ends."""

    def __init__(self) -> None:
        self.repos: dict[str, HubRepo] = {}
        self.fetches: list[Fetch] = []
        self.cut_after = 0  # bytes of a large file that a connection carries before it is reset; 0: all
        self.cuts_left = 0
        self.cuts = 0
        self.ranges = True
        self.status = 0  # answers every request with it
        self.other_info: bytes | None = None  # in place of what it says of a repository
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> HubServer:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def do_GET(self) -> None:
                path = unquote(urlsplit(self.path).path)
                if hub.status:
                    return self.reply(hub.status)
                if path.startswith("/api/models/"):
                    name, _, revision = path.removeprefix("/api/models/").partition("/revision/")
                    repo = hub.repos.get(name)
                    if repo is None:
                        return self.reply(404, {"X-Error-Code": "RepoNotFound"})
                    if repo.gated:
                        return self.reply(403, {"X-Error-Code": "GatedRepo"})
                    if revision not in ("", "main", repo.commit):
                        return self.reply(404, {"X-Error-Code": "RevisionNotFound"})
                    return self.reply(200, body=hub.other_info or json.dumps(repo.info(name)).encode())
                if path.startswith("/storage/"):
                    _, _, org, model, file = path.split("/", 4)
                    return self.send_file(hub.repos[f"{org}/{model}"].served[file], file)
                name, _, rest = path.lstrip("/").partition("/resolve/")
                file = rest.partition("/")[2]
                repo = hub.repos[name]
                if file not in repo.served:
                    return self.reply(404, {"X-Error-Code": "EntryNotFound"})
                if len(repo.files[file]) > LARGE:
                    return self.reply(302, {"Location": f"{hub.url}/storage/{name}/{file}"})
                return self.send_file(repo.served[file], file)

            def send_file(self, data: bytes, name: str) -> None:
                given = self.headers.get("Range", "") if hub.ranges else ""
                begin = int(given.removeprefix("bytes=").rstrip("-")) if given else 0
                hub.fetches.append(Fetch(name, begin))
                if begin >= len(data) > 0:
                    return self.reply(416)
                rest = data[begin:]
                headers = {"Content-Range": f"bytes {begin}-{len(data) - 1}/{len(data)}"} if given else {}
                if hub.cuts_left and hub.cut_after and len(data) > LARGE:
                    hub.cuts_left -= 1
                    hub.cuts += 1
                    self.begin(206 if given else 200, headers, len(rest))
                    self.wfile.write(rest[: hub.cut_after])
                    self.wfile.flush()
                    if hub.cuts % 2:  # half of them end politely, half are reset
                        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    self.connection.shutdown(socket.SHUT_RDWR)
                    self.close_connection = True
                    return None
                return self.reply(206 if given else 200, headers, rest)

            def begin(self, status: int, headers: dict[str, str], length: int) -> None:
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(length)}.items():
                    self.send_header(name, value)
                self.end_headers()

            def reply(self, status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
                self.begin(status, headers or {}, len(body))
                self.wfile.write(body)

        return Handler
