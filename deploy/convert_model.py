"""Turns the small chat model's GGUF into the folder that vLLM reads: safetensors, configuration and tokenizer.

Decides: the folder's name (`MODEL-vllm-fp32`, beside the GGUF) and that it appears whole or not at all. Weights are
dequantised to float32, so that what vLLM computes cold, from resident and from restored KV can be compared bit by bit.

A Llama GGUF with a GPT-2 style byte-level tokenizer is understood and nothing else: larger models come from their
makers in vLLM's own format. llama.cpp stores query and key rows of a head interleaved; here they are put back.

Does NOT know: who loads the folder. Needs `gguf`, `torch`, `safetensors` and `tokenizers`, so it runs in `.venv-vllm`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
GGUF = ROOT / ".cache" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
SUFFIX = "-vllm-fp32"

LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


class ConvertError(Exception):
    """The model cannot be converted; the message says why."""


def target_of(source: Path) -> Path:
    return source.with_name(f"{source.stem}{SUFFIX}")


def convert(source: Path) -> Path:
    """The folder, after making it if it is missing or older than its source."""
    target = target_of(source)
    done = target / "config.json"
    if done.is_file() and done.stat().st_mtime_ns >= source.stat().st_mtime_ns:
        return target
    from gguf import GGUFReader

    reader = GGUFReader(str(source))
    head = {name: field.contents() for name, field in reader.fields.items()}
    if head.get("general.architecture") != "llama" or head.get("tokenizer.ggml.model") != "gpt2":
        raise ConvertError(f"{source.name} is not a Llama with a byte-level tokenizer: take the model in vLLM's format")
    with tempfile.TemporaryDirectory(dir=source.parent, prefix=".convert-") as scratch:
        folder = Path(scratch) / target.name
        folder.mkdir()
        write_weights(folder, reader, head)
        write_tokenizer(folder, head)
        (folder / "config.json").write_text(json.dumps(config_of(head), indent=1))
        if target.exists():
            shutil.rmtree(target)
        os.replace(folder, target)
    return target


def config_of(head: dict[str, Any]) -> dict[str, Any]:
    heads = head["llama.attention.head_count"]
    width = head["llama.embedding_length"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(head["tokenizer.ggml.tokens"]),
        "hidden_size": width,
        "head_dim": width // heads,
        "intermediate_size": head["llama.feed_forward_length"],
        "num_hidden_layers": head["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": head["llama.attention.head_count_kv"],
        "max_position_embeddings": head["llama.context_length"],
        "rms_norm_eps": head["llama.attention.layer_norm_rms_epsilon"],
        "rope_parameters": {"rope_type": "default", "rope_theta": head["llama.rope.freq_base"]},
        "rope_theta": head["llama.rope.freq_base"],
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": head["tokenizer.ggml.bos_token_id"],
        "eos_token_id": head["tokenizer.ggml.eos_token_id"],
        "pad_token_id": head.get("tokenizer.ggml.padding_token_id"),
        "dtype": "float32",
    }


def write_weights(folder: Path, reader: Any, head: dict[str, Any]) -> None:
    import torch
    from gguf.quants import dequantize
    from safetensors.torch import save_file

    rows_of = {
        "attn_q": head["llama.attention.head_count"],
        "attn_k": head["llama.attention.head_count_kv"],
    }
    tensors = {}
    for tensor in reader.tensors:
        parts = tensor.name.split(".")
        weight = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy()).float()
        if parts[0] == "blk":
            kind = parts[2]
            if kind in rows_of:
                weight = deinterleave(weight, rows_of[kind])
            name = f"model.layers.{parts[1]}.{LAYER_NAMES[kind]}.weight"
        else:
            name = f"{NAMES[parts[0]]}.weight"
        tensors[name] = weight.contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def deinterleave(weight: Any, heads: int) -> Any:
    """Rows of each head from (pair, half) back to (half, pair), as Hugging Face's rotary embedding wants them."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def write_tokenizer(folder: Path, head: dict[str, Any]) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens = head["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in head["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, head["tokenizer.ggml.token_type"], strict=True) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[head["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[head["tokenizer.ggml.eos_token_id"]],
        "pad_token": tokens[head.get("tokenizer.ggml.padding_token_id", 0)],
        "unk_token": tokens[head.get("tokenizer.ggml.unknown_token_id", 0)],
        "chat_template": head.get("tokenizer.chat_template"),
        "model_max_length": head["llama.context_length"],
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))


def main() -> int:
    parser = argparse.ArgumentParser(description="Convert the small chat model for vLLM.")
    parser.add_argument("--model", type=Path, default=GGUF, help="the GGUF to convert")
    arguments = parser.parse_args()
    try:
        folder = convert(arguments.model)
    except (ConvertError, OSError, KeyError) as error:
        print(f"[convert] {error}", flush=True)
        return 1
    print(f"[convert] {folder}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
