"""The port of an object store, and how an address becomes one.

FOLDER, file:///FOLDER                                  files; a disk of another machine, mounted
s3://BUCKET/PREFIX?endpoint=https://HOST&region=NAME    the S3 API; credentials from AWS's own variables or files
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from sessions.model.errors import Unavailable


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


def objects_unavailable(exc: BaseException) -> Unavailable:
    error = Unavailable("object_store_unavailable", f"The object store does not answer ({type(exc).__name__}).")
    error.__cause__ = exc
    return error
