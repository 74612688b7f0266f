"""Values of the tools file that stand elsewhere: in a file, read again for each use, or in the environment. They are
never logged, nothing of them is in an error, and they are taken out of what a tool answers."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

HeaderName = Annotated[str, Meta(pattern=r"^[A-Za-z][A-Za-z0-9-]{0,63}$(?!\n)")]
SECRET_LENGTH_MIN: Final = 4  # shorter values are no secrets: they occur in many answers
TEXT_LENGTH_MIN: Final = 8  # of a header sent over the API, and of its parts: not all of these are secrets
PARTS_MAX: Final = 16  # of such a header: each is searched for in every answer
SENT_MAX: Final = 512  # secrets of a server that are remembered: those of now and those before them
_OURS: Final = {"host", "content-length", "transfer-encoding", "connection", "idempotency-key", "accept-encoding"}
_PUBLIC: Final = {"accept", "accept-language", "content-type", "user-agent"}  # headers without secrets
_SCHEME: Final = re.compile(r"[A-Za-z0-9-]+$")
_PART: Final = re.compile(r'(?:[^\s=;,"]+=(?="?[^\s=;,"]))?"?([^\s;,"]+)')  # behind NAME=, if there is a name
_SECRET_BYTES_MAX: Final = 16_384


class SecretHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A header whose value is stored elsewhere: in a file, read again for each call, or in the environment."""

    file: str = ""
    env: str = ""
    prefix: str = ""

    def __post_init__(self) -> None:
        if bool(self.file) == bool(self.env):
            raise ValueError("a header is a text, or names either a `file` or an `env`")


Secret = str | SecretHeader


class SecretText(str):
    """A header's value that is a secret itself, because an administrator has sent it over the API."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "SecretText(...)"

    @property
    def secrets(self) -> tuple[str, ...]:
        """The whole value; of one like `Bearer TOKEN` what stands behind the scheme; and of one like `Token id="ID",
        key="KEY"` or `a=A; b=B` its first parts. Short ones are none."""
        scheme, _, rest = self.partition(" ")
        behind = rest if rest and _SCHEME.match(scheme) else str(self)
        return tuple(
            dict.fromkeys(
                each for each in (str(self), behind, *_PART.findall(behind)[:PARTS_MAX]) if len(each) >= TEXT_LENGTH_MIN
            )
        )


class SecretValues(NamedTuple):
    """Values by name, and those of them that are secrets."""

    values: dict[str, str]
    secrets: tuple[str, ...]


def check_headers(headers: Mapping[str, Secret]) -> None:
    """Raises ValueError for headers that a tools file may not set, or that are invalid."""
    if len({name.lower() for name in headers}) < len(headers):
        raise ValueError("`headers` has a header twice")
    for name, value in headers.items():
        if name.lower() in _OURS:
            raise ValueError(f"headers.{name} is set by the server itself: leave it out")
        if isinstance(value, str) and not (value.isprintable() and value.isascii()):
            raise ValueError(f"headers.{name} has signs that no header has")


def secret_values(given: Mapping[str, Secret], environment: Mapping[str, str]) -> SecretValues:
    """Reads the values. Raises ValueError or OSError where one is missing. Blocking."""
    values, secrets = dict[str, str](), list[str]()
    for name, value in given.items():
        if isinstance(value, SecretHeader):
            secrets.append(_secret(value, environment))
            values[name] = value.prefix + secrets[-1]
        else:
            secrets += value.secrets if isinstance(value, SecretText) and name.lower() not in _PUBLIC else ()
            values[name] = str(value)
    return SecretValues(values, tuple(secrets))


def header_values(headers: Mapping[str, Secret], environment: Mapping[str, str]) -> SecretValues:
    """Returns the headers of a call, by name in lower case. Raises ValueError or OSError where a secret is missing.
    Blocking."""
    given = secret_values(headers, environment)
    for name, value in given.values.items():
        if not value.isprintable() or not value.isascii():
            raise ValueError(f"headers.{name} has signs that no header has")
    return given._replace(values={name.lower(): value for name, value in given.values.items()})


def without_secrets(secrets: Iterable[str], body: bytes) -> bytes:
    """Returns an answer's body with our own secrets removed, as they are and as JSON has them: an error page of a
    service or proxy may repeat the request's headers."""
    long = {secret for secret in secrets if len(secret) >= SECRET_LENGTH_MIN}
    quoted = {json.dumps(secret)[1:-1] for secret in long}
    slashed = {text.replace("/", "\\/") for text in quoted}  # as some writers of JSON do
    for text in sorted(long | quoted | slashed, key=len, reverse=True):  # a part never before its whole
        body = body.replace(text.encode(), b"[removed]")
    return body


class SentSecrets:
    """The secrets that a running server was given, so that they can be removed from its output; older values of changed
    secrets too."""

    def __init__(self) -> None:
        self._kept: dict[str, None] = {}

    def add(self, secrets: Collection[str]) -> None:
        for secret in secrets:
            self._kept.pop(secret, None)
            self._kept[secret] = None
        while len(self._kept) > max(SENT_MAX, len(secrets)):
            del self._kept[next(iter(self._kept))]

    def taken_out(self, text: str) -> str:
        return without_secrets(self._kept, text.encode(errors="surrogatepass")).decode(errors="surrogatepass")


def _secret(given: SecretHeader, environment: Mapping[str, str]) -> str:
    if given.env:
        if given.env not in environment:
            raise ValueError(f"the variable {given.env} is not set")
        return environment[given.env].strip()
    with Path(given.file).open() as file:
        return file.read(_SECRET_BYTES_MAX).strip()
