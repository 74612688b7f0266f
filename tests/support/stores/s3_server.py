"""A stand-in for the S3 API on loopback: moto's server in a thread of this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import boto3
from moto.server import ThreadedMotoServer

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true"}


@contextmanager
def s3_server(bucket: str, *, versions: bool = False) -> Iterator[str]:
    """The address of an empty bucket, as --replicate takes it; credentials: `CREDENTIALS` in the environment."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        client = boto3.client(
            "s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="test", aws_secret_access_key="test"
        )
        client.create_bucket(Bucket=bucket)
        if versions:
            client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
        client.close()
        yield f"s3://{bucket}/sessile?endpoint={endpoint}"
    finally:
        server.stop()
