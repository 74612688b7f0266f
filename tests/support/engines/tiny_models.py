"""Tiny llamas with random weights, one for each kind of tokenizer: as GGUF files, and as folders that vLLM reads.

At temperature 0 they write plain characters without an end: special tokens, bytes that are parts of a character and
control characters have the logit 0. Random weights would write such bytes in any order, which is no text.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

from deploy.convert_model import LAYER_NAMES, NAMES, QWEN2_WORDS
from inference.tokens import byte_alphabet
from tests.support.engines.gguf_files import gguf

WIDTH, LAYERS, HEADS, INNER, WINDOW = 32, 2, 4, 64, 8192
FOLDER_HEAD = 32  # the smallest head that vLLM has on a CPU
ENDS: Final = ("<s>", "</s>")
_WORDS: Final = ("the", "river", "and", "where", "does", "it", "go", "be", "brief", "system", "user", "assistant")
_FLOATS, _NORMAL, _UNKNOWN, _CONTROL, _BYTE = 0, 1, 2, 3, 6

BYTE_PAIRS: Final = (
    "llama-bpe",
    "qwen2",
    "gpt-2",
    "smollm",
    "deepseek-llm",
    "deepseek-v3",
    "tekken",
    "command-r",
    "gpt-4o",
)
SENTENCE_PIECE: Final = "SentencePiece"
KINDS: Final = (*BYTE_PAIRS, SENTENCE_PIECE)
TEMPLATES: Final = {  # by the kind of tokenizer that their models have; the others get ChatML
    "llama-bpe": "llama3.1",
    "qwen2": "qwen3",
    "deepseek-llm": "r1-distill",
    "deepseek-v3": "deepseek-v3.1",
    "tekken": "mistral",
    "command-r": "command-r",
    "gpt-4o": "gpt-oss",
    SENTENCE_PIECE: "gemma3",
}
# Their templates write an answer otherwise than the model: without thoughts, behind a header, without blanks around it.
REWRITTEN: Final = ("deepseek-llm", "gpt-4o", "tekken")
HEAD: Final = 8  # tokens at most of what a template writes before an answer, or in the place of one
_SUFFIX: Final = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_GPT_4O_WORD: Final = r"[^\r\n\p{L}\p{N}]?"
CUTS: Final = {  # how folders' tokenizers cut a text before its merges, as their makers publish it
    "llama-bpe": QWEN2_WORDS.replace(r"|\p{N}|", r"|\p{N}{1,3}|"),
    "qwen2": QWEN2_WORDS,
    "gpt-4o": rf"{_GPT_4O_WORD}{_UPPER}*{_LOWER}+{_SUFFIX}?|{_GPT_4O_WORD}{_UPPER}+{_LOWER}*{_SUFFIX}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
FOLDER_KINDS: Final = (*CUTS, SENTENCE_PIECE)


class _Vocabulary(NamedTuple):
    """The tokens of a tiny model, its merges, GGUF's types of the tokens, and the ids of those that it never writes."""

    tokens: list[str]
    merges: list[str]
    types: list[int]
    silent: frozenset[int]


def _vocabulary(kind: str, specials: tuple[str, ...]) -> _Vocabulary:
    """Returns a vocabulary whose first tokens are `specials`."""
    prefixes = [word[:end] for word in (f"\u2581{word}" for word in _WORDS) for end in range(2, len(word) + 1)]
    if kind == SENTENCE_PIECE:
        spelled = [f"<0x{byte:02X}>" for byte in range(256)]
        pieces = [chr(code) for code in range(33, 127)] + ["\u2581"] + sorted(set(prefixes))
        types = [_CONTROL] * len(specials) + [_UNKNOWN] + [_BYTE] * 256 + [_NORMAL] * len(pieces)
        silent = frozenset(range(len(specials) + 1 + 256))
        return _Vocabulary([*specials, "<unk>", *spelled, *pieces], _merges(prefixes), types, silent)
    prefixes = [prefix.replace("\u2581", "\u0120") for prefix in prefixes]
    alphabet = sorted(byte_alphabet().items(), key=lambda pair: pair[1])
    tokens = [*specials, *(letter for letter, _ in alphabet), *dict.fromkeys(prefixes)]
    types = [_CONTROL] * len(specials) + [_NORMAL] * (len(tokens) - len(specials))
    odd = (len(specials) + byte for byte in range(256) if not 32 <= byte < 127)
    return _Vocabulary(tokens, _merges(prefixes), types, frozenset((*range(len(specials)), *odd)))


def _merges(prefixes: list[str]) -> list[str]:
    return [f"{prefix[:-1]} {prefix[-1]}" for prefix in dict.fromkeys(prefixes)]


Tensors = dict[str, tuple[tuple[int, ...], bytes]]


