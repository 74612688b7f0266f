"""Reads the head of a projector: the GGUF file that makes tokens of images for the model that it belongs to."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

import msgspec

from inference.llama.gguf import GgufModel, read_model
from sessions.model.errors import BadInput

ARCHITECTURE: Final = "clip"  # llama.cpp names every projector so, whatever is in it
VISION: Final = "clip.has_vision_encoder"


def read_projector(path: Path) -> GgufModel:
    """Reads a file's head. Blocking. Raises BadInput that names the path and what is wrong with it."""
    try:
        projector = read_model(path)
    except BadInput as exc:
        raise refused_projector(path, "is no whole GGUF file that can be read") from exc
    if projector.architecture != ARCHITECTURE:
        raise refused_projector(path, f"is a model of the architecture {projector.architecture!r}, and no projector")
    if not projector.metadata.get(VISION):
        raise refused_projector(path, "sees no images")
    return projector


def refused_projector(path: Path, why: str) -> BadInput:
    """Returns the error for a file that is no projector for images."""
    what = f"The projector {path} {why}. --projector takes the file with `mmproj` in its name that is beside the model."
    return BadInput("bad_model_file", what, param="projector")


def with_projector(model: GgufModel, projector: GgufModel) -> GgufModel:
    """Returns a model's description with the size and the fingerprint of both files."""
    both = hashlib.blake2b(f"{model.fingerprint}\0{projector.fingerprint}".encode(), digest_size=16)
    size_bytes = model.size_bytes + projector.size_bytes
    return msgspec.structs.replace(model, size_bytes=size_bytes, fingerprint=both.hexdigest())
