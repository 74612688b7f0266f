"""`/auth`: signing in and out with a browser, where the server has a provider (`--oidc-issuer`).

No answer here has a token in it, and nothing of a request says where a browser is sent but `next`, a path here.
"""

from __future__ import annotations

import html
from typing import Annotated, Final
from urllib.parse import parse_qs

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from sessions.model.audit import Audited
from sessions.model.errors import BadInput, Limited, SessileError, TooLarge, Unauthorized
from sessions.model.types import Json, Principal
from transport import errors
from transport.auth.authenticator import Authenticator
from transport.auth.origins import CSRF_HEADER
from transport.auth.sign_in import SignIn
from transport.http.json_response import JsonResponse
from transport.http_api.context import gateway_of
from transport.http_api.credential_gate import address_of
from transport.websocket.handshake import single_value

PREFIX: Final = "/auth"
LOGOUT_BYTES_MAX: Final = 16 * 1024
NO_STORE: Final = {"cache-control": "no-store"}

FAILED: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Sessile: not signed in</title></head>
<body><h1>You are not signed in</h1><p>{reason}</p><p><a href="{again}">Try again</a></p></body></html>
"""


def router(access: Authenticator) -> APIRouter:
    """Returns the routes for people who sign in with an identity provider."""
    sign_in = access.sign_in
    assert isinstance(sign_in, SignIn)
    routes = APIRouter(include_in_schema=False)
    page = sign_in.public_url.at("/")

    @routes.get(f"{PREFIX}/sign-in")
    async def begin(path: Annotated[str, Query(alias="next")] = "") -> Response:
        url, cookie = sign_in.begin(path or (sign_in.public_url.path + "/"))
        return redirect(url, [cookie])

    @routes.get(f"{PREFIX}/callback")
    async def complete(request: Request) -> Response:
        address = address_of(access, request.scope)
        try:
            access.sign_ins.failed(address)  # beforehand: of many made-up codes at once only a few reach the provider
            done = await sign_in.complete(dict(request.query_params), cookies_of(request))
            access.verify(done.principal)
            access.sign_ins.forgive(address)
        except SessileError as error:
            if not isinstance(error, Unauthorized | Limited):
                access.sign_ins.forgive(address)
            body = FAILED.format(reason=html.escape(error.public_message), again=html.escape(page))
            return HTMLResponse(body, errors.row(error.code).http, NO_STORE)
        by = done.principal
        await gateway_of(request).audit.record(
            by.tenant, "user.signed_in", by=by, user=by.user, detail=session_detail(by)
        )
        return redirect(sign_in.public_url.origin + done.next, done.cookies)

    @routes.get(f"{PREFIX}/session")
    async def described(request: Request) -> Response:
        written = sign_in.session_cookie(cookies_of(request))
        about: dict[str, object] = {"signed_in": False, "keys": access.takes_keys}
        own = is_own(sign_in, request)
        try:
            if written is not None and own:
                principal = sign_in.session_of(written)
                access.verify(principal)
                named = {"tenant": principal.tenant, "user": principal.user, "role": principal.role}
                about |= {"signed_in": True, **named, "expires_at": principal.expires_at}
        except SessileError:
            pass  # as if there were none
        about["refreshable"] = own and sign_in.can_refresh(cookies_of(request))
        return JsonResponse(about, headers=NO_STORE)

    @routes.post(f"{PREFIX}/refresh")
    async def refresh(request: Request) -> Response:
        check_page(sign_in, request)
        done = await sign_in.refresh(cookies_of(request), access.verify)
        return with_cookies(JsonResponse({"expires_at": done.principal.expires_at}, headers=NO_STORE), done.cookies)

    @routes.post(f"{PREFIX}/sign-out")
    async def end(request: Request) -> Response:
        check_page(sign_in, request)
        principal, cookies = sign_in.end(cookies_of(request))
        if principal is not None:
            by, now = principal, gateway_of(request).now_ms()
            row = Audited(action="user.signed_out", at=now, by=by, user=by.user, detail=session_detail(by))
            await access.end_session(by, row)
        return with_cookies(Response(status_code=204, headers=NO_STORE), cookies)

    @routes.get(f"{PREFIX}/signed-out")
    async def leave(request: Request) -> Response:
        if not is_own(sign_in, request):  # a link of another page of the site signs nobody out at the provider
            return redirect(page, [])
        url, cookie = sign_in.end_session_url(cookies_of(request))
        return redirect(url, [cookie])

    @routes.post(f"{PREFIX}/backchannel-logout")
    async def ended_at_provider(request: Request) -> Response:
        """Ends the sessions of somebody who has signed out at the provider (OpenID Connect Back-Channel Logout 1.0)."""
        address = address_of(access, request.scope)
        access.logouts.failed(address)  # beforehand: checking a signature costs
        try:
            ended = sign_in.ended_at_provider(await logout_token_of(request))
        except Unauthorized as error:
            raise BadInput("invalid_request", error.public_message, param="logout_token") from error
        access.logouts.forgive(address)
        await access.end_subject(ended)
        return Response(status_code=200, headers=NO_STORE)

    return routes


async def logout_token_of(request: Request) -> str:
    """Returns the form's field `logout_token`. Raises BadInput, TooLarge."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > LOGOUT_BYTES_MAX:
            raise TooLarge("too_large", f"A logout token comes in at most {LOGOUT_BYTES_MAX} bytes.")
    try:
        (token,) = parse_qs(body.decode("ascii"), max_num_fields=8)["logout_token"]
    except (ValueError, KeyError) as error:
        raise BadInput(
            "invalid_request", "A form with one `logout_token` is expected.", param="logout_token"
        ) from error
    return token


def session_detail(principal: Principal) -> dict[str, Json]:
    """Returns the audit detail of a sign-in: the names by which it can be revoked; empty without a token."""
    token = principal.token
    return {} if token is None else {"issuer": token.issuer, "token": token.id}


def cookies_of(request: Request) -> list[str]:
    return request.headers.getlist("cookie")


def origin_and_site(request: Request) -> tuple[str | None, str | None]:
    """Returns the Origin and Sec-Fetch-Site headers, by which browsers tell which page sent a request."""
    headers = request.headers
    return single_value(headers.getlist("origin")), single_value(headers.getlist("sec-fetch-site"))


def is_own(sign_in: SignIn, request: Request) -> bool:
    return sign_in.may_read(*origin_and_site(request))


def check_page(sign_in: SignIn, request: Request) -> None:
    origin, site = origin_and_site(request)
    sign_in.check_page(origin=origin, site=site, header=request.headers.get(CSRF_HEADER))


def redirect(url: str, cookies: list[str]) -> Response:
    return with_cookies(RedirectResponse(url, 303, NO_STORE), cookies)


def with_cookies(response: Response, cookies: list[str]) -> Response:
    for cookie in cookies:
        response.headers.append("set-cookie", cookie)
    return response
