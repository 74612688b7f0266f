"""What names the KV of a vLLM, and what its settings and folders may say. vLLM itself is not needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inference.vllm.kv_fingerprint import compute_kv_fingerprint
from inference.vllm.model_folder import read_vllm_model
from inference.vllm.options import VllmOptions
from sessions.model.errors import BadInput


def model_folder(folder: Path, **config: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 8192} | config))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def adapter_folder(folder: Path, rank: object = 8, weights: bytes = b"low rank") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({"r": rank}))
    (folder / "adapter_model.safetensors").write_bytes(weights)
    return folder


def test_the_window_counts_where_vllm_picks_a_ropes_factors_by_it(tmp_path: Path) -> None:
    rope = {"rope_type": "longrope", "long_factor": [2.0], "short_factor": [1.0]}
    model = read_vllm_model(model_folder(tmp_path / "m", rope_scaling=rope))
    assert compute_kv_fingerprint(model, {}, 4096) != compute_kv_fingerprint(model, {}, 8192)


def test_an_adapter_is_part_of_the_name_and_a_wrong_one_is_refused(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m")
    plain = read_vllm_model(folder)
    adapted = [read_vllm_model(folder, adapter_folder(tmp_path / "a", weights=weights)) for weights in (b"x", b"y")]
    assert len({compute_kv_fingerprint(model, {}, 8192) for model in (plain, *adapted)}) == 3
    assert (plain.name, adapted[0].name) == ("m", "m+a")
    assert adapted[0].adapter is not None and adapted[0].adapter.rank == 8
    (tmp_path / "list").mkdir()
    (tmp_path / "list" / "adapter_config.json").write_text("[]")
    (tmp_path / "list" / "adapter_model.safetensors").touch()
    for wrong in (
        *(tmp_path / "nowhere", tmp_path / "list"),
        *(adapter_folder(tmp_path / f"r{rank}", rank) for rank in (0, 513, "8", None)),
    ):
        with pytest.raises(BadInput) as refused:
            read_vllm_model(folder, wrong)
        assert refused.value.param == "vllm_adapter" and str(wrong) in refused.value.public_message


def test_the_preprocessing_of_images_is_part_of_the_name(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m")
    names = [compute_kv_fingerprint(read_vllm_model(folder), {}, 8192)]
    for sizes in ("{}", '{"size": 56}'):
        (folder / "preprocessor_config.json").write_text(sizes)
        names.append(compute_kv_fingerprint(read_vllm_model(folder), {}, 8192))
    settings = {"mm_processor_kwargs": {"size": 28}}
    names.append(compute_kv_fingerprint(read_vllm_model(folder), settings, 8192))
    assert len(set(names)) == 4


def test_room_for_kv_goes_through_to_vllm_and_what_is_ours_is_refused_with_its_flag() -> None:
    VllmOptions(model_path=Path("m"), engine_args={"kv_cache_memory_bytes": 1 << 31, "num_gpu_blocks_override": 9})
    for name, says in (("max_num_seqs", "--slots"), ("enable_lora", "--vllm-adapter"), ("scheduling_policy", "fixed")):
        with pytest.raises(BadInput, match=says):
            VllmOptions(model_path=Path("m"), engine_args={name: 1})


def test_our_settings_in_vllms_words_and_what_of_them_names_kv(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    model = read_vllm_model(folder)
    plain = VllmOptions(model_path=folder).all_engine_args
    assert plain == {}
    drafted = VllmOptions(model_path=folder, speculation="ngram").all_engine_args
    assert drafted["speculative_config"]["method"] == "ngram"
    assert compute_kv_fingerprint(model, drafted, 8192) == model.fingerprint, "drafts are verified: the same KV"
    other = {"speculative_config": {"method": "eagle", "model": "m"}}
    assert compute_kv_fingerprint(model, other, 8192) != model.fingerprint
    eight = VllmOptions(model_path=folder, kv_dtype="8bit").all_engine_args
    assert eight == {"kv_cache_dtype": "fp8"} and compute_kv_fingerprint(model, eight, 8192) != model.fingerprint


@pytest.mark.parametrize(
    ("setting", "name", "flag"),
    [
        ({"speculation": "ngram"}, "speculative_config", "--speculation"),
        ({"kv_dtype": "8bit"}, "kv_cache_dtype", "--kv-dtype"),
    ],
)
def test_a_setting_is_not_given_twice(tmp_path: Path, setting: dict[str, Any], name: str, flag: str) -> None:
    with pytest.raises(BadInput, match=f"{name} in vllm_args: leave {flag} out"):
        VllmOptions(model_path=tmp_path, engine_args={name: {}}, **setting)


@pytest.mark.parametrize("config", [{"max_position_embeddings": None}, {"text_config": 3}])
def test_a_model_with_a_strange_context_window_is_refused(tmp_path: Path, config: dict[str, Any]) -> None:
    folder = model_folder(tmp_path / "m", **config)
    with pytest.raises(BadInput) as refused:
        read_vllm_model(folder).context_window  # noqa: B018
    assert refused.value.code == "bad_model_file"
    assert str(folder) in refused.value.public_message and "config.json" in refused.value.public_message
