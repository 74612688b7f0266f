"""Reads the head of a GGUF file: is it one, is it whole, what model and tokenizer are in it.

It decides whether a path may be handed to llama.cpp, so that a wrong file is refused with words instead of a stack of
C++ log lines. Tensor data is not interpreted; a file counts as whole when it reaches the end of its last tensor.
Source: the GGUF specification (ggml, docs/gguf.md), versions 2 and 3, little-endian.
"""

from __future__ import annotations

import hashlib
import mmap
import struct
from pathlib import Path
from typing import Any, Final

import msgspec

from sessions.model.errors import BadInput

MAGIC: Final = b"GGUF"
_SCALARS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_ENTRIES_MAX: Final = 1 << 24  # more than any vocabulary; a damaged count must not exhaust the memory

# Bytes per block and weights per block of the tensor types that are common; others are not checked for length.
_BLOCKS: Final = {
    0: (4, 1), 1: (2, 1), 30: (2, 1), 2: (18, 32), 3: (20, 32), 6: (22, 32), 7: (24, 32), 8: (34, 32), 9: (36, 32),
    10: (84, 256), 11: (110, 256), 12: (144, 256), 13: (176, 256), 14: (210, 256), 15: (292, 256),
}  # fmt: skip

_SAMPLE_BYTES: Final = 1 << 20
_SAMPLES: Final = 64
_read_ahead: Final[dict[Path, tuple[int, GgufModel]]] = {}


class GgufModel(msgspec.Struct, frozen=True):
    """The contents of a GGUF file's head."""

    path: Path
    size_bytes: int
    metadata: dict[str, Any]
    fingerprint: str

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", ""))

    @property
    def context_window(self) -> int:
        """The context window that the model was trained for; 0 when the file does not say."""
        return int(self.metadata.get(f"{self.architecture}.context_length", 0))

    @property
    def chat_template(self) -> str | None:
        return self.metadata.get("tokenizer.chat_template")


def read_ahead(path: Path) -> None:
    """Reads a file's head before anything is made for its engine, and keeps it for the next `read_model`: a large
    vocabulary takes half a second. Raises as `read_model`."""
    model = read_model(path)
    _read_ahead[path] = (path.stat().st_mtime_ns, model)


def read_model(path: Path) -> GgufModel:
    """Reads a file's head. Blocking. Raises BadInput that names the path and what to do."""
    try:
        kept = _read_ahead.pop(path, None)
        if kept is not None and (kept[0], kept[1].size_bytes) == (path.stat().st_mtime_ns, path.stat().st_size):
            return kept[1]
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _parse(path, data)
    except FileNotFoundError as exc:
        why = "does not exist. --model takes a name of `./sessile models list`, hf:ORG/REPO, or the path of a GGUF file"
        raise _refused(path, why) from exc
    except IsADirectoryError as exc:
        raise _refused(path, "is a folder. Name the GGUF file in it with --model") from exc
    except (struct.error, IndexError, UnicodeDecodeError, OverflowError) as exc:
        raise _refused(path, "is a damaged or unfinished GGUF file. Fetch it again") from exc
    except (OSError, ValueError) as exc:  # mmap calls an empty file a ValueError
        raise _refused(path, f"cannot be read ({exc}). Check the path and its permissions") from exc


def _refused(path: Path, why: str) -> BadInput:
    return BadInput("bad_model_file", f"The model file {path} {why}.", param="model")


class _Reader:
    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 0

    def scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self.data, self.at)
        self.at += struct.calcsize("<" + code)
        return value

    def count(self) -> int:
        value = int(self.scalar("Q"))
        if value > _ENTRIES_MAX:
            raise IndexError(f"a count of {value}")
        return value

    def string(self) -> str:
        length = int(self.scalar("Q"))
        end = self.at + length
        if end > len(self.data):
            raise IndexError("a string that ends after the file")
        raw = self.data[self.at : end]
        self.at = end
        return raw.decode("utf-8", "surrogateescape")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            inner, count = self.scalar("I"), self.count()
            if inner in _SCALARS:
                code = f"<{count}{_SCALARS[inner]}"
                values = struct.unpack_from(code, self.data, self.at)
                self.at += struct.calcsize(code)
                return values
            return [self.value(inner) for _ in range(count)]
        if kind not in _SCALARS:
            raise IndexError(f"value type {kind}")
        return self.scalar(_SCALARS[kind])


def _parse(path: Path, data: mmap.mmap) -> GgufModel:
    if data[:4] != MAGIC:
        raise _refused(path, "is not a GGUF file. llama.cpp needs GGUF: convert the model, or name another file")
    reader = _Reader(data)
    reader.at = 4
    version = reader.scalar("I")
    if version not in (2, 3):
        raise _refused(path, f"is GGUF version {version}; versions 2 and 3 can be read. Convert it anew")
    num_tensors, num_values = reader.count(), reader.count()
    metadata: dict[str, Any] = {}
    for _ in range(num_values):
        key = reader.string()
        metadata[key] = reader.value(reader.scalar("I"))
    ends = [_tensor_end(reader) for _ in range(num_tensors)]
    alignment = int(metadata.get("general.alignment", 32)) or 32
    start = -(-reader.at // alignment) * alignment
    if len(data) < start + max(ends, default=0):
        raise _refused(path, f"ends after {len(data)} bytes, before its last tensor does. Fetch it again")
    return GgufModel(path, len(data), metadata, _fingerprint(data, start))


def _tensor_end(reader: _Reader) -> int:
    """Returns where a tensor ends, relative to the start of the tensor data; where it begins if its type is unknown."""
    reader.string()
    weights = 1
    for _ in range(reader.scalar("I")):
        weights *= reader.scalar("Q")
    kind, offset = reader.scalar("I"), int(reader.scalar("Q"))
    block_bytes, block_weights = _BLOCKS.get(kind, (0, 1))
    return offset + weights // block_weights * block_bytes


def _fingerprint(data: mmap.mmap, tensors_at: int) -> str:
    """Hashes the size, the head and the weights: all of them up to 128 MiB, beyond that the head, the tail and
    64 evenly spread MiB. Two trainings of a model differ everywhere, so a sample distinguishes them; it would not
    notice a few weights edited by hand."""
    digest = hashlib.blake2b(str(len(data)).encode(), digest_size=16)
    if len(data) <= 2 * _SAMPLES * _SAMPLE_BYTES:
        digest.update(data)
    else:
        digest.update(data[:tensors_at])
        digest.update(data[-_SAMPLE_BYTES:])
        step = (len(data) - tensors_at - _SAMPLE_BYTES) // _SAMPLES
        for sample in range(_SAMPLES):
            begin = tensors_at + sample * step
            digest.update(data[begin : begin + _SAMPLE_BYTES])
    return digest.hexdigest()
