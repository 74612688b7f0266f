"""Tokens and KV bytes: the engines behind one port, their tokenizers, the tiers that KV travels through, moderation.

It never knows the rules of sessions, or transports: it computes from token ids, and everything that it keeps can be
lost. Start with `factory` (which engine, from which settings), then an engine's `engine.py` (`llama`, `vllm`,
`simulated`). `fair_queue` says who runs next, `forecast` when, `brownout_engine` joins two engines, `kv` keeps what
they computed, `moderation` filters text, `tools` sends what models call of the server's own,
`embedding` turns texts into vectors.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inference.embedding import open_embedder
    from inference.factory import audit_policies, make_engine, open_filters, open_image_fetcher, personal_texts
    from inference.tools import open_added_tool_check, open_tools

__all__ = [
    "audit_policies",
    "make_engine",
    "open_added_tool_check",
    "open_embedder",
    "open_filters",
    "open_image_fetcher",
    "open_tools",
    "personal_texts",
]
_ELSEWHERE = {
    "open_added_tool_check": "inference.tools",
    "open_embedder": "inference.embedding",
    "open_tools": "inference.tools",
}


def __getattr__(name: str) -> Any:
    """Imports a part of the package when its name is first used: a command that lists models needs none of them."""
    if name not in __all__:
        raise AttributeError(name)
    return getattr(importlib.import_module(_ELSEWHERE.get(name, "inference.factory")), name)
