"""The address of a directory on Valkey or Redis, as people write it, and the redis-py client for it.

    redis://[user:password@]host[:port][/db]                       one server
    unix://[user:password@]/path/to.sock[?db=N]                    one server on this machine
    redis+sentinel://[user:password@]host[:port],.../service[/db]  the master of `service`, as the Sentinels name it
    redis+cluster://[user:password@]host[:port],...                a cluster, found from any of its nodes

`rediss://`, `rediss+sentinel://` and `rediss+cluster://` speak TLS. Options after `?`: `ssl_ca_certs`, `ssl_certfile`,
`ssl_keyfile` (paths), `ssl_check_hostname` (yes, no), `sentinel_username`, `sentinel_password`. Names and passwords are
percent-encoded where they hold characters that an address reserves.

A malformed address is refused here, before anything is connected, with a BadInput that names the mistake and never
repeats a password. Nothing here connects; `ValkeyDirectory.open` finds out whether a server answers.
"""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import msgspec
from redis.asyncio import Redis, RedisCluster, Sentinel
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from sessions.model.errors import BadInput

REDIS_PORT: Final = 6379
SENTINEL_PORT: Final = 26379
TLS_OPTIONS: Final = {"ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_check_hostname"}
SENTINEL_OPTIONS: Final = {"sentinel_username", "sentinel_password"}
BOOLEANS: Final = {"yes": True, "true": True, "no": False, "false": False}
EXAMPLES: Final = (
    "redis://host:6379/0, rediss://…, unix:///path/to.sock, redis+sentinel://host:26379,host:26379/service, "
    "redis+cluster://host:6379,host:6379"
)


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed directory address. `where` names it in logs and messages, without credentials."""

    kind: str  # "server", "unix", "sentinel" or "cluster"
    hosts: tuple[tuple[str, int], ...] = ()
    path: str = ""
    service: str = ""
    db: int = 0
    tls: bool = False
    username: str | None = None
    password: str | None = None
    options: dict[str, str | bool] = {}

    @property
    def where(self) -> str:
        if self.kind == "unix":
            return self.path
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        return f"{hosts}/{self.service}" if self.kind == "sentinel" else hosts


def _refuse(problem: str) -> BadInput:
    return BadInput(
        "bad_directory_url",
        f"The directory's address is refused: {problem}. Written like: {EXAMPLES}.",
        param="directory",
    )


def parse(url: str) -> Address:
    """Parses a directory address. Raises BadInput (`bad_directory_url`)."""
    kinds = {"redis": "server", "unix": "unix", "redis+sentinel": "sentinel", "redis+cluster": "cluster"}
    try:
        parts = urlsplit(url)
    except ValueError:
        raise _refuse("it is not an address") from None
    scheme = parts.scheme
    tls = scheme == "rediss" or scheme.startswith("rediss+")
    kind = kinds.get(scheme.replace("rediss", "redis", 1) if tls else scheme)
    if kind is None:
        raise _refuse(f"{scheme!r} is not a kind of address that is known" if scheme else "it names no kind (scheme)")
    if parts.fragment or "@" in parts.path + parts.query:
        # Perhaps half of a password: say nothing of what stands where.
        raise _refuse("in names, passwords and paths '/' is written %2F, '?' %3F, '#' %23 and '@' %40")
    credentials, _, place = parts.netloc.rpartition("@")
    username, _, password = credentials.partition(":")
    options = _options(parts, kind, tls)
    db = options.pop("db", "")
    segments = [unquote(segment) for segment in parts.path.split("/") if segment]
    if kind == "unix":
        if place:
            raise _refuse(f"a unix address has no host, write three slashes (unix:///{place}…)")
        if not segments:
            raise _refuse("the path of the socket is missing")
        hosts: tuple[tuple[str, int], ...] = ()
        service, segments = "", []
    else:
        hosts = _hosts(place, SENTINEL_PORT if kind == "sentinel" else REDIS_PORT)
        if kind == "server" and len(hosts) > 1:
            raise _refuse("several hosts need redis+sentinel:// or redis+cluster://")
        if kind == "sentinel" and not segments:
            raise _refuse("the name of the service is missing (redis+sentinel://host:port/service)")
        service = segments.pop(0) if kind == "sentinel" else ""
    if segments and db:
        raise _refuse("the database stands both in the path and in the options")
    if len(segments) > 1:
        raise _refuse(f"there is too much in its path (/{'/'.join(segments)})")
    return Address(
        kind=kind,
        hosts=hosts,
        path=unquote(parts.path) if kind == "unix" else "",
        service=service,
        db=_db(segments[0] if segments else str(db), kind),
        tls=tls,
        username=unquote(username) or None,
        password=unquote(password) or None,
        options=options,
    )


def _hosts(place: str, default_port: int) -> tuple[tuple[str, int], ...]:
    hosts = []
    for host in place.split(","):
        match = re.fullmatch(r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+)(?::(\d{1,5}))?", host)
        if match is None:
            raise _refuse(f"{host!r} is not a host with a port" if host else "a host is missing")
        port = int(match[2]) if match[2] else default_port
        if not 0 < port < 65536:
            raise _refuse(f"{port} is not a port (1 to 65535)")
        hosts.append((match[1].strip("[]"), port))
    return tuple(hosts)


def _options(parts: SplitResult, kind: str, tls: bool) -> dict[str, str | bool]:
    allowed = TLS_OPTIONS if tls else set[str]()
    allowed = allowed | (SENTINEL_OPTIONS if kind == "sentinel" else set()) | ({"db"} if kind != "cluster" else set())
    try:
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise _refuse("its options are not written name=value&name=value") from None
    options: dict[str, str | bool] = {}
    for name, value in pairs:
        if name not in allowed:
            raise _refuse(f"{name!r} is not an option here (known: {', '.join(sorted(allowed)) or 'none'})")
        if not value or name in options:
            raise _refuse(f"option {name!r} is empty or stands twice")
        if name == "ssl_check_hostname":
            if value not in BOOLEANS:
                raise _refuse(f"option {name!r} is yes or no")
            options[name] = BOOLEANS[value]
        else:
            options[name] = value
    return options


def _db(text: str, kind: str) -> int:
    if not text:
        return 0
    if not re.fullmatch(r"\d{1,4}", text):
        raise _refuse(f"{text!r} is not the number of a database")
    if kind == "cluster" and int(text):
        raise _refuse("a cluster has no databases but 0")
    return int(text)


def connect(url: str, *, timeout_s: float = 1.0) -> Redis | RedisCluster:
    """Returns a client for an address, not connected yet. Raises BadInput (`bad_directory_url`).

    The client waits at most `timeout_s` for a connection and for each answer, and repeats nothing by itself: only its
    caller knows which calls may be repeated.
    """
    return client_for(parse(url), timeout_s=timeout_s)


def client_for(address: Address, *, timeout_s: float) -> Redis | RedisCluster:
    common: dict[str, Any] = {
        "username": address.username,
        "password": address.password,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "protocol": 2,  # answers only; RESP3 pushes would mix with them
        "retry": Retry(NoBackoff(), 0),
    }
    sentinel_options = {
        name.removeprefix("sentinel_"): value for name, value in address.options.items() if name in SENTINEL_OPTIONS
    }
    if address.tls:
        common |= {"ssl": True} | {name: value for name, value in address.options.items() if name in TLS_OPTIONS}
    match address.kind:
        case "unix":
            return Redis(unix_socket_path=address.path, db=address.db, **common)
        case "sentinel":
            # All of them are queried, one after another, within the time that one connection may take.
            each_s = timeout_s / (len(address.hosts) + 1)
            tls = {name: value for name, value in common.items() if name.startswith("ssl")}
            sentinels = Sentinel(  # type: ignore[no-untyped-call]  # redis-py has no types for it
                address.hosts,
                sentinel_kwargs={
                    "socket_timeout": each_s,
                    "socket_connect_timeout": each_s,
                    "protocol": 2,
                    "retry": Retry(NoBackoff(), 0),
                    **sentinel_options,
                    **tls,
                },
                db=address.db,
                **common,
            )
            master: Redis = sentinels.master_for(address.service)
            return master
        case "cluster":
            return RedisCluster(startup_nodes=[ClusterNode(host, port) for host, port in address.hosts], **common)
        case _:
            host, port = address.hosts[0]
            return Redis(host=host, port=port, db=address.db, **common)
