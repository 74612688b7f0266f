"""The port of an object store, and how an address becomes one.

FOLDER, file:///FOLDER                                  files; a disk of another machine, mounted
s3://BUCKET/PREFIX?endpoint=https://HOST&region=NAME    the S3 API; credentials from AWS's own variables or files
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

from sessions.model.errors import BadInput, Unavailable

_S3_OPTIONS: Final = frozenset({"endpoint", "region"})


class ObjectStore(Protocol):
    """Objects that are put whole, read whole or from their beginning, and deleted. Names are ours, with slashes.

    Every call raises Unavailable."""

    async def put(self, name: str, data: bytes) -> bool:
        """Durable when it returns. True: what stood there before can still be had (the bucket keeps versions)."""
        ...

    async def get(self, name: str) -> bytes | None: ...

    async def get_start(self, name: str, size: int) -> bytes | None:
        """The first bytes of an object, `size` at most."""
        ...

    def names(self, folder: str, *, after: str = "") -> AsyncIterator[str]:
        """The names in a folder, in their order, behind `after`."""
        ...

    async def delete(self, names: Sequence[str]) -> None:
        """What is not there is no error."""
        ...


def open_objects(address: str, setting: str) -> ObjectStore:
    """Raises BadInput for an address that is none. Blocking; nothing is reached yet."""
    parts = urlsplit(address)
    match parts.scheme:
        case "":
            from persistence.objects.folder import FolderObjects

            return FolderObjects(Path(address))
        case "file" if parts.netloc in ("", "localhost") and parts.path.startswith("/"):
            from persistence.objects.folder import FolderObjects

            return FolderObjects(Path(unquote(parts.path)))
        case "s3" if parts.netloc and "@" not in parts.netloc:
            options = dict(parse_qsl(parts.query, keep_blank_values=True))
            if options.keys() <= _S3_OPTIONS:
                from persistence.objects.s3 import S3Objects  # its library takes a moment to load

                return S3Objects(parts.netloc, parts.path.strip("/"), **options)
    raise BadInput(
        "invalid_setting",
        f"{setting} is the path of a folder, or s3://BUCKET/PREFIX with ?endpoint=https://HOST and &region=NAME where "
        "they are needed; credentials stand in AWS's own variables or files, never here.",
        param=setting,
    )


def objects_unavailable(exc: BaseException) -> Unavailable:
    error = Unavailable("object_store_unavailable", f"The object store does not answer ({type(exc).__name__}).")
    error.__cause__ = exc
    return error
