"""Reads the files of the web pages, and writes into each HTML page the hashes of what it runs (subresource integrity).

A page names its scripts and style sheets plainly. When it is sent, each of them gets an `integrity` attribute, and
every module that its scripts import is preloaded with one, so that a browser runs nothing but these very bytes. Where
people sign in with a provider the root element says so.

Files are read when requested and kept, with their gzip, until they change on disk; a page changes with each file whose
hash it has. What is kept of a file is kept once, however a request spells its path.
"""

from __future__ import annotations

import base64
import hashlib
import mimetypes
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from sessions.model.errors import NotFound
from transport.http.compression import gzipped, worth_packing
from transport.protocol.decoding import clipped

PAGES: Final = {"": "index.html", "docs": "docs.html", "operator": "operator.html", "share": "share.html"}

KEPT_MAX: Final = 1024  # files; a folder has tens

_ROOT: Final = '<html lang="en">'
_PART: Final = re.compile(r'<(?:script(?: type="(?P<type>module)")? src|link rel="stylesheet" href)="(?P<name>[^"]+)"')
_IMPORT: Final = re.compile(r"""^(?:import|export)\b[^"'()]*["']\./([\w.-]+)["']""", re.MULTILINE)


class CachedFile(NamedTuple):
    stamp: tuple[int, int]  # time of change and size
    body: bytes
    etag: str
    media_type: str
    integrity: str
    imports: tuple[str, ...]  # for a script: the modules in the same folder that it imports
    packed: bytes | None  # its gzip, if it is smaller enough to be worth it


class PageFiles:
    """The files of the web pages' folder, by their path below it."""

    def __init__(self, folder: Path, *, signs_in: bool = False) -> None:
        self._folder = folder.resolve()
        self._root = '<html lang="en" data-sign-in="">' if signs_in else _ROOT
        self._kept: dict[Path, CachedFile] = {}
        self._pages: dict[bytes, CachedFile] = {}  # by their text before the hashes are written in

    def get(self, name: str) -> CachedFile:
        """Returns a file as it is sent. Raises NotFound for everything but visible files below the folder."""
        name = PAGES.get(name, name)
        file = self._read(name)
        return self._with_hashes(file) if file.media_type.startswith("text/html") else file

    def _with_hashes(self, page: CachedFile) -> CachedFile:
        html = _PART.sub(self._with_hash, page.body.decode()).replace(_ROOT, self._root, 1)
        body = html.encode()
        kept = self._pages.get(page.body)
        if kept is None or kept.body != body:
            self._forget_some()
            kept = self._pages[page.body] = _cached(page.stamp, body, page.media_type)
        return kept

    def _forget_some(self) -> None:
        """Keeps both caches within `KEPT_MAX` files."""
        for cache in (self._kept, self._pages):
            if len(cache) >= KEPT_MAX:
                cache.clear()

    def _with_hash(self, part: re.Match[str]) -> str:
        name, preloads = part["name"], ""
        if part["type"] == "module":
            preloads = "".join(
                f'<link rel="modulepreload" href="{module}" integrity="{self._read(module).integrity}">\n    '
                for module in self._imported(name, {name})
            )
        return f'{preloads}{part[0]} integrity="{self._read(name).integrity}"'

    def _imported(self, name: str, seen: set[str]) -> Iterator[str]:
        """Yields the modules that a module imports, directly or through others, each once."""
        for module in self._read(name).imports:
            if module not in seen:
                seen.add(module)
                yield module
                yield from self._imported(module, seen)

    def _read(self, name: str) -> CachedFile:
        try:
            path = (self._folder / name).resolve()
            below = path.is_relative_to(self._folder) and not any(part.startswith(".") for part in Path(name).parts)
            if not below or not path.is_file():
                raise _nothing_at(name)
            stat = path.stat()
        except (OSError, ValueError) as error:  # names that no file system has
            raise _nothing_at(name) from error
        stamp = (stat.st_mtime_ns, stat.st_size)
        kept = self._kept.get(path)
        if kept is None or kept.stamp != stamp:
            media_type = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
            if media_type.startswith("text/") or media_type == "application/javascript":
                media_type += "; charset=utf-8"
            self._forget_some()
            kept = self._kept[path] = _cached(stamp, path.read_bytes(), media_type)
        return kept


def _nothing_at(name: str) -> NotFound:
    """Returns the error for a path without a file. It is made here but raised by the caller, so that this frame does
    not become part of a reference cycle that keeps the request in memory."""
    return NotFound("not_found", f"There is nothing at /{clipped(name)}.")


def _cached(stamp: tuple[int, int], body: bytes, media_type: str) -> CachedFile:
    script = "javascript" in media_type
    return CachedFile(
        stamp,
        body,
        etag=f'"{hashlib.sha256(body).hexdigest()[:32]}"',
        media_type=media_type,
        integrity="sha384-" + base64.b64encode(hashlib.sha384(body).digest()).decode(),
        imports=tuple(_IMPORT.findall(body.decode(errors="replace"))) if script else (),
        packed=gzipped(body) if worth_packing(media_type, len(body)) else None,
    )
