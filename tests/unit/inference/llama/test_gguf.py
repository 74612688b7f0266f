"""Model files: read when they are right, refused with the path and a way out when they are not."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.llama.gguf import read_model
from sessions.model.errors import BadInput
from tests.support.engines.gguf_files import METADATA, TENSORS, gguf

GOOD = gguf(METADATA, TENSORS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "model.gguf"
    made.write_bytes(GOOD)
    return made


def refused(path: Path) -> str:
    with pytest.raises(BadInput) as error:
        read_model(path)
    assert str(path) in error.value.public_message and error.value.param == "model"
    return error.value.public_message


def test_missing_empty_and_foreign_files_are_refused(tmp_path: Path, path: Path) -> None:
    assert "models list" in refused(tmp_path / "nowhere.gguf")
    assert "folder" in refused(tmp_path)
    for data, hint in ((b"", "read"), (b"PK\x03\x04" + bytes(100), "not a GGUF"), (b"GG", "not a GGUF")):
        path.write_bytes(data)
        assert hint in refused(path)
    path.write_bytes(gguf(METADATA, version=1))
    assert "version 1" in refused(path)


@given(st.integers(0, len(GOOD) - 1))
def test_a_file_cut_anywhere_is_refused(tmp_path_factory: pytest.TempPathFactory, length: int) -> None:
    path = tmp_path_factory.mktemp("cut") / "model.gguf"
    path.write_bytes(GOOD[:length])
    padding = 28  # the last tensor is 68 bytes in a file that is padded to 32
    if length < len(GOOD) - padding:
        refused(path)


@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255))
def test_a_damaged_head_is_refused_or_read_but_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, at: int, value: int
) -> None:
    path = tmp_path_factory.mktemp("bad") / "model.gguf"
    path.write_bytes(GOOD[:at] + bytes([value]) + GOOD[at + 1 :])
    try:
        read_model(path)
    except BadInput:
        refused(path)


def test_the_fingerprint_is_of_head_and_weights(path: Path) -> None:
    first = read_model(path).fingerprint
    assert read_model(path).fingerprint == first
    for changed in (
        gguf({**METADATA, "llama.context_length": 4096}, TENSORS),
        gguf(METADATA, {**TENSORS, "w": (0, (8, 4), bytes(128))}),
    ):
        path.write_bytes(changed)
        assert read_model(path).fingerprint != first


def test_the_fingerprint_of_a_large_file_samples_it(path: Path) -> None:
    head = gguf(METADATA, {"w": (0, (8, 4), bytes(128))})
    with path.open("wb") as file:  # sparse: 200 MiB that take no room
        file.write(head)
        file.truncate(200 << 20)
    first = read_model(path).fingerprint
    with path.open("r+b") as file:
        file.seek(-10, 2)
        file.write(b"x")
    assert read_model(path).fingerprint != first
