"""Objects behind the S3 API (Amazon's, MinIO's, Ceph's ...), by the `obstore` library, which retries by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any, Final

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

from persistence.objects.object_store import objects_unavailable

CALL_S: Final = 30
RETRY_S: Final = 20


class S3Objects:
    """The ObjectStore port. Credentials are the library's business: AWS's variables, files, or the machine's role."""

    def __init__(self, bucket: str, prefix: str, *, endpoint: str = "", region: str = "") -> None:
        options: dict[str, Any] = {}
        if endpoint:
            options["endpoint"] = endpoint
        if endpoint or region:
            options["region"] = region or "us-east-1"
        self._store = S3Store(
            bucket,
            prefix=prefix or None,
            client_options={"allow_http": endpoint.startswith("http://"), "timeout": timedelta(seconds=CALL_S)},
            retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=RETRY_S)},
            **options,
        )

    async def put(self, name: str, data: bytes) -> bool:
        try:
            done = await obstore.put_async(self._store, name, data)
        except (BaseError, OSError) as exc:
            raise objects_unavailable(exc) from exc
        return done["version"] is not None

    async def get(self, name: str) -> bytes | None:
        try:
            found = await obstore.get_async(self._store, name)
            return bytes(await found.bytes_async())
        except FileNotFoundError:
            return None
        except (BaseError, OSError) as exc:
            raise objects_unavailable(exc) from exc

    async def get_start(self, name: str, size: int) -> bytes | None:
        try:
            return bytes(await obstore.get_range_async(self._store, name, start=0, length=size))
        except FileNotFoundError:
            return None
        except (BaseError, OSError) as exc:
            raise objects_unavailable(exc) from exc

    async def names(self, folder: str, *, after: str = "") -> AsyncIterator[str]:
        try:
            async for page in obstore.list(self._store, prefix=folder, offset=after or None, chunk_size=1000):
                for each in sorted(page, key=lambda meta: meta["path"]):
                    yield each["path"]
        except (BaseError, OSError) as exc:
            raise objects_unavailable(exc) from exc

    async def delete(self, names: Sequence[str]) -> None:
        try:
            if names:
                await obstore.delete_async(self._store, list(names))
        except FileNotFoundError:
            return
        except (BaseError, OSError) as exc:
            raise objects_unavailable(exc) from exc
