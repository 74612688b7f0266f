"""How the process logs: lines to stderr, and no secret in any of them.

`redact` is the last processor before a line is written. It takes out what a secret is written like, wherever in a line
it stands: API keys, tokens, tickets, Authorization headers, passwords in URLs, PEM keys; what is logged under a name
that promises a secret; and the secrets of this process's own settings, by value. Names of keys (`key=ID`) stay: that is
what they are for. It is a net under the rule that nobody logs a secret, not the rule itself.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterable, MutableMapping
from typing import Any, Final, TextIO

import structlog

REDACTED: Final = "[redacted]"

_SECRETS: Final = re.compile(
    r"(?P<key>sk-[A-Za-z0-9_]+-[a-z2-7]{12}-)[a-z2-7]{8,}"
    r"|(?P<other>\bsk-)[A-Za-z0-9_-]{16,}"
    r"|\beyJ[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]*\.?[A-Za-z0-9_-]*"
    r"|(?P<ticket>\btkt_)[A-Za-z0-9_-]{8,}"
    r"|(?P<subprotocol>sessile\.bearer\.)[A-Za-z0-9_=-]+"
    r"|(?P<scheme>\b(?:Bearer|Basic)\s+)[A-Za-z0-9._~+/=-]{6,}"
    r"|(?P<url>[a-z][a-z0-9+.-]*://[^\s:/@]*:)[^\s/@]+(?=@)"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    re.IGNORECASE | re.DOTALL,
)
_NAMES: Final = re.compile(r"authorization|password|secret|credential|api_?key|token$|cookie|^auth$", re.IGNORECASE)
SECRET_LENGTH_MIN: Final = 6  # a shorter setting would take words out of ordinary lines


class Redaction:
    """The structlog processor that removes secrets from log lines. `secrets` are texts that are removed wherever they
    occur, besides everything that looks like a secret."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        long_enough = sorted({each for each in secrets if len(each) >= SECRET_LENGTH_MIN}, key=len, reverse=True)
        self._values = re.compile("|".join(map(re.escape, long_enough))) if long_enough else None

    def __call__(self, _: Any, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        for name, value in line.items():
            line[name] = REDACTED if _NAMES.search(name) and value is not None else self.cleaned(value)
        return line

    def cleaned(self, value: Any) -> Any:
        """Returns a value without secrets. Values other than text, numbers, None, lists and dicts become their `repr`,
        so that secrets in it are removed too."""
        match value:
            case str():
                return self.text(value)
            case None | bool() | int() | float():
                return value
            case dict():
                return {
                    self.text(str(name)): REDACTED if _NAMES.search(str(name)) else self.cleaned(each)
                    for name, each in value.items()
                }
            case list() | tuple() | set() | frozenset():
                return [self.cleaned(each) for each in value]
            case _:
                return self.text(repr(value))

    def text(self, text: str) -> str:
        if self._values is not None:
            text = self._values.sub(REDACTED, text)
        return _SECRETS.sub(_replaced, text)


def _replaced(match: re.Match[str]) -> str:
    return next((part for part in match.groups() if part is not None), "") + REDACTED


def configure(level: str, style: str, *, secrets: Iterable[str] = (), stream: TextIO | None = None) -> None:
    """Sets up the logs of this process. `style` is json, console (text for people), or auto: text if `stream` (stderr
    by default) is a terminal."""
    to = stream or sys.stderr
    as_text = style == "console" or (style == "auto" and to.isatty())
    renderer: Any = structlog.processors.JSONRenderer()
    if as_text:
        plain = structlog.dev.plain_traceback  # tracebacks are text by then, so that `Redaction` sees them
        renderer = structlog.dev.ConsoleRenderer(colors=to.isatty(), exception_formatter=plain)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S" if as_text else "iso", utc=not as_text),
            structlog.processors.format_exc_info,
            Redaction(secrets),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(to),
        cache_logger_on_first_use=stream is None,
    )


def warn_of_exposed_files(paths: Iterable[str]) -> None:
    """Logs a warning for each file with a secret that other users may read."""
    log = structlog.get_logger("sessile")
    for path in paths:
        log.warning("secret_file_exposed", file=path, hint=f"other users may read it: chmod 600 {path}")
