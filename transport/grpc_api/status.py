"""Maps errors to gRPC statuses: the status of the one table (`transport.errors`), and the whole error beside it.

A client reads the status by habit; one that wants to know more (the code, whether to come back and when) finds an
`Error` of `sessile.proto`, serialized, in the trailing metadata. `grpc-retry-pushback-ms` is gRPC's own word for when.
"""

from __future__ import annotations

from typing import Any, Final

import grpc
import grpc.aio

from sessions.model.errors import SessileError
from transport import errors
from transport.grpc_api import sessile_pb2 as pb

ERROR_KEY: Final = "sessile-error-bin"
PUSHBACK_KEY: Final = "grpc-retry-pushback-ms"


def status_of(error: SessileError) -> grpc.StatusCode:
    return grpc.StatusCode[errors.row(error.code).grpc]


def refuse(
    context: grpc.aio.ServicerContext[Any, Any], error: SessileError, trailing: tuple[tuple[str, str | bytes], ...] = ()
) -> None:
    """Has a call end with an error when its handler returns; what the handler returns is then left out. `abort` would
    keep the call, its messages and all frames of the handler in a cycle with the exception that it raises."""
    context.set_code(status_of(error))
    context.set_details(error.public_message)
    context.set_trailing_metadata(trailing)


def message_of(error: SessileError) -> pb.Error:
    return pb.Error(**errors.public(error))  # no field of it is a message; None leaves one out


def trailing_of(error: SessileError) -> tuple[tuple[str, str | bytes], ...]:
    trailing: tuple[tuple[str, str | bytes], ...] = ((ERROR_KEY, message_of(error).SerializeToString()),)
    if error.retry_after_ms is not None:
        trailing += ((PUSHBACK_KEY, str(error.retry_after_ms)),)
    return trailing


def command_error(id: str, error: SessileError) -> pb.CommandError:
    """Returns the message for a command that failed inside a conversation."""
    return pb.CommandError(id=id, status=status_of(error).name, error=message_of(error))
