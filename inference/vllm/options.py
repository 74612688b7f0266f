"""Options of the vLLM engine. vLLM's own arguments go through `engine_args` untouched."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from inference.options import ModelOptions, bad_option, check_least
from sessions.model.errors import BadInput
from sessions.model.types import Json

# vLLM's own names for what our settings decide: given twice, they could contradict each other.
OURS: Final = {
    "model": "--model",
    "max_model_len": "--context",
    "max_num_seqs": "--slots",
    "enable_lora": "--vllm-adapter FOLDER, one adapter for the whole replica",
    "max_loras": "--vllm-adapter FOLDER, one adapter for the whole replica",
    "max_lora_rank": "--vllm-adapter FOLDER, whose rank it takes",
}
_ENGINE: Final = "vLLM"
# Tokens that followed the same ones, of the run's own prompt and answer, are tried at once.
NGRAM: Final[dict[str, Json]] = {
    "method": "ngram",
    "num_speculative_tokens": 6,
    "prompt_lookup_max": 6,
    "prompt_lookup_min": 4,
}
# What the server is built upon, with no choice.
FIXED: Final = ("enable_prefix_caching", "scheduling_policy", "kv_transfer_config")


class VllmOptions(ModelOptions, frozen=True, kw_only=True):
    """Options of vLLM: `slots` answers run at once; the device keeps as many sessions as it has blocks for, tiers the
    rest."""

    slots: int = 16
    context_window: int = 0  # tokens; 0: what the model was trained for
    block_tokens: int = 32  # the unit of reuse; smaller reuses finer, larger computes faster on GPUs
    adapter: Path | None = None  # a folder with a LoRA adapter in PEFT's format, for every request
    device_kv_bytes: int = 0  # 0: vLLM decides by the memory that is free; on a CPU 1 GiB
    device_blocks: int = 0  # 0: as many as the bytes hold
    standby: bool = False  # a second vLLM waits for the first one's death: as much memory again
    spill: bool = True  # False: no connector, KV lives on the device alone
    write_through: bool = True  # False: nothing is saved, only what came from elsewhere is restored
    answer_tokens_saved: int = 1024  # room that is taken for one answer's KV; what is beyond is saved a turn later
    host_bytes_max: int = 4 << 30  # of spilled KV in memory
    disk_bytes_max: int = 32 << 30
    engine_args: dict[str, Json] = msgspec.field(
        default_factory=dict
    )  # vLLM's own: tensor_parallel_size, quantization, speculative_config, ...

    @property
    def all_engine_args(self) -> dict[str, Json]:
        """vLLM's engine arguments, including those that our own settings stand for."""
        more: dict[str, Json] = {}
        if self.speculation == "ngram":
            more["speculative_config"] = dict(NGRAM)
        if self.kv_dtype == "8bit":
            more["kv_cache_dtype"] = "fp8"
        return more | self.engine_args

    def __post_init__(self) -> None:
        check_least(self, _ENGINE, 1, "slots", "threads", "block_tokens")
        check_least(self, _ENGINE, 0, "waiting_max", "device_kv_bytes", "device_blocks", "step_target_ms")
        check_least(self, _ENGINE, 0, "host_bytes_max", "disk_bytes_max")
        if self.context_window and self.context_window < 256:
            raise bad_option(_ENGINE, "context_window", "at least 256, or 0 for the model's own")
        if "block_size" in self.engine_args:
            raise bad_option(_ENGINE, "engine_args", "without block_size: that is block_tokens")
        if self.speculation != "off" and "speculative_config" in self.engine_args:
            raise BadInput(
                "invalid_setting", "speculative_config in vllm_args: leave --speculation out.", param="vllm_args"
            )
        if self.kv_dtype != "auto" and "kv_cache_dtype" in self.engine_args:
            raise BadInput("invalid_setting", "kv_cache_dtype in vllm_args: leave --kv-dtype out.", param="vllm_args")
        for name in self.engine_args:
            if name in OURS:
                raise BadInput("invalid_setting", f"{name} in vllm_args: set it by {OURS[name]}.", param="vllm_args")
            if name in FIXED:
                raise BadInput("invalid_setting", f"{name} in vllm_args: leave it out, it is fixed.", param="vllm_args")
