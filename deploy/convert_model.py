"""Turns a shipped chat model's GGUF into the folder that vLLM reads: safetensors, configuration and tokenizer.

Decides: the folder's name (`MODEL-vllm-fp32`, or `-bf16`, beside the GGUF) and that it appears whole or not at all.
Tests take float32, so that what vLLM computes cold, from resident and from restored KV can be compared bit by bit.

A Llama or Qwen2 GGUF with a byte-level tokenizer is understood and nothing else: larger models come from their makers
in vLLM's own format. llama.cpp stores query and key rows of a Llama's head interleaved; here they are put back.

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
SUFFIXES = {"float32": "-vllm-fp32", "bfloat16": "-vllm-bf16"}
CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}
# How a tokenizer of this kind cuts a text before its merges, as its makers publish it.
QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

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


def target_of(source: Path, dtype: str = "float32") -> Path:
    return source.with_name(f"{source.stem}{SUFFIXES[dtype]}")


def convert(source: Path, dtype: str = "float32") -> Path:
    """The folder, after making it if it is missing or older than its source."""
    target = target_of(source, dtype)
    done = target / "config.json"
    if done.is_file() and done.stat().st_mtime_ns >= source.stat().st_mtime_ns:
        return target
    from gguf import GGUFReader

    reader = GGUFReader(str(source))
    head = {name: field.contents() for name, field in reader.fields.items()}
    if head.get("general.architecture") not in CLASSES or head.get("tokenizer.ggml.model") != "gpt2":
        raise ConvertError(
            f"{source.name} is not a Llama or Qwen2 with a byte-level tokenizer: take the model in vLLM's format"
        )
    with tempfile.TemporaryDirectory(dir=source.parent, prefix=".convert-") as scratch:
        folder = Path(scratch) / target.name
        folder.mkdir()
        tied = write_weights(folder, reader, head, dtype)
        write_tokenizer(folder, head)
        (folder / "config.json").write_text(json.dumps(config_of(head, dtype, tied=tied), indent=1))
        if target.exists():
            shutil.rmtree(target)
        os.replace(folder, target)
    return target


def config_of(head: dict[str, Any], dtype: str = "float32", *, tied: bool = True) -> dict[str, Any]:
    kind = head["general.architecture"]
    heads = head[f"{kind}.attention.head_count"]
    width = head[f"{kind}.embedding_length"]
    end = head["tokenizer.ggml.eos_token_id"]
    return {
        "architectures": [CLASSES[kind]],
        "model_type": kind,
        "vocab_size": len(head["tokenizer.ggml.tokens"]),
        "hidden_size": width,
        "head_dim": width // heads,
        "intermediate_size": head[f"{kind}.feed_forward_length"],
        "num_hidden_layers": head[f"{kind}.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": head[f"{kind}.attention.head_count_kv"],
        "max_position_embeddings": head[f"{kind}.context_length"],
        "rms_norm_eps": head[f"{kind}.attention.layer_norm_rms_epsilon"],
        "rope_parameters": {"rope_type": "default", "rope_theta": head[f"{kind}.rope.freq_base"]},
        "rope_theta": head[f"{kind}.rope.freq_base"],
        "hidden_act": "silu",
        "tie_word_embeddings": tied,
        "bos_token_id": head.get("tokenizer.ggml.bos_token_id", end),
        "eos_token_id": end,
        "pad_token_id": head.get("tokenizer.ggml.padding_token_id"),
        "dtype": dtype,
    }


def write_weights(folder: Path, reader: Any, head: dict[str, Any], dtype: str = "float32") -> bool:
    """Returns whether the output's weights are the embedding's."""
    import torch
    from gguf.quants import dequantize
    from safetensors.torch import save_file

    kind = head["general.architecture"]
    # Only Llama's rotary embedding has its rows in another order in a GGUF.
    interleaved = {
        "attn_q": head[f"{kind}.attention.head_count"],
        "attn_k": head[f"{kind}.attention.head_count_kv"],
    }
    rows_of = interleaved if kind == "llama" else {}
    tensors = {}
    for tensor in reader.tensors:
        parts = tensor.name.split(".")
        weight = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy()).float()
        if parts[0] == "blk":
            if parts[2] in rows_of:
                weight = deinterleave(weight, rows_of[parts[2]])
            name = f"model.layers.{parts[1]}.{LAYER_NAMES[parts[2]]}.{parts[-1]}"
        else:
            name = f"{NAMES[parts[0]]}.weight"
        tensors[name] = weight.to(getattr(torch, dtype)).contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return "lm_head.weight" not in tensors


def deinterleave(weight: Any, heads: int) -> Any:
    """Rows of each head from (pair, half) back to (half, pair), as Hugging Face's rotary embedding wants them."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def write_tokenizer(folder: Path, head: dict[str, Any]) -> None:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    tokens = head["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in head["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    if head.get("tokenizer.ggml.pre") == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
        cut: Any = pre_tokenizers.Split(Regex(QWEN2_WORDS), behavior="isolated")
        bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    else:
        cut = pre_tokenizers.Digits(individual_digits=True)
        bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([cut, bytes_])
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, head["tokenizer.ggml.token_type"], strict=True) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    tokenizer.save(str(folder / "tokenizer.json"))
    end = head["tokenizer.ggml.eos_token_id"]
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[head.get("tokenizer.ggml.bos_token_id", end)],
        "eos_token": tokens[end],
        "pad_token": tokens[head.get("tokenizer.ggml.padding_token_id", 0)],
        "unk_token": tokens[head.get("tokenizer.ggml.unknown_token_id", 0)],
        "chat_template": head.get("tokenizer.chat_template"),
        "model_max_length": head[f"{head['general.architecture']}.context_length"],
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))


def main() -> int:
    parser = argparse.ArgumentParser(description="Convert a shipped chat model for vLLM.")
    parser.add_argument("--model", type=Path, default=GGUF, help="the GGUF to convert")
    parser.add_argument("--dtype", choices=sorted(SUFFIXES), default="float32", help="of the weights")
    arguments = parser.parse_args()
    try:
        folder = convert(arguments.model, arguments.dtype)
    except (ConvertError, OSError, KeyError) as error:
        print(f"[convert] {error}", flush=True)
        return 1
    print(f"[convert] {folder}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
