"""Cuts a GGUF to fewer layers: a smaller model with the same tokenizer, to try brownout with and to test it.

    python deploy/cut_model.py MODEL.gguf SMALLER.gguf --layers 15

Decides: which layers stay (the first ones and the last ones, which need each other least of all that could go), and
that the file appears whole or not at all. Everything else is copied as it is, tokenizer, template and window included.
What comes out is real and faster and has never been trained as it is: its answers are worth little. For people,
take the smaller model of a family from its makers.

Source: the GGUF specification (ggml, docs/gguf.md), version 3, little-endian. Does NOT know: who loads the file.
"""

from __future__ import annotations

import argparse
import os
import re
import struct
import sys
from pathlib import Path
from typing import NamedTuple

_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_UINT32, _STRING, _ARRAY = 4, 8, 9
_LAYER = re.compile(rb"blk\.(\d+)\.")


class CutError(Exception):
    """The model cannot be cut; the message says why."""


class Tensor(NamedTuple):
    name: bytes
    shape_and_type: bytes
    begin: int  # relative to the tensor data
    end: int


class GgufHead(NamedTuple):
    num_values: int
    values: bytes
    block_count_at: int  # in `values`
    layers: int
    tensors: list[Tensor]
    data_at: int
    alignment: int


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def number(self, code: str) -> int:
        (value,) = struct.unpack_from(f"<{code}", self.data, self.at)
        self.at += struct.calcsize(f"<{code}")
        return int(value)

    def string(self) -> bytes:
        length = self.number("Q")
        self.at += length
        return self.data[self.at - length : self.at]

    def skip(self, kind: int) -> None:
        if kind == _STRING:
            self.string()
        elif kind == _ARRAY:
            inner, count = self.number("I"), self.number("Q")
            if inner in _SIZES:
                self.at += _SIZES[inner] * count
            else:
                for _ in range(count):
                    self.skip(inner)
        else:
            self.at += _SIZES[kind]


def read_head(data: bytes) -> GgufHead:
    if data[:4] != b"GGUF" or struct.unpack_from("<I", data, 4) != (3,):
        raise CutError("it is no GGUF file of version 3")
    reader = _Reader(data)
    reader.at = 8
    num_tensors, num_values = reader.number("Q"), reader.number("Q")
    values_at, block_count_at, layers, alignment = reader.at, -1, 0, 32
    for _ in range(num_values):
        name, kind = reader.string(), reader.number("I")
        value_at = reader.at
        reader.skip(kind)
        if kind == _UINT32 and name.endswith(b".block_count"):
            block_count_at = value_at - values_at
            (layers,) = struct.unpack_from("<I", data, value_at)
        if kind == _UINT32 and name == b"general.alignment":
            (alignment,) = struct.unpack_from("<I", data, value_at)
    if block_count_at < 0:
        raise CutError("it does not say how many layers it has")
    values = data[values_at : reader.at]
    infos = []
    for _ in range(num_tensors):
        name, begin = reader.string(), reader.at
        dimensions = reader.number("I")
        reader.at += 8 * dimensions + 4
        infos.append((name, data[begin : reader.at], reader.number("Q")))
    data_at = -(-reader.at // alignment) * alignment
    starts = sorted([offset for _, _, offset in infos] + [len(data) - data_at])
    tensors = [Tensor(name, shape, at, starts[starts.index(at) + 1]) for name, shape, at in infos]
    return GgufHead(num_values, values, block_count_at, layers, tensors, data_at, alignment)


def kept_layers(of: int, layers: int) -> list[int]:
    """The first half and the last half of what stays."""
    first = (layers + 1) // 2
    return [*range(first), *range(of - (layers - first), of)]


def cut(source: Path, target: Path, layers: int) -> Path:
    """Writes `target` with so many of the layers of `source`. Raises CutError, OSError."""
    data = source.read_bytes()
    head = read_head(data)
    if not 1 <= layers < head.layers:
        raise CutError(f"it has {head.layers} layers: --layers takes 1 to {head.layers - 1}")
    number = {old: new for new, old in enumerate(kept_layers(head.layers, layers))}
    infos, payload = b"", bytearray()
    count = 0
    for tensor in head.tensors:
        layer = _LAYER.match(tensor.name)
        name = tensor.name
        if layer is not None:
            if int(layer[1]) not in number:
                continue
            name = b"blk.%d.%s" % (number[int(layer[1])], name[layer.end() :])
        infos += struct.pack("<Q", len(name)) + name + tensor.shape_and_type + struct.pack("<Q", len(payload))
        payload += data[head.data_at + tensor.begin : head.data_at + tensor.end]
        payload += bytes(-len(payload) % head.alignment)
        count += 1
    at = head.block_count_at
    values = head.values[:at] + struct.pack("<I", layers) + head.values[at + 4 :]
    written = b"GGUF" + struct.pack("<IQQ", 3, count, head.num_values) + values + infos
    scratch = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        scratch.write_bytes(written + bytes(-len(written) % head.alignment) + payload)
        os.replace(scratch, target)
    finally:
        scratch.unlink(missing_ok=True)
    return target


def main() -> int:
    parser = argparse.ArgumentParser(description="Cut a GGUF to fewer layers.")
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--layers", type=int, required=True, help="how many stay")
    options = parser.parse_args()
    try:
        cut(options.source, options.target, options.layers)
    except (CutError, OSError, struct.error, KeyError) as error:
        print(f"{options.source} cannot be cut: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
