"""Models: what names them, which files of a repository are one, the folder that they lie in, and whether they fit."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest

from inference.models.library import MANIFEST, ModelLibrary, PulledModel
from inference.models.memory import (
    Footprint,
    available_bytes,
    check_fits,
    check_window,
    default_window,
    folder_footprint,
    gguf_kv_bytes_per_token,
)
from inference.models.reference import HubModel, RepoFile, choose_files, is_safe, parse_reference
from sessions.model.errors import BadInput

# -- reference
GGUFS = ("m-F16.gguf", "m-Q4_0.gguf", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "mmproj-m-F16.gguf")
SPLIT = tuple(f"big/m-Q8_0-0000{part}-of-00003.gguf" for part in (1, 2, 3))


def files(*names: str) -> list[RepoFile]:
    return [RepoFile(name, 1) for name in names]


def chosen(model: HubModel, *names: str, kind: str = "gguf") -> list[str]:
    return [file.name for file in choose_files(model, files(*names), "gguf" if kind == "gguf" else "folder")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hf:Qwen/Qwen3-4B-GGUF", HubModel("Qwen/Qwen3-4B-GGUF")),
        ("hf:a/b:Q8_0", HubModel("a/b", file="Q8_0")),
        ("hf:a/b@v1.2:sub/m.gguf", HubModel("a/b", "v1.2", "sub/m.gguf")),
        ("model.gguf", None),
        ("/models/hf:a/b", None),
    ],
)
def test_a_reference_is_read_and_written_alike(text: str, expected: HubModel | None) -> None:
    assert parse_reference(text) == expected
    if expected is not None:
        assert str(expected) == text


@pytest.mark.parametrize("text", ["hf:", "hf:model", "hf:a/b/c", "hf:a/../b", "hf:../b:m.gguf", "hf:a/b:../../m.gguf"])
def test_what_is_no_reference_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(BadInput) as error:
        parse_reference(text)
    assert "hf:ORG/REPO" in error.value.public_message


def test_one_quantisation_is_chosen_and_another_can_be_named() -> None:
    assert chosen(HubModel("a/b"), *GGUFS) == ["m-Q4_K_M.gguf"]
    assert chosen(HubModel("a/b", file="q8_0"), *GGUFS) == ["m-Q8_0.gguf"]
    assert chosen(HubModel("a/b", file="m-Q4_0.gguf"), *GGUFS) == ["m-Q4_0.gguf"]
    assert chosen(HubModel("a/b"), "only.gguf", "tokenizer_config.json", "x/chat_template.jinja") == [
        "only.gguf",
        "tokenizer_config.json",
    ]


def test_a_model_in_parts_comes_whole_or_not_at_all() -> None:
    assert chosen(HubModel("a/b"), *GGUFS[:1], *SPLIT) == list(SPLIT)
    with pytest.raises(BadInput, match="2 of the 3 parts"):
        chosen(HubModel("a/b"), *SPLIT[:2])


def test_what_cannot_be_chosen_is_refused_with_what_there_is() -> None:
    ggufs: tuple[tuple[HubModel, tuple[str, ...], str], ...] = (
        (HubModel("a/b", file="Q2_K"), GGUFS, "Name one of m-F16.gguf"),
        (HubModel("a/b", file="F16"), ("x-F16.gguf", "y-F16.gguf"), "several such files"),
        (HubModel("a/b"), ("config.json", "model.safetensors"), "--engine vllm"),
    )
    for model, names, sentence in ggufs:
        with pytest.raises(BadInput) as error:
            chosen(model, *names)
        assert sentence in error.value.public_message
    folders: tuple[tuple[HubModel, tuple[str, ...], str], ...] = (
        (HubModel("a/b"), GGUFS, "--engine llama"),
        (HubModel("a/b"), ("config.json", "pytorch_model.bin"), "needs config.json"),
        (HubModel("a/b", file="x"), ("config.json",), "leave the file out"),
    )
    for model, names, sentence in folders:
        with pytest.raises(BadInput) as error:
            chosen(model, *names, kind="folder")
        assert sentence in error.value.public_message


@pytest.mark.parametrize(
    "name", ["", "../m.gguf", "/m.gguf", "a/../../m.gguf", "a\\..\\m.gguf", "a//m.gguf", "m\0.gguf"]
)
def test_a_name_that_leaves_its_folder_is_left_out(name: str) -> None:
    assert not is_safe(name)
    assert chosen(HubModel("a/b"), "m.gguf", name) == ["m.gguf"]


# -- library
def put(
    library: ModelLibrary, file: str = "m-Q8_0.gguf", commit: str = "c" * 40, revision: str = "main"
) -> PulledModel:
    scratch = library.partial / f"a--b--{commit[:12]}--{file}"
    scratch.mkdir(parents=True)
    (scratch / file).write_bytes(commit.encode())
    pulled = PulledModel(repo="a/b", revision="main", commit=commit, kind="gguf", files=(file,), size_bytes=40)
    return library.put(scratch, pulled, file)


def test_a_reference_names_the_version_pulled_last_and_an_older_one_by_its_commit(tmp_path: Path) -> None:
    library = ModelLibrary(tmp_path)
    old, new = put(library, commit="1" * 40), put(library, commit="2" * 40)
    os.utime(old.folder / MANIFEST, (1, 1))
    assert library.find(HubModel("a/b"), "gguf") == new
    assert library.find(HubModel("a/b", "1" * 12), "gguf") == old
    assert library.find(HubModel("a/b", file="Q8_0"), "gguf") == new
    assert library.find(HubModel("a/b", file="Q4_0"), "gguf") is None
    assert library.find(HubModel("a/b"), "folder") is None
    assert new.path.read_bytes() == b"2" * 40 and new.reference == "hf:a/b:m-Q8_0.gguf"


def test_putting_it_again_replaces_it(tmp_path: Path) -> None:
    library = ModelLibrary(tmp_path)
    put(library)
    again = put(library)
    assert library.models() == [again] and list(library.partial.iterdir()) == []


def test_what_is_not_whole_is_not_listed(tmp_path: Path) -> None:
    library = ModelLibrary(tmp_path)
    pulled = put(library)
    pulled.path.unlink()
    assert library.models() == []
    other = put(library, "n.gguf")
    (other.folder / MANIFEST).write_bytes(msgspec.json.encode({"repo": "a/b"}))
    assert library.models() == []


def test_removing_takes_what_was_left_too_and_spares_the_rest(tmp_path: Path) -> None:
    library = ModelLibrary(tmp_path)
    small, large = put(library, "m-Q4_0.gguf"), put(library, "m-Q8_0.gguf")
    (library.partial / "a--b--999--m.gguf").mkdir()
    assert library.remove(HubModel("a/b", file="Q4_0")) == [small]
    assert library.models() == [large] and list(library.partial.iterdir()) == []
    assert library.remove(HubModel("a/b")) == [large]
    assert list((tmp_path / "hub").iterdir()) == [], "no empty folder is left"
    with pytest.raises(BadInput, match="models list"):
        library.remove(HubModel("a/b"))


# -- memory
QWEN = {
    "general.architecture": "qwen2",
    "qwen2.block_count": 28,
    "qwen2.embedding_length": 1536,
    "qwen2.attention.head_count": 12,
    "qwen2.attention.head_count_kv": 2,
}
GB = 10**9


def refused(need: Footprint, available: int) -> str:
    with pytest.raises(BadInput) as error:
        check_fits(Path("m.gguf"), need, available)
    assert error.value.code == "memory_too_small"
    return error.value.public_message


def test_the_kv_of_a_token_is_in_the_head() -> None:
    assert gguf_kv_bytes_per_token(QWEN) == 28 * 2 * 2 * 128 * 2
    named = {**QWEN, "qwen2.attention.key_length": 256, "qwen2.attention.value_length": 64}
    assert gguf_kv_bytes_per_token(named) == 28 * 2 * (256 + 64) * 2
    assert gguf_kv_bytes_per_token({**QWEN, "qwen2.attention.head_count_kv": (2, 4)}) == 2 * 28 * 2 * 128 * 4
    assert gguf_kv_bytes_per_token({"general.architecture": "mamba", "mamba.block_count": 2}) == 0


def test_a_smaller_window_or_fewer_slots_are_advised() -> None:
    message = refused(Footprint(GB, 28_672, 32_768, 4), 4 * GB)
    assert "needs about 5.1 GB (1.0 GB of weights, 4 × 32768 tokens of KV) and 4.0 GB of memory are free" in message
    assert "--context 21504 with 4 slots, or --slots 2 with the window of 32768" in message
    small = Footprint(GB, 28_672, 21_504, 4)
    check_fits(Path("m.gguf"), small, 4 * GB)
    check_fits(Path("m.gguf"), Footprint(GB, 28_672, 32_768, 2), 4 * GB)


def test_one_slot_is_the_last_advice_and_then_a_smaller_model() -> None:
    assert "--slots 1 --context" in refused(Footprint(GB, 100_000, 32_768, 64), int(1.9 * GB))
    assert "take a smaller model" in refused(Footprint(40 * GB, 100_000, 32_768, 4), 24 * GB)
    assert "take a smaller model" in refused(Footprint(4 * GB, 0, 1, 1), GB)


def test_a_container_bounds_what_the_machine_has(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) == 0
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    1000000 kB\n")
    assert available_bytes(tmp_path) == 1_024_000_000
    group = tmp_path / "sys" / "fs" / "cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("max\n")
    assert available_bytes(tmp_path) == 1_024_000_000
    (group / "memory.max").write_text("500000000\n")
    (group / "memory.current").write_text("300000000\n")
    (group / "memory.stat").write_text("anon 5\nfile 200000000\n")
    assert available_bytes(tmp_path) == 400_000_000


def test_a_folder_counts_its_weights_and_one_session(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(bytes(1000))
    (tmp_path / "b.safetensors").write_bytes(bytes(24))
    assert folder_footprint(tmp_path, 512) == Footprint(1024, 0, 512, 1)
    config = {"num_attention_heads": 4, "hidden_size": 256, "num_hidden_layers": 2, "max_position_embeddings": 4096}
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_key_value_heads": 1}))
    assert folder_footprint(tmp_path, 0) == Footprint(1024, 4 * 2 * 1 * 64, 4096, 1)
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {**config, "head_dim": 32}}))
    assert folder_footprint(tmp_path, 512) == Footprint(1024, 4 * 2 * 4 * 32, 512, 1)


def test_the_default_window_is_the_models_own_where_memory_allows() -> None:
    own = Footprint(GB, 28_672, 32_768, 4)
    assert default_window(own, 16 * GB) == default_window(own, 0) == 32_768
    cut = default_window(own, 6 * GB)
    assert 8192 < cut < 32_768 and cut % 256 == 0
    check_fits(Path("m.gguf"), own._replace(window=cut), 4 * GB)  # half of what is free beside the weights
    assert default_window(own, GB) == 2048  # which is then refused with what would fit
    assert default_window(own._replace(kv_bytes_per_token=0), GB) == 32_768


def test_a_window_beyond_the_models_is_refused_by_its_flag() -> None:
    check_window("m", 32_768, 32_768)
    check_window("m", 1 << 20, 0)
    with pytest.raises(BadInput, match="--context 32768 or less") as refused_window:
        check_window("m", 100_000_000, 32_768)
    assert refused_window.value.param == "context"
