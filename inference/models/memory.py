"""Says before a model is loaded whether it fits, and if not, what would: figures from the file's head, not from a try.

Loading what does not fit ends in a process that the kernel kills, or in a machine that swaps, minutes later and without
a word. What is needed: the weights, the KV of every slot's whole window, and room to compute in.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from sessions.model.errors import BadInput

COMPUTE_BYTES: Final = 300 << 20  # activations and buffers of a small batch
SPARE: Final = 0.05  # the share of memory that stays free for other programs
KV_SHARE: Final = 0.5  # the share of memory beside the weights that the KV of a default window may take
WINDOW_STEP: Final = 256
WINDOW_LEAST: Final = 2048  # below that a smaller window is no advice


class Footprint(NamedTuple):
    """How much memory a model takes, in bytes."""

    weights_bytes: int
    kv_bytes_per_token: int
    window: int  # tokens of a session
    slots: int

    @property
    def total(self) -> int:
        return self.weights_bytes + self.kv_bytes_per_token * self.window * self.slots + COMPUTE_BYTES


def gguf_kv_bytes_per_token(metadata: Mapping[str, Any]) -> int:
    """Returns the bytes of one token's KV in 16 bits, from a GGUF's head; 0 where it does not say."""
    kind = metadata.get("general.architecture", "")

    def number(name: str) -> int:
        value = metadata.get(f"{kind}.{name}", 0)
        return max(value) if isinstance(value, list | tuple) and value else int(value or 0)

    layers, heads = number("block_count"), number("attention.head_count")
    if not layers or not heads:
        return 0
    width = number("embedding_length") // heads
    kv_heads = number("attention.head_count_kv") or heads
    keys, values = number("attention.key_length") or width, number("attention.value_length") or width
    return 2 * layers * kv_heads * (keys + values)


def folder_footprint(path: Path, window: int) -> Footprint:
    """Returns the memory of a model folder in vLLM's format with the KV of one session. What the folder does not say
    counts nothing."""
    weights = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    try:
        whole = json.loads((path / "config.json").read_bytes())
        config = whole.get("text_config", whole)
        heads = int(config["num_attention_heads"])
        width = int(config.get("head_dim") or config["hidden_size"] // heads)
        kv = 4 * int(config["num_hidden_layers"]) * int(config.get("num_key_value_heads") or heads) * width
        longest = int(config.get("max_position_embeddings") or 0)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError):
        kv, longest = 0, 0
    return Footprint(weights, kv, min(window or longest, longest or window), 1)


def available_bytes(root: Path = Path("/")) -> int:
    """Returns the bytes that a process may still take: of the machine or its container, whichever is less. 0 where
    nothing says (then nothing is checked)."""
    free = _meminfo(root / "proc" / "meminfo")
    group = root / "sys" / "fs" / "cgroup"
    for folder, limit, used, cache in (
        (group, "memory.max", "memory.current", "file"),
        (group / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache"),
    ):
        bound = _number(folder / limit)
        if 0 < bound < 1 << 60:
            taken = _number(folder / used) - _stat(folder / "memory.stat", cache)  # what is cached of files can go
            left = max(1, bound - max(0, taken))
            free = min(free, left) if free else left
    return free


def default_window(own: Footprint, available: int) -> int:
    """Returns the context window of sessions if none is set: the model's own (`own.window`) if the KV of all slots then
    takes at most half of the memory that the weights leave free, otherwise as much as fits into that half. `available`
    is in bytes; 0: unknown."""
    per_token = own.kv_bytes_per_token * own.slots
    if not available or not per_token:
        return own.window
    left = int(available * (1 - SPARE)) - own.weights_bytes - COMPUTE_BYTES
    fits = int(left * KV_SHARE) // per_token
    return min(own.window, max(fits // WINDOW_STEP * WINDOW_STEP, WINDOW_LEAST))


def check_window(model: str, window: int, own: int) -> None:
    """Raises BadInput for a window beyond the model's `own`; 0: the model does not say."""
    if own and window > own:
        raise BadInput(
            "invalid_setting",
            f"context = {window}: {model} takes {own} tokens. Give --context {own} or less, or leave it out.",
            param="context",
        )


def check_fits(model: Path, need: Footprint, available: int, *, where: str = "memory") -> None:
    """Raises BadInput, saying what would fit, where a model needs more than is `available` (0: not known)."""
    room = int(available * (1 - SPARE))
    if not available or need.total <= room:
        return
    left = room - need.weights_bytes - COMPUTE_BYTES
    if left < need.kv_bytes_per_token * WINDOW_LEAST or not need.kv_bytes_per_token:
        weights = _gb(need.weights_bytes)
        advice = f"its weights alone take {weights}: take a smaller model, or a smaller quantisation of this one"
    else:
        tokens = left // need.kv_bytes_per_token
        window = tokens // need.slots // 256 * 256
        fits = [f"--context {window} with {need.slots} slots"] if window >= WINDOW_LEAST else []
        if (slots := tokens // need.window) >= 1:
            fits.append(f"--slots {slots} with the window of {need.window}")
        if not fits:
            fits.append(f"--slots 1 --context {tokens // 256 * 256}")
        advice = f"what would fit is {', or '.join(fits)}"
    raise BadInput(
        "memory_too_small",
        f"The model {model.name} needs about {_gb(need.total)} ({_gb(need.weights_bytes)} of weights, {need.slots} × "
        f"{need.window} tokens of KV) and {_gb(available)} of {where} are free; {advice}.",
        param="model",
    )


def _meminfo(path: Path) -> int:
    try:
        for line in path.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return 0


def _stat(path: Path, name: str) -> int:
    try:
        return next(int(line.split()[1]) for line in path.read_text().splitlines() if line.startswith(f"{name} "))
    except (OSError, ValueError, IndexError, StopIteration):
        return 0


def _number(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0  # "max", or no such group


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
