"""How an address becomes an object store.

FOLDER, file:///FOLDER                                  files; a disk of another machine, mounted
s3://BUCKET/PREFIX?endpoint=https://HOST&region=NAME    the S3 API; credentials from AWS's own variables or files
"""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from persistence.objects.folder import FolderObjects
from persistence.objects.object_store import ObjectStore
from sessions.model.errors import BadInput

_S3_OPTIONS: Final = frozenset({"endpoint", "region"})


def open_objects(address: str, setting: str) -> ObjectStore:
    """Raises BadInput for an address that is none. Blocking; nothing is reached yet."""
    parts = urlsplit(address)
    match parts.scheme:
        case "":
            return FolderObjects(Path(address))
        case "file" if parts.netloc in ("", "localhost") and parts.path.startswith("/"):
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
