"""Reads a model's folder before vLLM is started, so that a wrong one is refused with words.

It decides whether a folder may be handed to vLLM and what names its weights: two trainings of a model differ
everywhere, so names, sizes and a sample of each weights file distinguish them. A LoRA adapter, in PEFT's format, is a
folder of its own. It does not load anything.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from pathlib import Path
from typing import Any, Final

import msgspec

from sessions.model.errors import BadInput

_SAMPLE_BYTES: Final = 1 << 20
_SAMPLES: Final = 16
RANK_MAX: Final = 512  # of an adapter, vLLM's own bound
PROCESSOR_FILES: Final = ("preprocessor_config.json", "processor_config.json")  # how images become tensors
_PROCESSOR_PACKAGES: Final = ("transformers", "pillow")  # which make them


class Adapter(msgspec.Struct, frozen=True):
    """A LoRA adapter that is applied to every request."""

    path: Path
    rank: int
    fingerprint: str


class VllmModel(msgspec.Struct, frozen=True):
    path: Path
    config: dict[str, Any]
    tokenizer_config: dict[str, Any]
    chat_template: str | None
    fingerprint: str
    context_window: int  # 0 when the folder does not say
    adapter: Adapter | None = None
    processor: str = ""  # fingerprint of the preprocessing of images; "" for a model that sees none

    @property
    def name(self) -> str:
        """The name that clients use for the model where none is configured."""
        return self.path.name if self.adapter is None else f"{self.path.name}+{self.adapter.path.name}"

    def token_text(self, name: str) -> str:
        """Returns the text of `bos_token` or `eos_token`; "" where there is none."""
        value = self.tokenizer_config.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        return value if isinstance(value, str) else ""


def read_vllm_model(path: Path, adapter: Path | None = None, *, weights_needed: bool = True) -> VllmModel:
    """Reads a model's folder. Blocking. Raises BadInput that names the path and what to do."""
    files = ("config.json", "tokenizer.json")
    if not path.is_dir():
        held = "config.json and safetensors" if weights_needed else " and ".join(files)
        raise _refused(path, f"is no folder. Name the folder that holds the model's {held}")
    weights = sorted([*path.glob("*.safetensors"), *path.glob("*.bin")])
    for name in files:
        if not (path / name).is_file():
            local = "A GGUF of the small model becomes such a folder by `make setup-vllm`"
            raise _refused(path, f"has no {name}. {local if weights_needed else 'Copy it from the server'}")
    if weights_needed and not weights:
        raise _refused(path, "has no weights (*.safetensors)")
    try:
        config = json.loads((path / "config.json").read_bytes())
        settings_file = path / "tokenizer_config.json"
        settings = json.loads(settings_file.read_bytes()) if settings_file.is_file() else {}
        template_file = path / "chat_template.jinja"
        template = template_file.read_text() if template_file.is_file() else settings.get("chat_template")
        fingerprint = _fingerprint(path / "config.json", *weights)
    except (OSError, ValueError) as exc:
        raise _refused(path, f"cannot be read ({exc})") from exc
    if not isinstance(config, dict) or not isinstance(settings, dict):
        raise _refused(path, "has a configuration that is no JSON object")
    return VllmModel(
        path,
        config,
        settings,
        template if isinstance(template, str) else None,
        fingerprint,
        _context_window(path, config),
        None if adapter is None else _read_adapter(adapter),
        _processor(path),
    )


def _processor(path: Path) -> str:
    files = [path / name for name in PROCESSOR_FILES if (path / name).is_file()]
    if not files:
        return ""
    return " ".join((_fingerprint(*files), *(_version(name) for name in _PROCESSOR_PACKAGES)))


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _context_window(path: Path, config: dict[str, Any]) -> int:
    """Returns the model's context window in tokens; 0 when the folder does not say."""
    inner = config.get("text_config", config)
    window = inner.get("max_position_embeddings", 0) if isinstance(inner, dict) else None
    if not isinstance(window, int) or window < 0:
        raise _refused(
            path,
            "does not say in its config.json how long a context may be: max_position_embeddings must be a whole number",
        )
    return window


def _read_adapter(path: Path) -> Adapter:
    """Reads a LoRA adapter's folder. Blocking. Raises BadInput that names the path and what to do."""
    config, weights = path / "adapter_config.json", path / "adapter_model.safetensors"
    for file in (config, weights):
        if not file.is_file():
            raise _refused_adapter(path, f"has no {file.name}. Name the folder that PEFT has saved it to")
    try:
        rank = json.loads(config.read_bytes())["r"]
        fingerprint = _fingerprint(config, weights)
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise _refused_adapter(path, f"cannot be read ({exc!r})") from exc
    if not isinstance(rank, int) or not 1 <= rank <= RANK_MAX:
        raise _refused_adapter(path, f"has rank {rank!r}; vLLM takes 1 to {RANK_MAX}")
    return Adapter(path, rank, fingerprint)


def _refused(path: Path, why: str) -> BadInput:
    return BadInput("bad_model_file", f"The model {path} {why}.", param="model")


def _refused_adapter(path: Path, why: str) -> BadInput:
    return BadInput("bad_model_file", f"The adapter {path} {why}.", param="vllm_adapter")


def _fingerprint(*files: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name}\0{size}\0".encode())
        with file.open("rb") as data:
            if size <= _SAMPLES * _SAMPLE_BYTES:
                digest.update(data.read())
                continue
            for sample in range(_SAMPLES):
                data.seek(sample * (size - _SAMPLE_BYTES) // (_SAMPLES - 1))
                digest.update(data.read(_SAMPLE_BYTES))
    return digest.hexdigest()
