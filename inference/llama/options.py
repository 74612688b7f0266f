"""Options of the llama.cpp engine."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from inference.options import ModelOptions, bad_option, check_least

_ENGINE: Final = "llama.cpp"


class LlamaOptions(ModelOptions, frozen=True, kw_only=True):
    """Options of llama.cpp: the device has `slots` slots of `context_window` tokens each; the KV of other sessions is
    in tiers."""

    slots: int = 4
    context_window: int = 0  # tokens; 0: what the model was trained for, or as much of it as memory allows
    cuts_window: bool = False  # whether a window above the model's own is cut to that instead of refused
    batch_tokens: int = 0  # prompt tokens that one step computes at most; 0: 512, with a GPU 2048
    projector: Path | None = None  # the file with which the model sees images; None: it sees none
    gpu_layers: int = 0
    gpu_free_bytes: int = 0  # GPU memory that layers may take; 0: not known
    checks_memory: bool = False  # before the model is loaded
    spill_tokens_min: int = 32  # fewer unsaved tokens are recomputed rather than saved or restored
    save_idle_s: float = 5.0  # a session that has rested for so long is saved, if there is a tier that outlives us

    def __post_init__(self) -> None:
        check_least(self, _ENGINE, 1, "slots", "threads", "spill_tokens_min")
        check_least(self, _ENGINE, 0, "waiting_max", "batch_tokens", "gpu_layers", "step_target_ms")
        check_least(self, _ENGINE, 0, "host_bytes_max", "disk_bytes_max", "redis_bytes_max")
        if self.context_window and self.context_window < 256:
            raise bad_option(_ENGINE, "context_window", "at least 256, or 0 for the model's own")

    def without_spill(self) -> LlamaOptions:
        """Returns the options without any KV tier, so that KV is only in the slots."""
        return msgspec.structs.replace(self, host_bytes_max=0, disk_folder=None, redis_url="")

    def smaller(self, model_path: Path, slots: int, threads: int, context_window: int) -> LlamaOptions:
        """Returns the options for a smaller model beside this one."""
        return msgspec.structs.replace(
            self.without_spill(),
            model_path=model_path,
            model_name=None,
            model_aliases=(),
            projector=None,
            slots=slots,
            threads=threads,
            context_window=context_window,
            cuts_window=True,
        )