def _weights(kind: str, vocabulary: _Vocabulary, attention: int) -> Tensors:
    """Returns random weights by GGUF's names, with GGUF's order of the dimensions. `attention` is the width of all
    heads."""
    random = Random(kind)

    def floats(*shape: int, around: float = 0.0) -> list[float]:
        count = shape[0] if len(shape) == 1 else shape[0] * shape[1]
        return [random.gauss(around, 0.0 if around else 0.2) for _ in range(count)]

    size = len(vocabulary.tokens)
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (WIDTH, size), "output": (WIDTH, size)}
    for layer in range(LAYERS):
        matrices = dict.fromkeys(("attn_q", "attn_k", "attn_v"), (WIDTH, attention))
        matrices |= {"attn_output": (attention, WIDTH), "ffn_gate": (WIDTH, INNER), "ffn_up": (WIDTH, INNER)}
        matrices |= {"ffn_down": (INNER, WIDTH)}
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in matrices.items()}
        shapes |= {f"blk.{layer}.{name}": (WIDTH,) for name in ("attn_norm", "ffn_norm")}
    values = {name: floats(*shape, around=float(len(shape) == 1)) for name, shape in shapes.items()}
    shapes["output_norm"], values["output_norm"] = (WIDTH,), floats(WIDTH, around=1.0)
    for token in vocabulary.silent:
        values["output"][token * WIDTH : (token + 1) * WIDTH] = [0.0] * WIDTH
    return {name: (shape, struct.pack(f"<{len(values[name])}f", *values[name])) for name, shape in shapes.items()}


def _with_ends(specials: tuple[str, ...]) -> tuple[str, ...]:
    return (*ENDS, *(special for special in specials if special not in ENDS))


def write_tiny_model(
    file: Path, kind: str, template: str, specials: tuple[str, ...], *, adds_bos: bool = False
) -> None:
    """Writes a GGUF whose tokenizer is of this kind. `specials` are the spellings of its special tokens besides those
    that begin and end a text. `adds_bos`: every text begins with a token for that."""
    specials = _with_ends(specials)
    vocabulary = _vocabulary(kind, specials)
    if kind == SENTENCE_PIECE:
        tokenizer: dict[str, Any] = {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.scores": [float(-number) for number in range(len(vocabulary.tokens))],
            "tokenizer.ggml.unknown_token_id": len(specials),
        }
    else:
        tokenizer = {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": kind,
            "tokenizer.ggml.merges": vocabulary.merges,
        }
    metadata = {
        "general.architecture": "llama",
        "general.name": "tiny",
        "llama.context_length": WINDOW,
        "llama.block_count": LAYERS,
        "llama.embedding_length": WIDTH,
        "llama.feed_forward_length": INNER,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": WIDTH // HEADS,
        "llama.vocab_size": len(vocabulary.tokens),
        "tokenizer.chat_template": template,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.add_bos_token": adds_bos,
        "tokenizer.ggml.tokens": vocabulary.tokens,
        "tokenizer.ggml.token_type": vocabulary.types,
        **tokenizer,
    }
    weights = _weights(kind, vocabulary, WIDTH)
    file.write_bytes(gguf(metadata, {f"{name}.weight": (_FLOATS, *tensor) for name, tensor in weights.items()}))


def write_tiny_folder(folder: Path, kind: str, template: str, specials: tuple[str, ...]) -> frozenset[int]:
    """Writes a folder in Hugging Face's format, with one of `FOLDER_KINDS`. Returns the ids of the tokens that the
    model never writes."""
    specials = _with_ends(specials)
    vocabulary = _vocabulary(kind, specials)
    folder.mkdir()
    (folder / "tokenizer.json").write_text(_tokenizer_file(kind, vocabulary, specials))
    (folder / "chat_template.jinja").write_text(template)
    named = {"bos_token": ENDS[0], "eos_token": ENDS[1], "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(vocabulary.tokens),
        "hidden_size": WIDTH,
        "head_dim": FOLDER_HEAD,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "max_position_embeddings": WINDOW,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    weights = _weights(kind, vocabulary, HEADS * FOLDER_HEAD)
    (folder / "model.safetensors").write_bytes(_safetensors({_name(name): each for name, each in weights.items()}))
    return vocabulary.silent


def _name(name: str) -> str:
    """Returns Hugging Face's name of a tensor."""
    _, layer, inner = name.split(".") if name.startswith("blk.") else ("", "", "")
    return f"model.layers.{layer}.{LAYER_NAMES[inner]}.weight" if inner else f"{NAMES[name]}.weight"


def _safetensors(tensors: Tensors) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (shape, data) in tensors.items():
        header[name] = {"dtype": "F32", "shape": shape[::-1], "data_offsets": [at, at + len(data)]}
        at += len(data)
    head = json.dumps(header).encode()
    return struct.pack("<Q", len(head)) + head + b"".join(data for _, data in tensors.values())


def _tokenizer_file(kind: str, vocabulary: _Vocabulary, specials: tuple[str, ...]) -> str:
    """Returns the text of a tokenizer.json."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    ids = {token: number for number, token in enumerate(vocabulary.tokens)}
    merges = [(before, after) for before, after in (merge.split(" ") for merge in vocabulary.merges)]
    if kind == SENTENCE_PIECE:
        made = Tokenizer(models.BPE(ids, merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
        made.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
        spaces = decoders.Replace("\u2581", " ")
        made.decoder = decoders.Sequence([spaces, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    else:
        made = Tokenizer(models.BPE(ids, merges, ignore_merges=kind == "llama-bpe"))
        if kind == "qwen2":
            made.normalizer = normalizers.NFC()
        cut = pre_tokenizers.Split(Regex(CUTS[kind]), behavior="isolated")
        letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        made.pre_tokenizer = pre_tokenizers.Sequence([cut, letters])
        made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(special, special=True, normalized=False) for special in specials])
    return str(made.to_str())
