"""Makes the FastAPI application, of the routers that each live in a file of `transport/http_api/routes`.

Decides what every route shares, such as errors in OpenAI's shape. A new family of paths is a new file with a table
`routes`, and its name in `doors`.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect

from sessions.model.errors import BadInput, Forbidden, Internal, NotFound, SessileError
from transport.gateway import Gateway
from transport.http.compression import gzipped, takes_gzip
from transport.http.json_response import JsonResponse
from transport.http.path_methods import HeadRequests, PathMethods, allow
from transport.http_api import routes
from transport.http_api.context import gateway_of
from transport.http_api.cross_origin import cors_options
from transport.http_api.doors import Part, doors_of
from transport.http_api.page_files import PageFiles
from transport.http_api.request_context import error_response
from transport.http_api.routes import health, metrics, page
from transport.http_api.routes.health import Readiness
from transport.openai.turn_starter import TurnStarter
from transport.ops.prometheus import MetricsExposition
from transport.protocol.decoding import clipped
from transport.tenant_turns import TenantTurns

_BRANCHES: Final = frozenset({"str", "int", "float", "bool", "list", "dict"})  # how a union's branches are named

log = structlog.get_logger(__name__)


def make_app(
    gateway: Gateway,
    *,
    readiness: Readiness,
    web: Path | None,
    exposition: MetricsExposition,
    turn_starter: TurnStarter | None = None,
    part: Part = "whole",
) -> FastAPI:
    """Returns the HTTP application, or a `part` of it (`doors`), without what surrounds every request
    (`request_context`). `web` is the folder of the page at `/`; None serves no page."""
    app = _bare_app(exposition)
    _add_doors(app, gateway, readiness=readiness, exposition=exposition, part=part)
    if part != "common":

        def described() -> dict[str, Any]:
            from transport.http_api.routes import added_tools  # a rare door

            whole = _bare_app(exposition)
            _add_doors(whole, gateway, readiness=readiness, exposition=exposition, part="whole")
            document = whole.openapi()
            if gateway.added_tools is not None:
                added_tools.describe(document, gateway.added_tools)
            return document

        app.add_route("/openapi.json", _document_of(described), methods=["GET"], include_in_schema=False)
    methods = app.state.methods = _add_page(app, gateway, web=web)
    app.state.gateway, app.state.turn_starter = gateway, turn_starter or TurnStarter(gateway)
    app.state.tool_changes = TenantTurns()
    app.add_exception_handler(SessileError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ClientDisconnect, _client_disconnected)
    app.add_exception_handler(Exception, _failed)
    app.add_middleware(HeadRequests, methods=methods)
    if gateway.access.origins.allowed:
        app.add_middleware(CORSMiddleware, **cors_options(gateway))
    return app


def _bare_app(exposition: MetricsExposition) -> FastAPI:
    return FastAPI(
        title="Sessile",
        version=exposition.version,
        openapi_url=None,  # we serve our own: FastAPI makes its document on the event loop, which takes a second
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )


def _add_doors(
    app: FastAPI, gateway: Gateway, *, readiness: Readiness, exposition: MetricsExposition, part: Part
) -> None:
    if part != "rare":
        app.router.routes.extend(health.router(readiness, gateway.replication_lag_s).routes)
        app.router.routes.extend(metrics.router(exposition).routes)
    for name in doors_of(part):
        door = importlib.import_module(f"{routes.__name__}.{name}")
        app.router.routes.extend(door.routes.routes)  # `include_router` would build each of them anew
    if part != "rare" and gateway.access.sign_in is not None:
        from transport.http_api.routes import sign_in  # PyJWT takes a tenth of a second to load

        app.router.routes.extend(sign_in.router(gateway.access).routes)


def _add_page(app: FastAPI, gateway: Gateway, *, web: Path | None) -> PathMethods:
    methods = PathMethods(app.routes)
    signs_in = gateway.access.sign_in is not None
    app.state.page_files = files = None if web is None else PageFiles(web, signs_in=signs_in)
    if files is not None:  # last: its route matches every path
        app.router.routes.extend(page.router(files, methods).routes)
    return methods


def _document_of(described: Callable[[], dict[str, Any]]) -> Callable[[Request], Awaitable[Response]]:
    """Returns the route that serves the OpenAPI document that `described` makes in a thread at the first request."""
    making = asyncio.Lock()
    made: list[tuple[bytes, bytes]] = []  # plain, and as gzip

    vary = {"vary": "accept-encoding"}

    def make() -> tuple[bytes, bytes]:
        plain = msgspec.json.encode(described())
        return plain, gzipped(plain)

    async def document(request: Request) -> Response:
        async with making:
            if not made:
                made.append(await asyncio.to_thread(make))
        plain, packed = made[0]
        if takes_gzip(request.headers.get("accept-encoding", "")):
            return Response(packed, media_type="application/json", headers={**vary, "content-encoding": "gzip"})
        return Response(plain, media_type="application/json", headers=vary)

    return document


def _answered(request: Request, error: SessileError) -> JsonResponse:
    return error_response(error, request.url.path, getattr(request.state, "request_id", ""))


async def _refused(request: Request, error: Exception) -> JsonResponse:
    assert isinstance(error, SessileError)
    principal = getattr(request.state, "principal", None)
    if isinstance(error, Forbidden) and principal is not None:
        route = request.scope.get("route")
        await gateway_of(request).audit.forbidden(principal, error, f"{request.method} {getattr(route, 'path', '')}")
    return _answered(request, error)


async def _invalid(request: Request, error: Exception) -> JsonResponse:
    assert isinstance(error, RequestValidationError)
    return _answered(request, invalid(error.errors()))


def invalid(problems: Sequence[dict[str, Any]]) -> BadInput:
    """Returns an error for validation problems, in OpenAI's words. For a union it takes the deepest problem, which is
    from the branch that was meant; of equally deep ones, one about a value of the right type."""
    first = max(problems, key=lambda each: (len(each["loc"]), not each["type"].endswith("_type")))
    kind, message = first["type"], first["msg"]
    path = ""
    for part in first["loc"][1:]:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier() and part not in _BRANCHES:
            path += f".{clipped(part)}" if path else clipped(part)
    if kind == "json_invalid":
        return BadInput("invalid_request", "The body of this request is not valid JSON.")
    if kind == "missing" and not path:
        return BadInput("missing_required_parameter", "This request needs a body: a JSON object.")
    if kind == "missing":
        return BadInput("missing_required_parameter", f"Missing required parameter: '{path}'.", param=path or None)
    if kind == "extra_forbidden":
        return BadInput("unknown_parameter", f"Unknown parameter: '{path}'.", param=path)
    what = f"Invalid value for '{path}': " if path else ""
    return BadInput("invalid_request", f"{what}{message}.", param=path or None)


async def _http_error(request: Request, error: Exception) -> JsonResponse:
    assert isinstance(error, HTTPException)
    if error.status_code == 405 and (allowed := await _methods_at(request)):
        error.headers = allow(allowed)
        answer: SessileError = BadInput("method_not_allowed", f"{request.method} is not possible here.")
    elif error.status_code in (404, 405):
        error.headers = None
        answer = NotFound("not_found", f"There is nothing at {clipped(request.url.path)}.")
    else:
        answer = BadInput("invalid_request", str(error.detail))
    response = _answered(request, answer)
    response.headers.update(error.headers or {})
    return response


async def _methods_at(request: Request) -> frozenset[str]:
    """Returns the methods that a request's path has; an empty set if nothing is there."""
    methods: frozenset[str] = request.app.state.methods.of(request.url.path)
    files: PageFiles | None = request.app.state.page_files
    if not methods and files is not None:
        with suppress(NotFound):
            await asyncio.to_thread(files.get, request.url.path.removeprefix("/"))
            return frozenset(("GET", "HEAD"))
    return methods


async def _client_disconnected(_: Request, __: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it


async def _failed(request: Request, error: Exception) -> JsonResponse:
    route = request.scope.get("route")  # not what stands in the path: a share's token
    log.error("request_failed", path=getattr(route, "path", request.url.path), exc_info=error)
    return _answered(request, Internal("internal_error", "The server failed to carry this out."))
