"""The web pages at `/` and `/operator`: static files under a policy that lets a browser run nothing but them.

Files are read when requested and kept until they change on disk. Every one has an ETag and is requested anew each time
(`no-cache`): their names carry no version, so an update must show at once; an unchanged file costs a 304.
"""

from __future__ import annotations

import hashlib
import mimetypes
from pathlib import Path
from typing import Final, NamedTuple

from fastapi import APIRouter, Request, Response

from sessions.model.errors import NotFound

POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
        "manifest-src 'self'",
        "worker-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS: Final = {
    "content-security-policy": POLICY,
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-cache",
}
PAGES: Final = {"": "index.html", "operator": "operator.html"}


class CachedFile(NamedTuple):
    stamp: tuple[int, int]  # time of change and size
    body: bytes
    etag: str
    media_type: str


class PageFiles:
    """The files of one folder, by the path below it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._kept: dict[str, CachedFile] = {}

    def get(self, name: str) -> CachedFile:
        """Raises NotFound for everything that is not a visible file below the folder."""
        nothing = NotFound("not_found", f"There is nothing at /{name}.")
        try:
            path = (self._folder / PAGES.get(name, name)).resolve()
            below = path.is_relative_to(self._folder) and not any(part.startswith(".") for part in Path(name).parts)
            if not below or not path.is_file():
                raise nothing
            stat = path.stat()
        except (OSError, ValueError) as error:  # names that no file system has
            raise nothing from error
        stamp = (stat.st_mtime_ns, stat.st_size)
        kept = self._kept.get(name)
        if kept is None or kept.stamp != stamp:
            body = path.read_bytes()
            media_type = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
            if media_type.startswith("text/") or media_type == "application/javascript":
                media_type += "; charset=utf-8"
            etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
            kept = self._kept[name] = CachedFile(stamp, body, etag, media_type)
        return kept


def router(folder: Path) -> APIRouter:
    routes = APIRouter(include_in_schema=False)
    files = PageFiles(folder)

    @routes.api_route("/{name:path}", methods=["GET", "HEAD"])
    def page(name: str, request: Request) -> Response:
        # A plain function: FastAPI runs it in a thread, so that a slow disk does not hold up the loop.
        file = files.get(name)
        headers = {**HEADERS, "etag": file.etag}
        if file.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(file.body, media_type=file.media_type, headers=headers)

    return routes
