"""What HTTP proxies of the environment (`HTTP_PROXY`, `HTTPS_PROXY`) are for: addresses elsewhere, never this machine.

A proxy cannot reach our loopback, and would read the key that goes there. Libraries (exporters of traces, hubs, object
stores) read the environment by themselves, so it is put right once, when a process starts.
"""

from __future__ import annotations

import urllib.request
from collections.abc import MutableMapping
from typing import Final
from urllib.parse import urlsplit

from transport.addresses import is_loopback

LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


def spare_loopback(environment: MutableMapping[str, str]) -> None:
    """Adds this machine's names to `NO_PROXY` and `no_proxy` if a proxy is set; libraries read one or the other."""
    if not any(name.lower().endswith("_proxy") and name.lower() != "no_proxy" for name in environment):
        return
    spared = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    names = [name.strip() for name in spared.split(",") if name.strip()]
    if "*" not in names:
        names += [name for name in LOOPBACK if name not in names]
    environment["no_proxy"] = environment["NO_PROXY"] = ",".join(names)


def proxy_for(url: str) -> str | None:
    """Returns the proxy that a request for `url` goes through, without its password; None if it goes directly."""
    parts = urlsplit(url)
    proxy = urllib.request.getproxies().get(parts.scheme)
    if not proxy or is_loopback(parts.hostname or "") or urllib.request.proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    scheme, separator, place = proxy.rpartition("://")
    return f"{scheme}{separator}{place.rpartition('@')[2]}"


def through(url: str) -> str:
    """Returns what to add to an error about `url`: the proxy in between; empty without one."""
    proxy = proxy_for(url)
    return "" if proxy is None else f" (asked through the proxy {proxy}, as HTTP_PROXY or HTTPS_PROXY says)"
