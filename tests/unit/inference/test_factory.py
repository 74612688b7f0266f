"""What settings name: the smaller model, KV's places; made, or refused with what is wrong and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inference import make_engine
from inference.brownout_engine import BrownoutEngine
from inference.factory import check_standby_fits
from inference.llama import LlamaEngine
from inference.simulated import SimulatedEngine
from sessions.model.errors import BadInput
from tests.support.engines.gguf_files import METADATA, TENSORS, gguf
from transport.cli.settings import Settings


def refused(**settings: Any) -> str:
    with pytest.raises(BadInput) as error:
        make_engine(Settings(**settings))
    assert (error.value.code, error.value.param) == ("bad_brownout_model", "brownout_model")
    return error.value.public_message


async def test_a_simulated_one_is_faster_and_has_half_the_slots_unless_told_otherwise() -> None:
    engine = make_engine(Settings(engine="sim", brownout_model="tiny", sim_brownout_speed=5.0, slots=8))
    assert isinstance(engine, BrownoutEngine)
    await engine.start()
    try:
        main, smaller = engine.main, engine.smaller
        assert isinstance(main, SimulatedEngine) and isinstance(smaller, SimulatedEngine)
        assert (engine.info.smaller_model, smaller.info.slots) == ("tiny", 4)
        assert smaller.options.step_base_s == pytest.approx(main.options.step_base_s / 5)
        assert smaller.info.context_window == main.info.context_window
    finally:
        await engine.close()
    engine = make_engine(Settings(engine="sim", brownout_model="tiny", brownout_slots=7, slots=1))
    await engine.start()
    assert engine.info.smaller is not None and engine.info.smaller.slots == 7
    await engine.close()


def test_a_wrong_path_the_model_itself_and_an_engine_that_cannot_are_refused(tmp_path: Path) -> None:
    path, other = tmp_path / "model.gguf", tmp_path / "link.gguf"
    path.write_bytes(gguf(METADATA, TENSORS))
    other.symlink_to(path)
    nowhere = tmp_path / "nowhere.gguf"
    assert f"{nowhere} is no file" in refused(model=str(path), brownout_model=str(nowhere))
    assert f"{tmp_path} is no file" in refused(model=str(path), brownout_model=str(tmp_path))
    assert f"{other} is the model itself" in refused(model=str(path), brownout_model=str(other))
    assert "vLLM has none beside it" in refused(engine="vllm", brownout_model=str(path))


def test_a_projector_is_the_models() -> None:
    engine = make_engine(Settings(engine="llama", model="m.gguf", projector="mmproj.gguf"))
    assert isinstance(engine, LlamaEngine) and engine.options.projector == Path("mmproj.gguf")


REDIS = ("foo", "redis+sentinel://a,b/main", "redis://host:port", "http://host", "redis://host?nonsense=1")
MODELS_OWN: dict[str, Any] = {"device": "cuda", "chat_template": "chatlm", "gpu_layers": 4, "vllm_args": "{}"}


@pytest.mark.parametrize(
    ("name", "value", "more", "says"),
    [
        *(("kv_redis", url, {}, "--kv-redis redis://HOST:6379") for url in REDIS),
        *(("vllm_adapter", "lora", {"engine": engine}, "") for engine in ("llama", "sim")),
        *(("vllm_standby", True, {"engine": engine}, "") for engine in ("llama", "sim")),
        *(("projector", "mmproj.gguf", {"engine": engine}, "") for engine in ("sim", "vllm")),
        ("projector", "mmproj.gguf", {"brownout_model": "small.gguf"}, ""),
        *((*each, {"engine": "sim"}, "computes nothing") for each in MODELS_OWN.items()),
    ],
)
def test_a_setting_that_an_engine_would_leave_out_or_that_leads_nowhere_is_refused(
    name: str, value: Any, more: dict[str, Any], says: str
) -> None:
    with pytest.raises(BadInput) as error:
        make_engine(Settings(**{name: value}, **more))
    assert error.value.param == name and says in error.value.public_message
    assert says != "computes nothing" or f"--{name.replace('_', '-')}" in error.value.public_message


@pytest.mark.parametrize("setting", [{"speculation": "ngram"}, {"kv_dtype": "8bit"}])
def test_what_changes_how_a_model_computes_is_refused_where_there_is_none(setting: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="computes nothing") as error:
        make_engine(Settings(engine="sim", **setting))
    (name,) = setting
    assert error.value.param == name and f"--{name.replace('_', '-')}" in error.value.public_message
    engine = make_engine(Settings(**setting))
    assert isinstance(engine, LlamaEngine) and getattr(engine.options, name) == setting[name]


def test_a_standby_that_could_never_lie_on_the_gpu_beside_the_first_one_is_refused() -> None:
    by_bytes: dict[str, Any] = {"gpu_memory_utilization": 0.9, "kv_cache_memory_bytes": 1 << 30}
    for fitting in ({"gpu_memory_utilization": 0.5}, by_bytes):
        check_standby_fits(fitting)
    with pytest.raises(BadInput, match=r"--gpu-memory 0\.45") as error:
        check_standby_fits({"gpu_memory_utilization": 0.9})
    assert error.value.param == "vllm_standby"


def test_a_chat_template_is_the_models_own_a_built_in_one_or_a_file(tmp_path: Path) -> None:
    template = tmp_path / "mine.jinja"
    template.write_text("{{ messages }}")
    for given, expected in (("model", None), ("chatml", "chatml"), (str(template), "{{ messages }}")):
        engine = make_engine(Settings(chat_template=given))
        assert isinstance(engine, LlamaEngine) and engine.options.chat_template == expected
    with pytest.raises(BadInput, match="chatml, and the path of a file"):
        make_engine(Settings(chat_template="nonsense"))


def test_served_names_and_layers_reach_the_engine() -> None:
    engine = make_engine(Settings(served_model_name=("a", "b", "c")))
    assert isinstance(engine, LlamaEngine)
    assert (engine.options.model_name, engine.options.model_aliases) == ("a", ("b", "c"))
    assert (engine.options.gpu_layers, engine.options.checks_memory) == (0, True)
    simulated = make_engine(Settings(engine="sim", served_model_name=("a", "b")))
    assert (simulated.info.model, simulated.info.aliases) == ("a", ("b",))
    with pytest.raises(BadInput, match="has no CUDA"):
        make_engine(Settings(device="cuda"))


def test_a_setting_that_is_too_small_or_for_another_engine_is_named_as_its_flag_is() -> None:
    sim, huge = {"engine": "sim", "context": 5}, {"engine": "sim", "context": 100_000_000}
    contexts = [(each, "--context") for each in ({"context": 5}, sim, huge)]
    for setting, flag in (*contexts, ({"vllm_args": "{}"}, "--vllm-args")):
        with pytest.raises(BadInput, match=flag) as refused:
            make_engine(Settings(**setting))
        assert refused.value.param in setting and "context_window" not in refused.value.public_message
