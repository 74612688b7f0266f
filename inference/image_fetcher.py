"""Fetches the images that messages name by an https address, from hosts that the operator permits.

Connections are those of server tools: to the very address that was checked, without redirects and without proxies.
Bounded: seconds, bytes, and fetches at the same time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from ipaddress import ip_network
from typing import Final

from inference.tools.outbound import ToolHttpClient, ToolUnanswered, ToolUnreached
from sessions.model.errors import BadInput, Unavailable
from sessions.model.knowledge.images import IMAGE_BYTES_MAX
from sessions.public_addresses import AddressRules, destination

TIMEOUT_S: Final = 10.0
FETCHES_MAX: Final = 8
SETTING: Final = "image_hosts"


class ImageFetcher:
    """Fetches images; usable inside its `async with`."""

    def __init__(self, hosts: Sequence[str], *, client: ToolHttpClient | None = None) -> None:
        """`hosts` are names (`images.example.com`), all names below one (`*.example.com`), and private networks (CIDR)
        in which such hosts may be. Raises BadInput for anything else."""
        networks, names = list[str](), set[str]()
        for host in hosts:
            if "/" in host:
                networks.append(_network(host))
            else:
                names.add(_name(host))
        self._names = frozenset(names)
        self._rules = AddressRules(networks)
        self._client = client or ToolHttpClient()
        self._room = asyncio.Semaphore(FETCHES_MAX)

    async def __aenter__(self) -> ImageFetcher:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def fetch(self, url: str) -> bytes:
        """Returns the bytes at an address. Raises BadInput if it is not permitted or does not answer with an image,
        Unavailable if its server does not answer."""
        if not self._permits(url):
            what = "This server fetches no image from there: send the image itself, as data:TYPE;base64,BYTES."
            raise BadInput("image_not_permitted", what)
        try:
            async with self._room:
                answer = await self._client.send(
                    "GET", url, self._rules, body=None, headers={}, timeout_s=TIMEOUT_S, bytes_max=IMAGE_BYTES_MAX
                )
        except (ToolUnreached, ToolUnanswered) as error:
            what = f"The image cannot be fetched: {error}."
            raise Unavailable("image_unreachable", what, retry_after_ms=1_000) from error
        if answer.status != 200:
            raise BadInput("image_unreadable", f"The image cannot be fetched: its server answers with {answer.status}.")
        if answer.cut:
            raise BadInput("image_unreadable", f"The image has more than {IMAGE_BYTES_MAX} bytes.")
        return answer.body

    def _permits(self, url: str) -> bool:
        try:
            to = destination(url)
        except ValueError:
            return False
        host = to.host.lower().removesuffix(".")
        parts = host.split(".")
        below = {f"*.{'.'.join(parts[at:])}" for at in range(1, len(parts))}
        return to.scheme == "https" and (host in self._names or not self._names.isdisjoint(below))


def _network(text: str) -> str:
    try:
        return str(ip_network(text))
    except ValueError as error:
        raise _wrong(f"{text!r} is no network: {error}") from error


def _name(text: str) -> str:
    name = text.lower().removesuffix(".")
    try:
        destination(f"https://{name.removeprefix('*.')}/")
    except ValueError as error:
        raise _wrong(f"{text!r} is no name of a host, such as images.example.com or *.example.com: {error}") from error
    return name


def _wrong(what: str) -> BadInput:
    return BadInput("invalid_setting", f"{SETTING}: {what}.", param=SETTING)
