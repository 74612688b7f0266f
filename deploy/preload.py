"""Loads, before the event loop runs, the modules that a server would otherwise load inside it.

A module that is loaded late holds the loop up: a start would report a stall, and a first request would wait.
"""

from __future__ import annotations

import importlib
from typing import Final

from transport.cli.settings import Settings
from transport.cli.start.config_files import demands_keys

EVERY_ROLE: Final = (
    *("encodings.ascii", "encodings.idna", "uvicorn.lifespan.off", "prometheus_client.openmetrics.exposition"),
)
WITH_AN_ENGINE: Final = ("inference.kv.index",)
WITH_LIMITS: Final = ("actors.results.cache", "inference.moderation.personal")  # answers are cached within them
IN_A_CLUSTER: Final = ("actors.replica", "actors.routing.router", "transport.peer")
ENGINES: Final = {
    "sim": ("inference.simulated",),
    "llama": ("inference.llama", "inference.llama.devices", "encodings.unicode_escape"),
    "remote": ("inference.remote.engine",),
    "chat": ("inference.remote.engine", "inference.remote.chat_dialect"),
    "vllm": ("inference.vllm.engine", "inference.vllm.device"),
}


def preload(settings: Settings, *, has_engine: bool, in_cluster: bool) -> None:
    """Loads them for a role. One that is not installed is left to whoever needs it, who says what to do."""
    names = [*EVERY_ROLE, *((*WITH_AN_ENGINE, *ENGINES.get(settings.engine, ())) if has_engine else ())]
    if has_engine and (settings.limits or settings.directory or demands_keys(settings)):
        names += WITH_LIMITS
    if in_cluster:
        names += IN_A_CLUSTER
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:
            continue
