"""A real OpenID provider on this machine, and a browser of httpx that signs in with it.

The provider is `oidc-provider` for Node (certified; locked with the TypeScript client's development packages). It lets
in anybody by the name that they give: see `provider.mjs`.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urljoin, urlsplit

import httpx

from tests.support.node import CLIENT, WITH_NODE

SCRIPT: Final = Path(__file__).parent / "provider.mjs"
CLIENT_ID: Final = "sessile"
CLIENT_SECRET: Final = "s3cret"

_FORM: Final = re.compile(r'<form[^>]*action="([^"]+)"')
_PROMPT: Final = re.compile(r'name="prompt" value="(\w+)"')
_HIDDEN: Final = re.compile(r'name="(xsrf)" value="([^"]+)"')


@asynccontextmanager
async def openid_provider(page: str, *, ttl_s: int = 3600) -> AsyncIterator[str]:
    """Its issuer. `page` is the address of the server that people sign in to."""
    if not (CLIENT / "node_modules" / "oidc-provider").is_dir():
        npm = await asyncio.create_subprocess_exec(WITH_NODE, "npm", "ci", "--no-audit", "--no-fund", cwd=CLIENT)
        assert await npm.wait() == 0
    settings = json.dumps({"page": page, "secret": CLIENT_SECRET, "ttl": ttl_s})
    node = await asyncio.create_subprocess_exec(
        WITH_NODE, "node", str(SCRIPT), settings, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    assert node.stdout is not None
    try:
        issuer = (await node.stdout.readline()).decode().strip()
        assert issuer.startswith("http://127.0.0.1:"), issuer
        yield issuer
    finally:
        node.terminate()
        await node.wait()


async def at_provider(http: httpx.AsyncClient, url: str, login: str, *, back_at: str) -> httpx.Response:
    """Follows redirects, and fills in the provider's forms, until it sends the browser to `back_at`: that answer,
    which is not followed."""
    answer = await http.get(url)
    for _ in range(20):
        if answer.is_redirect:
            target = urljoin(str(answer.url), answer.headers["location"])
            if target.startswith(back_at):
                return answer
            answer = await http.get(target)
            continue
        assert answer.status_code == 200, (answer.status_code, answer.text)
        form, prompt = _FORM.search(answer.text), _PROMPT.search(answer.text)
        assert form is not None, answer.text
        fields = dict(_HIDDEN.findall(answer.text)) | ({"prompt": prompt[1]} if prompt else {})
        if prompt is not None and prompt[1] == "login":
            fields |= {"login": login, "password": "any"}
        elif prompt is None:
            fields["logout"] = "yes"
        answer = await http.post(urljoin(str(answer.url), form[1]), data=fields)
    raise AssertionError("the provider never comes to an end")


async def sign_in(http: httpx.AsyncClient, page: str, login: str, *, path: str = "/") -> httpx.Response:
    """Signs in with a browser (whose cookies `http` keeps): the answer of the callback, which is not followed."""
    begun = await http.get(f"{page}/auth/sign-in", params={"next": path})
    assert begun.status_code == 303, begun.text
    back = await at_provider(http, begun.headers["location"], login, back_at=f"{page}/auth/callback")
    return await http.get(back.headers["location"])


def query_of(url: str) -> str:
    return urlsplit(url).query
