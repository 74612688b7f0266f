"""What names the meaning of KV: engines of one name compute the same KV from the same tokens.

Build, dtype and layout are named elsewhere (`KvIdentity`). Here it is the model, its adapter, its preprocessing of
images, and what vLLM was given that may change what it computes (positions, quantisation, scales, kernels): all but
what is known not to. To miss a setting there costs tokens once; to list one wrongly would cost wrong answers. Pure.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Final

from inference.vllm.model_folder import VllmModel
from sessions.model.types import Json

# vLLM's settings that change how much, how fast or where it computes, and never what.
IMMATERIAL: Final = frozenset(
    {
        # In the identity already: as dtype, and as the layout's ranks.
        "dtype",
        "pipeline_parallel_size",
        "tensor_parallel_size",
        # Room.
        "cpu_offload_gb",
        "gpu_memory_utilization",
        "kv_cache_memory_bytes",
        "num_gpu_blocks_override",
        # Scheduling.
        "async_scheduling",
        "enable_chunked_prefill",
        "long_prefill_token_threshold",
        "max_num_batched_tokens",
        "max_num_scheduled_tokens",
        "stream_interval",
        "watermark",
        # Processes and loading.
        "distributed_executor_backend",
        "master_addr",
        "master_port",
        "max_parallel_loading_workers",
        "shutdown_timeout",
        "use_tqdm_on_load",
        # Sampling and what is written down.
        "collect_detailed_traces",
        "disable_log_stats",
        "enable_log_requests",
        "log_config_file",
        "log_level",
        "logging_config",
        "max_logprobs",
        "otlp_traces_endpoint",
        "seed",
        "structured_outputs_config",
    }
)
_BY_WINDOW: Final = "long_factor"  # a rope whose factors vLLM picks by the context window, for all positions


def compute_kv_fingerprint(model: VllmModel, engine_args: Mapping[str, Json], window: int) -> str:
    """Returns the model's fingerprint, with a digest of all other settings that change KV, if any."""
    material: dict[str, Json] = {name: value for name, value in engine_args.items() if name not in IMMATERIAL}
    match material.get("speculative_config"):
        case {"method": "ngram"}:  # it has no weights, and what it tries is verified by the model
            del material["speculative_config"]
    if _BY_WINDOW in json.dumps([model.config, material], default=str):
        material["context window"] = window
    if model.adapter is not None:
        material["adapter"] = model.adapter.fingerprint
    if model.processor:
        material["processor"] = model.processor
    if not material:
        return model.fingerprint
    text = json.dumps(material, sort_keys=True, default=str)
    return f"{model.fingerprint}-{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"
