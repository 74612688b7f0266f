"""Makes a copy of a vLLM model's folder with another context window and, where wanted, fewer layers.

The small model was trained for 8,192 tokens: to measure at 8k of context and beyond, a copy says that it takes more.
What it writes there is worth nothing; what it costs is what it would. Weights are linked where all layers stay.
"""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any, Final

_WEIGHTS: Final = "model.safetensors"
_LAYER: Final = re.compile(r"model\.layers\.(\d+)\.")


def stretched_model(source: Path, target: Path, *, window: int, layers: int = 0) -> Path:
    """`layers` 0: all of them. Blocking."""
    target.mkdir(parents=True)
    config: dict[str, Any] = json.loads((source / "config.json").read_bytes())
    config["max_position_embeddings"] = window
    for file in source.iterdir():
        if file.name not in ("config.json", _WEIGHTS):
            (target / file.name).symlink_to(file.resolve())
    if 0 < layers < config["num_hidden_layers"]:
        config["num_hidden_layers"] = layers
        _cut_weights(source / _WEIGHTS, target / _WEIGHTS, layers)
    else:
        (target / _WEIGHTS).symlink_to((source / _WEIGHTS).resolve())
    (target / "config.json").write_text(json.dumps(config))
    return target


def _cut_weights(source: Path, target: Path, layers: int) -> None:
    """The first layers, in the format of safetensors: length of the header, header, tensors."""
    with source.open("rb") as file, target.open("wb") as out:
        (length,) = struct.unpack("<Q", file.read(8))
        head: dict[str, Any] = json.loads(file.read(length))
        kept: dict[str, Any] = {}
        at, places = 0, []
        for name, tensor in head.items():
            layer = _LAYER.match(name)
            if name != "__metadata__" and (layer is None or int(layer[1]) < layers):
                begin, end = tensor["data_offsets"]
                kept[name] = tensor | {"data_offsets": [at, at + end - begin]}
                places.append((begin, end))
                at += end - begin
        header = json.dumps({"__metadata__": head.get("__metadata__", {})} | kept).encode()
        header += b" " * (-len(header) % 8)
        out.write(struct.pack("<Q", len(header)) + header)
        for begin, end in places:
            file.seek(8 + length + begin)
            out.write(file.read(end - begin))
