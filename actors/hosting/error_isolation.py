"""Keeps one session's failure from ending a sweep over many: it is logged, and the next sweep tries it again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import structlog

from sessions.model.errors import SessileError
from sessions.model.types import SessionKey

log = structlog.get_logger(__name__)


@contextlib.contextmanager
def isolate_errors(event: str, key: SessionKey) -> Iterator[None]:
    """Logs an error raised inside the block under the name `event` and does not raise it, because it concerns one
    session only. Cancellation is raised."""
    try:
        yield
    except SessileError as error:
        log.warning(event, session=key.session, tenant=key.tenant, error=str(error))
    except Exception:  # a log that cannot be folded is one session's trouble, not the replica's
        log.exception(event, session=key.session, tenant=key.tenant)
