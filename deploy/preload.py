"""Loads, before the event loop runs, the modules that a server would otherwise load inside it.

A module that is loaded late holds the loop up: a start would report a stall, and a first request would wait.
"""

from __future__ import annotations

import importlib
from typing import Final

from transport.cli.settings import Settings

EVERY_ROLE: Final = (
    *("anyio._backends._asyncio", "encodings.ascii", "encodings.idna", "uvicorn.lifespan.off", "inference.http_client"),
    *("prometheus_client.openmetrics.exposition", "pydantic._internal._dataclasses"),
)
WITH_AN_ENGINE: Final = ("inference.moderation.personal", "inference.kv.index")
ENGINES: Final = {
    "sim": ("inference.simulated",),
    "llama": ("inference.llama", "inference.llama.devices", "encodings.unicode_escape"),
    "remote": ("inference.remote.engine",),
    "chat": ("inference.remote.engine", "inference.remote.chat_dialect"),
    "vllm": ("inference.vllm.engine", "inference.vllm.device"),
}


def preload(settings: Settings, *, has_engine: bool) -> None:
    """Loads them for a role. One that is not installed is left to whoever needs it, who says what to do."""
    names = [*EVERY_ROLE, *((*WITH_AN_ENGINE, *ENGINES.get(settings.engine, ())) if has_engine else ())]
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:
            continue
