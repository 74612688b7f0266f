"""Parses request bodies as strict JSON: once, refusing what no log can hold. Parameters that a route does not know are
refused in bodies and in queries, or left out.

Beyond what the models of `wire` check: half a surrogate pair is no text, a number is finite and an integer below 2**53,
nothing is nested deeper or holds more values than a frame of the WebSocket door may. Raises BadInput.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Coroutine
from typing import Any, Final

import msgspec
from fastapi import Request, Response
from fastapi.dependencies.utils import get_flat_params
from fastapi.exceptions import RequestValidationError
from fastapi.params import Query
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from sessions.model.errors import BadInput, SessileError
from sessions.model.types import INTEGER_MAX
from transport.http.middleware import LET_BODY_GO
from transport.openai.parse_request import fold_seed
from transport.openai.request_models import OWN_PREFIXES
from transport.openai.unknown_parameters import leave_out, take_out, warning
from transport.protocol.decoding import BadFrame, clipped, unacceptable

BODY_VALUES_MAX: Final = 65_536
SEED_MAX: Final = 2**64 - 1
OWN_NAMES: Final = frozenset({"api-version", "beta", "client_version"})
"""Parameters that Azure's and Anthropic's SDKs and Codex put into every query; they request nothing of a route."""
ROUNDS_MAX: Final = 8  # of looking for unknown parameters: each finds those of one item of a list


def parsed(data: bytes) -> Any:
    """Returns the value of a JSON body. Raises BadInput."""
    try:
        value = msgspec.json.decode(data)
    except RecursionError as exc:
        raise BadInput("invalid_request", "The body of this request is nested too deep.") from exc
    except (ValueError, msgspec.MsgspecError) as exc:
        raise BadInput("invalid_request", f"The body of this request is not valid JSON: {exc}.") from exc
    if isinstance(value, dict):
        seed = value.get("seed")
        if isinstance(seed, int) and INTEGER_MAX < abs(seed) <= SEED_MAX:  # the one integer that may be larger
            value["seed"] = fold_seed(seed)
        try:
            problem = unacceptable(value, BODY_VALUES_MAX)
        except BadFrame as exc:
            raise BadInput("invalid_request", f"The body of this request is {exc.reason}.") from exc
        if problem is not None:
            path, what = problem
            raise BadInput("invalid_request", f"Invalid value for '{path}': {what}", param=path)
    return value


class StrictRequest(Request):
    async def json(self) -> Any:
        if not hasattr(self, "_parsed"):
            self._parsed = parsed(await self.body())
        return self._parsed

    def release(self) -> None:
        """Empties the body and what was parsed of it: whoever still refers to it keeps nothing."""
        value = getattr(self, "_parsed", None)
        if isinstance(value, dict):
            value.clear()
        self._body = b""
        if (let_go := self.scope["state"].get(LET_BODY_GO)) is not None:
            let_go()


def release_body(request: Request, history: object) -> None:
    """Empties the body of a request whose turn is made, what was parsed of it, and `history`, the list of its model
    that holds the messages. FastAPI refers to all until the answer has been written, and they are many times as large
    as the turn."""
    if isinstance(history, list):
        history.clear()
    if isinstance(request, StrictRequest):
        request.release()


def _ignores_unknown(request: Request) -> bool:
    ignores: bool = request.app.state.gateway.ignores_unknown
    return ignores


def _freed(error: HTTPException) -> Exception:
    """Returns the reason why a body could not be read, without its traceback. FastAPI wraps the reason in an error that
    its own frame refers to: a cycle that would keep the body until the garbage collector runs."""
    error.__traceback__ = None
    cause = error.__cause__
    return cause if isinstance(cause, SessileError | ClientDisconnect) else error


def _check_query(request: Request, known: Container[str]) -> None:
    """Leaves out the query's parameters that are not `known`. Raises BadInput for the first one if the server refuses
    unknown parameters."""
    unknown = [name for name in request.query_params if name not in known and not name.startswith(OWN_PREFIXES)]
    if unknown and not _ignores_unknown(request):
        name = clipped(unknown[0])
        raise BadInput("unknown_parameter", f"Unknown parameter: '{name}'.", param=name)
    leave_out(request, unknown)


class StrictRoute(APIRoute):
    """A route whose handler gets a `StrictRequest`: its body is parsed strictly. Unknown parameters of the body and of
    the query are refused or, where the server's settings say so, dropped."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()
        declared = (param for param in get_flat_params(self.dependant) if isinstance(param.field_info, Query))
        known = OWN_NAMES.union(param.alias for param in declared)

        async def handle(request: Request) -> Response:
            if request.scope["query_string"]:
                _check_query(request, known)
            strict = StrictRequest(request.scope, request.receive)
            failure = None
            for last in range(ROUNDS_MAX - 1, -1, -1):
                try:
                    response = await handler(strict)
                    break
                except HTTPException as error:
                    failure = _freed(error)
                    break
                except RequestValidationError as error:
                    taken = take_out(await strict.json(), error.errors()) if _ignores_unknown(request) else []
                    if not taken or not last:
                        raise
                    leave_out(request, taken)
            if failure is not None:
                try:
                    raise failure
                finally:
                    del failure  # its traceback leads to this frame
            response.headers.update(warning(request))
            return response

        return handle
