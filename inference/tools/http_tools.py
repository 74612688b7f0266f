"""Tools on HTTP: sends a call of one within its limits, says what became of it.

What is said of a failure may be read by the model and by users: never an address, a header or an error of ours. A tool
that takes keys is tried again, with growing pauses; another is sent once, and if nothing came back the outcome is not
known.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlencode

import structlog

from inference.tools.gates import not_sent, retried, unanswered
from inference.tools.outbound import ToolAnswer, ToolHttpClient, ToolUnanswered, ToolUnreached
from inference.tools.secrets import header_values, without_secrets
from inference.tools.tools_file import HttpTool
from sessions.public_addresses import AddressRules
from sessions.server_tools import ToolRequest, ToolResult

log = structlog.get_logger(__name__)

URL_BYTES_MAX: Final = 8_192  # the length that servers accept at least
_TRY_AGAIN: Final = frozenset({408, 425, 429, 500, 502, 503, 504})


class HttpTools:
    """Carries out the calls of HTTP tools of one replica."""

    def __init__(self, client: ToolHttpClient, environment: Mapping[str, str]) -> None:
        """`environment`: the variables in which secrets of the tools file may stand."""
        self._client = client
        self._environment = environment

    async def call(self, request: ToolRequest, tool: HttpTool, rules: AddressRules) -> ToolResult:
        """Sends a call to an address that `rules` permit."""
        attempts = 1 + (tool.retries if tool.idempotency == "key" else 0)
        return await retried(attempts, lambda: self._once(request, tool, rules))

    async def _once(self, request: ToolRequest, tool: HttpTool, rules: AddressRules) -> tuple[ToolResult, bool]:
        """Sends a call; returns its result, and whether it is final."""
        try:
            answer = await self._send(request, tool, rules)
        except ToolUnreached as error:
            return not_sent(str(error)), False
        except ToolUnanswered as error:
            return unanswered(str(error)), False
        return _result(answer), answer.status not in _TRY_AGAIN

    async def _send(self, request: ToolRequest, tool: HttpTool, rules: AddressRules) -> ToolAnswer:
        try:
            given = await asyncio.to_thread(header_values, tool.headers, self._environment)
        except (OSError, ValueError) as error:
            log.error("tool_secret_missing", tool=request.name, error=str(error))
            raise ToolUnreached("it is not set up") from error
        headers = given.values
        if tool.idempotency == "key":
            headers["idempotency-key"] = request.execution_id
        url, body = tool.url, None
        if tool.method in ("GET", "DELETE"):
            url = _with_query(url, request.arguments, tool.fixed)
        else:
            body = request.arguments.encode()
            headers.setdefault("content-type", "application/json")
        answer = await self._client.send(
            tool.method,
            url,
            rules,
            body=body,
            headers=headers,
            timeout_s=tool.timeout_s,
            bytes_max=tool.result_bytes,
        )
        return answer._replace(body=without_secrets(given.secrets, answer.body))


def _with_query(url: str, arguments: str, fixed: frozenset[str]) -> str:
    """Adds the arguments to the URL, except those that it fixes itself. Raises ToolUnreached for values that no URL can
    have."""
    parameters = {name: _plain(value) for name, value in json.loads(arguments).items() if name not in fixed}
    try:
        query = urlencode(parameters)
    except UnicodeError as error:
        raise ToolUnreached("its arguments are no Unicode text") from error
    if not query:
        return url
    if len(url) + len(query) >= URL_BYTES_MAX:
        raise ToolUnreached("its arguments are too long for an address")
    return f"{url}{'&' if '?' in url else '?'}{query}"


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _result(answer: ToolAnswer) -> ToolResult:
    text = answer.body.decode(errors="replace").replace("\0", "\ufffd")
    if answer.cut:
        text += f"\n[cut off at {len(answer.body)} bytes]"
    if 200 <= answer.status < 300:
        return ToolResult(outcome="done", output=text)
    if 300 <= answer.status < 400:
        return ToolResult(outcome="failed", output=f"http_status {answer.status}: redirects are not followed.")
    return ToolResult(outcome="failed", output=f"http_status {answer.status}: {text}", is_broken=answer.status >= 500)
