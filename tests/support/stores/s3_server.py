"""A stand-in for the S3 API on loopback: moto's server in a thread of this process."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from moto.server import ThreadedMotoServer

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true"}
VERSIONING = (
    b'<VersioningConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Status>Enabled</Status>'
    b"</VersioningConfiguration>"
)


@contextmanager
def s3_server(bucket: str, *, versions: bool = False) -> Iterator[str]:
    """The address of an empty bucket, as --backup takes it; credentials: `CREDENTIALS` in the environment."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        _put(f"{endpoint}/{bucket}")
        if versions:
            _put(f"{endpoint}/{bucket}?versioning", VERSIONING)
        yield f"s3://{bucket}/sessile?endpoint={endpoint}"
    finally:
        server.stop()


def _put(url: str, data: bytes = b"") -> None:
    request = urllib.request.Request(url, data, method="PUT")
    request.add_header("Authorization", "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request")
    with urllib.request.urlopen(request, timeout=10):
        pass
