"""Options of the llama.cpp engine."""

from __future__ import annotations

from pathlib import Path

import msgspec

from sessions.model.errors import BadInput


class LlamaOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`slots` sessions of `context_window` tokens each are resident at once; others wait in the KV tiers."""

    model_path: Path
    model_name: str | None = None  # the public name; None: the file's name without its ending
    slots: int = 4
    context_window: int = 8192  # cut to what the model was trained for
    threads: int = 1  # llama.cpp's spinning threads starve where anything else wants the cores
    batch_tokens: int = 0  # prefilled in one step, what aborts and other streams wait for; 0: 64, with a GPU 512
    gpu_layers: int = 0
    chat_template: str | None = None  # None: the model's own; "chatml"; or the text of a Jinja template
    waiting_max: int = 64
    spill_tokens_min: int = 32  # fewer unsaved tokens are recomputed rather than saved or restored
    staging_folder: Path | None = None  # parent of the folder for plain-text KV; None: in memory, or no spill
    host_bytes_max: int = 1 << 30  # of spilled KV in memory; must hold at least one session
    disk_folder: Path | None = None  # None: no disk tier
    disk_bytes_max: int = 8 << 30
    redis_url: str = ""  # "": no Redis tier
    redis_bytes_max: int = 256 << 20  # in Redis, of all replicas together
    save_idle_s: float = 5.0  # a session that has rested for so long is saved, if there is a tier that outlives us

    def __post_init__(self) -> None:
        for name in ("slots", "threads", "spill_tokens_min"):
            if getattr(self, name) < 1:
                raise _bad(name, "at least 1")
        for name in (
            "waiting_max",
            "batch_tokens",
            "gpu_layers",
            "host_bytes_max",
            "disk_bytes_max",
            "redis_bytes_max",
        ):
            if getattr(self, name) < 0:
                raise _bad(name, "at least 0")
        if self.context_window < 256:
            raise _bad("context_window", "at least 256")

    def without_spill(self) -> LlamaOptions:
        """KV is what the slots hold, in no tier below them."""
        return msgspec.structs.replace(self, host_bytes_max=0, disk_folder=None, redis_url="")

    def smaller(self, model_path: Path, slots: int, threads: int, context_window: int) -> LlamaOptions:
        """Of a smaller model beside this one."""
        return msgspec.structs.replace(
            self.without_spill(),
            model_path=model_path,
            model_name=None,
            slots=slots,
            threads=threads,
            context_window=context_window,
        )


def _bad(name: str, allowed: str) -> BadInput:
    return BadInput("invalid_setting", f"The llama.cpp engine's {name} must be {allowed}.", param=name)
