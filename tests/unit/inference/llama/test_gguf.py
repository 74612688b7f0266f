"""Model files: read when they are right, refused with the path and a way out when they are not."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.llama.gguf import read_model
from inference.llama.slot_kv import bytes_per_token
from inference.llama.vocabulary import ByteFragments, read_vocabulary
from sessions.model.errors import BadInput
from tests.support.gguf_files import METADATA, TENSORS, gguf

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


def test_a_good_file_says_what_it_is(path: Path) -> None:
    model = read_model(path)
    assert (model.architecture, model.context_window, model.chat_template) == ("llama", 2048, None)
    assert model.metadata["tokenizer.ggml.tokens"] == ["a", "Ġb", "<|end|>"]
    assert bytes_per_token(model.metadata, "llama") == 2 * 2 * 2 * 2 * 16


def test_missing_empty_and_foreign_files_are_refused(tmp_path: Path, path: Path) -> None:
    assert "make model" in refused(tmp_path / "nowhere.gguf")
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


# -- the vocabulary's fragments ------------------------------------------------------------------------


PIECES = {
    10: b"\xf0\x9f",
    11: b"\x98",
    12: b"\x80",
    13: b"\xf0",
    14: b"\x9f\x98",
    15: b" \xe6",
    16: b"\x97\xa5",
    17: b"ab",
}


def test_ids_between_are_found_from_their_bytes() -> None:
    fragments = ByteFragments(iter(PIECES.items()))
    assert fragments.recover("😀", 3, 12) == [(10, 11, 12), (13, 14, 12)]  # both are possible
    assert fragments.recover(" 日", 2, 16) == [(15, 16)]
    assert fragments.recover("😀", 2, 12) == []
    assert fragments.recover("😀", 4, 12) == []
    assert fragments.recover("x", 2, 12) == []
    assert fragments.recover("�", 2, 99) == []


@given(st.lists(st.sampled_from([10, 11, 12, 13, 14, 15, 16]), min_size=2, max_size=6))
def test_whatever_is_found_has_the_bytes_that_were_asked_for(ids: list[int]) -> None:
    data = b"".join(PIECES[token] for token in ids)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return
    found = ByteFragments(iter(PIECES.items())).recover(text, len(ids), ids[-1])
    assert tuple(ids) in found
    assert all(b"".join(PIECES[token] for token in other) == data for other in found)


def test_byte_level_and_sentencepiece_vocabularies_are_read() -> None:
    byte_level = read_vocabulary(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.tokens": ["ðŁ", "ĺ", "Ģ", "Ġb", "<|end|>", "æĹ¥"],
            "tokenizer.ggml.token_type": [1, 1, 1, 1, 3, 1],
            "tokenizer.ggml.eos_token_id": 4,
        }
    )
    assert byte_level.fragments.recover("😀", 3, 2) == [(0, 1, 2)]
    assert byte_level.specials == ("<|end|>",) and byte_level.eos_text == "<|end|>"
    assert not byte_level.adds_bos and not byte_level.adds_space
    pieces = read_vocabulary(
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>", "▁a"],
            "tokenizer.ggml.token_type": [2, 3, 3, 6, 6, 6, 6, 1],
            "tokenizer.ggml.bos_token_id": 1,
        }
    )
    assert pieces.fragments.recover("😀", 4, 6) == [(3, 4, 5, 6)]
    assert pieces.adds_bos and pieces.adds_space and pieces.bos_text == "<s>"
