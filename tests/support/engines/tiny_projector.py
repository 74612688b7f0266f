"""A tiny projector with random weights, as a GGUF file: it makes a few tokens of an image for the tiny models.

Its weights are so large that what a tiny model writes depends on the image.
"""

from __future__ import annotations

import base64
import hashlib
import io
import struct
from math import prod
from pathlib import Path
from random import Random
from typing import Any, Final

from PIL import Image

from sessions.model.types import InputImage
from tests.support.engines.gguf_files import gguf
from tests.support.engines.tiny_models import WIDTH

PATCH, INNER, HEADS, FEED_FORWARD, LAYERS = 14, 32, 2, 64, 2
ROW: Final = 4  # tokens: an image is a square of them
_FLOATS: Final = 0
_METADATA: Final[dict[str, Any]] = {
    "general.architecture": "clip",
    "clip.has_vision_encoder": True,
    "clip.projector_type": "mlp",
    "clip.use_gelu": False,
    "clip.vision.patch_size": PATCH,
    "clip.vision.embedding_length": INNER,
    "clip.vision.feed_forward_length": FEED_FORWARD,
    "clip.vision.attention.head_count": HEADS,
    "clip.vision.attention.layer_norm_epsilon": 1e-5,
    "clip.vision.block_count": LAYERS,
    "clip.vision.image_mean": [0.5, 0.5, 0.5],
    "clip.vision.image_std": [0.5, 0.5, 0.5],
}


def write_tiny_projector(file: Path, *, width: int = WIDTH, row: int = ROW, seed: str = "projector") -> None:
    """Writes a projector for a model of `width`. It makes `row` times `row` tokens of every image."""
    shapes: dict[str, tuple[int, ...]] = {
        "v.patch_embd.weight": (PATCH, PATCH, 3, INNER),
        "v.class_embd": (INNER,),
        "v.position_embd.weight": (INNER, row * row + 1),
        **_layer("mm.0", INNER, width),
        **_layer("mm.2", width, width),
    }
    for name in ("v.pre_ln", "v.post_ln", *(f"v.blk.{layer}.ln{n}" for layer in range(LAYERS) for n in (1, 2))):
        shapes |= {f"{name}.weight": (INNER,), f"{name}.bias": (INNER,)}
    for layer in range(LAYERS):
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            shapes |= _layer(f"v.blk.{layer}.{name}", INNER, INNER)
        shapes |= _layer(f"v.blk.{layer}.ffn_up", INNER, FEED_FORWARD)
        shapes |= _layer(f"v.blk.{layer}.ffn_down", FEED_FORWARD, INNER)
    random = Random(seed)
    tensors = {}
    for name, shape in shapes.items():
        around = 1.0 if "ln" in name and name.endswith("weight") else 0.0
        floats = [random.gauss(around, 0.3) for _ in range(prod(shape))]
        tensors[name] = (_FLOATS, shape, struct.pack(f"<{len(floats)}f", *floats))
    sizes = {"clip.vision.projection_dim": width, "clip.vision.image_size": row * PATCH}
    file.write_bytes(gguf({**_METADATA, **sizes}, tensors))


def _layer(name: str, width_in: int, width_out: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (width_in, width_out), f"{name}.bias": (width_out,)}


def noise(seed: int, *, width: int = 60, height: int = 40, flip: int | None = None) -> bytes:
    """Returns a PNG of random pixels. `flip`: the byte of the pixels in which the highest bit is turned over."""
    pixels = bytearray(Random(seed).randbytes(width * height * 3))
    if flip is not None:
        pixels[flip] ^= 0x80
    out = io.BytesIO()
    Image.frombytes("RGB", (width, height), bytes(pixels)).save(out, "PNG")
    return out.getvalue()


def input_image(data: bytes) -> InputImage:
    """Returns an image as the gateway hands it to a session."""
    with Image.open(io.BytesIO(data)) as image:
        width, height = image.size
    url = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    return InputImage(image_url=url, sha256=hashlib.sha256(data).hexdigest(), width=width, height=height)
