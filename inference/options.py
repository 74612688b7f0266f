"""Options that engines have in common: what is served, how much of it at once, and where KV goes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from sessions.model.errors import BadInput


class KvOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options for the KV of sessions at rest: where it is stored, and how much."""

    staging_folder: Path | None = None  # parent of the folder for plain-text KV; None: in memory, or no spill
    host_bytes_max: int = 1 << 30  # of spilled KV in memory; must hold at least one session
    disk_folder: Path | None = None  # None: no disk tier
    disk_bytes_max: int = 8 << 30
    redis_url: str = ""  # "": no Redis tier
    redis_bytes_max: int = 256 << 20  # in Redis, of all replicas together


class ModelOptions(KvOptions, frozen=True, kw_only=True):
    """Options of an engine that runs a model from this machine's disk."""

    model_path: Path
    model_name: str | None = None  # the public name; None: that of the file or folder, without its ending
    model_aliases: tuple[str, ...] = ()  # more public names of it
    chat_template: str | None = None  # None: the model's own; "chatml"; or the text of a Jinja template
    speculation: Literal["off", "ngram"] = "off"
    kv_dtype: Literal["auto", "8bit"] = "auto"  # of KV on the device and in the tiers; auto: the engine's own
    threads: int = 1  # an engine's spinning threads starve where anything else wants the cores
    waiting_max: int = 64
    step_target_ms: int = 0  # how long one step may last; 0: 250 on a CPU, 50 on a GPU


def check_least(options: msgspec.Struct, engine: str, least: int, *names: str) -> None:
    """Raises BadInput for the first of the fields `names` that is below `least`."""
    for name in names:
        if getattr(options, name) < least:
            raise bad_option(engine, name, f"at least {least}")


def bad_option(engine: str, name: str, allowed: str) -> BadInput:
    return BadInput("invalid_setting", f"The {engine} engine's {name} must be {allowed}.", param=name)
