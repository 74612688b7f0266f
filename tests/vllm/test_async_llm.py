"""What vLLM is told: it may change what KV means, how its blocks are made, and which adapter answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from structlog.testing import capture_logs

from inference import make_engine
from inference.vllm.async_llm import VllmCore
from inference.vllm.engine import VllmEngine
from sessions.model.errors import BadInput
from testbed.engine_client import ask, follow_up, key, prompt_of
from tests.support.engines.vllm_world import MODEL, STEP_TOKENS, VllmWorld, settled, start, vllm_options
from transport.cli.settings import Settings

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400)]

STORY = "Tell me a story about a bird that could not fly, and about its friends in the wood by the lake. " * 4
FP32: dict[str, Any] = {"dtype": "float32", "max_num_batched_tokens": STEP_TOKENS}
OTHER_POSITIONS = {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}}


def made(**settings: Any) -> VllmEngine:
    engine = make_engine(Settings(engine="vllm", model=str(MODEL), **settings))
    assert isinstance(engine, VllmEngine)
    return engine


async def own_core(world: VllmWorld, **options: Any) -> VllmEngine:
    """An engine whose vLLM ends with it: nobody else wants one of its make."""
    given = vllm_options(world.folder, **({"staging_folder": world.staging} | options))
    engine = VllmEngine(given, core=VllmCore(given))
    world._engines.append(engine)
    await engine.start()
    return engine


async def test_other_positions_find_no_snapshot_and_another_share_of_memory_does(world: VllmWorld) -> None:
    engine = await start(world)
    prompt = await prompt_of(engine, STORY)
    await ask(engine, key("a"), prompt, max_tokens=4)
    await settled(engine)
    await engine.close()
    roomier = await own_core(world, engine_args=FP32 | {"gpu_memory_utilization": 0.5})
    assert roomier.place(key("a")).tier == "disk"
    assert roomier.info.model_fingerprint == engine.info.model_fingerprint
    await roomier.close()
    other = await own_core(world, engine_args=FP32 | {"hf_overrides": OTHER_POSITIONS})
    assert other.place(key("a")).tier == "none"
    assert (await ask(other, key("a"), prompt, max_tokens=4)).finish.cached_tokens == 0
    assert other.info.model_fingerprint != engine.info.model_fingerprint


def write_adapter(folder: Path, rank: int = 4) -> Path:
    """What PEFT would save: low-rank changes of every query and value, the same at each run."""
    config = json.loads((MODEL / "config.json").read_text())
    hidden, head = config["hidden_size"], config["head_dim"]
    chance = torch.Generator().manual_seed(7)
    weights = {}
    for layer in range(config["num_hidden_layers"]):
        for name, heads in (("q_proj", config["num_attention_heads"]), ("v_proj", config["num_key_value_heads"])):
            at = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{at}.lora_A.weight"] = torch.randn(rank, hidden, generator=chance) * 0.05
            weights[f"{at}.lora_B.weight"] = torch.randn(heads * head, rank, generator=chance) * 0.05
    folder.mkdir()
    save_file(weights, folder / "adapter_model.safetensors")
    about = {"peft_type": "LORA", "r": rank, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(about))
    return folder


async def test_an_adapter_answers_and_its_kv_is_its_own(world: VllmWorld, tmp_path: Path) -> None:
    base = await start(world)
    first = await prompt_of(base, STORY)
    plain = await ask(base, key("a"), first, max_tokens=20)
    await settled(base)
    await base.close()
    adapter = write_adapter(tmp_path / "pirate")
    engine = await start(world, adapter=adapter)
    assert engine.info.model == f"{MODEL.name}+pirate"
    assert engine.place(key("a")).tier == "none", "the base model's KV is not the adapter's"
    answer = await ask(engine, key("b"), first, max_tokens=20)
    assert answer.finish.cached_tokens == 0 and answer.tokens != plain.tokens
    later = await follow_up(engine, first, answer, "What became of them?")
    await settled(engine)
    assert await engine._core.reset()  # nothing is on the device
    restored = await ask(engine, key("b"), later, max_tokens=20)
    assert restored.finish.cached_tokens == world.whole(len(first) + 19) > 0
    cold = await ask(engine, key("c"), later, max_tokens=20)
    assert cold.finish.cached_tokens == 0 and cold.tokens == restored.tokens


async def test_an_adapter_of_another_model_is_refused(world: VllmWorld, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "odd")
    save_file({"base_model.model.nonsense.lora_A.weight": torch.zeros(4, 8)}, adapter / "adapter_model.safetensors")
    with pytest.raises(BadInput) as refused:
        await start(world, adapter=adapter)
    assert refused.value.param == "vllm_adapter" and str(adapter) in refused.value.public_message


async def test_blocks_of_another_size_than_ours_are_not_spilled(
    world: VllmWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(VllmCore, "block_tokens", 64)
    with capture_logs() as logs:
        engine = await start(world)
    assert engine._offload is None and any('"block_size": 64' in entry.get("advice", "") for entry in logs)
    assert (await ask(engine, key("a"), await prompt_of(engine, "Hello."), max_tokens=2)).tokens


async def test_a_broken_tokenizer_is_refused(world: VllmWorld, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for file in MODEL.iterdir():
        if file.name != "tokenizer.json":
            (folder / file.name).symlink_to(file)
    (folder / "tokenizer.json").write_text('{"model": 3}')
    engine = world.make(model_path=folder)
    with pytest.raises(BadInput) as refused:
        await engine.start()
    assert refused.value.code == "bad_model_file"
    assert str(folder / "tokenizer.json") in refused.value.public_message
    await engine.close()
