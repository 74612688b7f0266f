"""What a model's folder says of itself, read before vLLM is started, so that a wrong one is refused with words.

It decides whether a folder may be handed to vLLM and what names its weights: two trainings of a model differ
everywhere, so names, sizes and a sample of each weights file tell them apart. It does not load anything.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Final

import msgspec

from sessions.errors import BadInput

_SAMPLE_BYTES: Final = 1 << 20
_SAMPLES: Final = 16


class VllmModel(msgspec.Struct, frozen=True):
    path: Path
    config: dict[str, Any]
    tokenizer_config: dict[str, Any]
    chat_template: str | None
    fingerprint: str

    @property
    def context_window(self) -> int:
        """0 when the folder does not say."""
        inner = self.config.get("text_config", self.config)
        return int(inner.get("max_position_embeddings", 0))

    def token_text(self, name: str) -> str:
        """The spelling of `bos_token` or `eos_token`; "" where there is none."""
        value = self.tokenizer_config.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        return value if isinstance(value, str) else ""


def read_vllm_model(path: Path) -> VllmModel:
    """Blocking. Raises BadInput that names the path and what to do."""
    if not path.is_dir():
        raise _refused(path, "is no folder. Name the folder that holds the model's config.json and safetensors")
    weights = sorted([*path.glob("*.safetensors"), *path.glob("*.bin")])
    for name in ("config.json", "tokenizer.json"):
        if not (path / name).is_file():
            raise _refused(path, f"has no {name}. A GGUF of the small model becomes such a folder by `make setup-vllm`")
    if not weights:
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
    return VllmModel(path, config, settings, template if isinstance(template, str) else None, fingerprint)


def _refused(path: Path, why: str) -> BadInput:
    return BadInput("bad_model_file", f"The model {path} {why}.", param="model")


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
