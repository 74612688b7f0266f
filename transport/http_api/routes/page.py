"""The web pages at `/`, `/operator` and `/docs`: static files under a policy that lets a browser run nothing but them.

Every one has an ETag and is requested anew each time (`no-cache`): their names carry no version, so an update must show
at once; an unchanged file costs a 304.
"""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request, Response

from sessions.model.errors import NotFound
from transport.http.compression import takes_gzip
from transport.http.path_methods import PathMethods
from transport.http_api.page_files import PageFiles

POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
        "manifest-src 'self'",
        "worker-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS: Final = {
    "content-security-policy": POLICY,
    "integrity-policy": "blocked-destinations=(script)",  # each has a hash: see page_files
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-cache",
}


def router(files: PageFiles, methods: PathMethods) -> APIRouter:
    """Returns the router of the web pages. It matches every path, so it needs the `methods` of all other routes to
    refuse wrong ones."""
    routes = APIRouter(include_in_schema=False)

    @routes.api_route("/{name:path}", methods=["GET", "HEAD"])
    def page(name: str, request: Request) -> Response:
        # A plain function: FastAPI runs it in a thread, so that a slow disk does not hold up the loop.
        try:
            file = files.get(name)
        except NotFound:
            methods.check(f"/{name}")
            raise
        headers = {**HEADERS, "etag": file.etag}
        if file.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        if file.packed is None:
            return Response(file.body, media_type=file.media_type, headers=headers)
        headers["vary"] = "accept-encoding"
        body = file.body
        if takes_gzip(request.headers.get("accept-encoding", "")):
            body = file.packed
            headers |= {"content-encoding": "gzip", "etag": f"W/{file.etag}"}  # the same file in other bytes
        return Response(body, media_type=file.media_type, headers=headers)

    return routes
