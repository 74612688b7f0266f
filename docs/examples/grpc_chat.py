"""The gRPC API with the modules that are made from its .proto file: a conversation that resumes where it was cut.

    python app.py serve --grpc-port 8081
    python docs/examples/grpc_chat.py --target 127.0.0.1:8081

Any language does the same with `transport/grpc_api/sessile.proto`; the server also answers reflection (`grpcurl`), with
a key.
"""

from __future__ import annotations

import argparse
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import grpc

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from transport.grpc_api import sessile_pb2 as pb
from transport.grpc_api.sessile_pb2_grpc import SessionsStub


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--target", default="127.0.0.1:8081")
    options.add_argument("--key")
    options.add_argument("--say", default="Tell me everything.")
    given = options.parse_args()
    metadata = (("authorization", f"Bearer {given.key}"),) if given.key else ()

    with grpc.insecure_channel(given.target) as channel:
        sessions = SessionsStub(channel)  # type: ignore[no-untyped-call]
        made = sessions.Create(pb.SessionCreate(id=uuid.uuid4().hex, title="Over gRPC"), metadata=metadata, timeout=10)
        # Sent again by the same id it is the same message: a retry after a lost connection needs nothing else.
        message = pb.MessageCreate(id=uuid.uuid4().hex, content=given.say)
        position = pb.Position(epoch=made.epoch, offset=made.offset)
        ended = False
        while not ended:
            opening = pb.ConverseRequest(open=pb.Open(session=made.session, position=position))
            command = pb.ConverseRequest(command=pb.Command(message_create=message))
            try:
                for reply in sessions.Converse(both(opening, command), metadata=metadata):
                    if reply.WhichOneof("reply") == "event":
                        event = reply.event
                        position = pb.Position(epoch=event.epoch, offset=event.offset)
                        sys.stdout.write(event.response_output_text_delta.delta)
                        sys.stdout.flush()
                    elif reply.WhichOneof("reply") == "error":
                        sys.exit(f"{reply.error.error.code}: {reply.error.error.message}")
                ended = True  # the stream ends by itself when the answer has
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                print("[cut; going on]", file=sys.stderr)
        print()


def both(*requests: pb.ConverseRequest) -> Iterator[pb.ConverseRequest]:
    yield from requests


if __name__ == "__main__":
    main()
