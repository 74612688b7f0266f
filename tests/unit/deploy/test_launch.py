"""How `make serve` starts the server on made-up machines; what a person has set is never overruled."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from deploy.devices import DeviceError, Devices, Gpu
from deploy.launch import given_settings, plan

GPU = Devices((Gpu("nvidia", "NVIDIA H200", 140 << 30, 139 << 30, (9, 0)),), "580.95", (13, 0))
CUDA = (13, 0)


@pytest.fixture(autouse=True)
def linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")


def test_flags_go_before_variables_and_those_before_the_file(tmp_path: Path) -> None:
    config = tmp_path / "sessile.toml"
    config.write_text('engine = "vllm"\ndevice = "cpu"\nmodel = "a"\nport = 5\n')
    arguments = ("--config", str(config), "--model=c", "--port", "1")
    assert given_settings(arguments, {"SESSILE_DEVICE": "auto"}) == {"engine": "vllm", "device": "auto", "model": "c"}
    config.write_text("nonsense = ")
    assert given_settings(("--config", str(config), "--engine", "sim"), {}) == {"engine": "sim"}
    assert given_settings(("--model",), {}) == {"model": ""}


def test_a_gpu_gets_vllm_with_its_packages_and_the_default_model_in_its_format() -> None:
    start = plan(("--port", "1"), {}, GPU, CUDA)
    assert (start.choice.environment, start.group) == (".venv-vllm-cuda", "vllm-cuda")
    assert (start.fetch, start.convert) == ("qwen2.5-coder-1.5b", True)
    assert start.arguments == ("--port", "1", "--engine", "vllm")


def test_without_one_llama_cpp_serves_the_default_model() -> None:
    start = plan((), {}, Devices(), CUDA)
    assert (start.choice.environment, start.group, start.fetch, start.convert) == (
        ".venv",
        "base",
        "qwen2.5-coder-1.5b",
        False,
    )
    assert start.arguments == ()


def test_what_a_person_has_set_stays() -> None:
    assert plan((), {"engine": "sim"}, GPU, CUDA)[1:4] == ("base", "", False)
    assert plan((), {"device": "cpu"}, GPU, CUDA).group == "base"
    assert plan((), {"model": "hf:Qwen/Qwen3-8B"}, GPU, CUDA)[1:4] == ("vllm-cuda", "", False)
    for gguf in ("m.gguf", "hf:Qwen/Qwen3-8B-GGUF:Q8_0", "hf:Qwen/Qwen3-8B-GGUF", "hf:a/b-gguf@main", "hf:a/b:c.gguf"):
        start = plan((), {"model": gguf}, GPU, CUDA)
        assert start.group == "base" and "GGUF" in start.choice.why and start.arguments == ()
    assert plan((), {"model": "hf:gguf-org/Qwen3-8B"}, GPU, CUDA).group == "vllm-cuda"
    assert plan((), {"model": "smollm2-135m"}, Devices(), CUDA).fetch == "smollm2-135m"
    assert plan((), {"engine": "vllm"}, GPU, CUDA).arguments == ()
    for machine, device, group in ((GPU, "auto", "vllm-cuda"), (GPU, "cpu", "vllm"), (Devices(), "auto", "vllm")):
        start = plan((), {"engine": "vllm", "device": device}, machine, CUDA)
        assert (start.group, start.choice.environment, start.convert) == (group, f".venv-{group}", True)
    with pytest.raises(DeviceError, match="no NVIDIA GPU"):
        plan((), {"device": "cuda"}, Devices(), CUDA)
    with pytest.raises(DeviceError, match="no NVIDIA GPU"):
        plan((), {"device": "cuda", "model": "m.gguf"}, Devices(), CUDA)
    with pytest.raises(DeviceError, match="leave --engine out"):
        plan((), {"engine": "vllm", "model": "m.gguf"}, GPU, CUDA)


def test_beside_a_gpu_llama_cpp_is_not_put_on_the_cpu_before_its_build_is_known() -> None:
    old = GPU._replace(cuda=(12, 8))  # which vLLM's packages do not fit, and a build of llama.cpp may
    for given in ({"engine": "llama"}, {"model": "m.gguf"}, {"model": "m.gguf", "device": "cuda"}):
        for machine in (GPU, old):
            start = plan((), given, machine, CUDA)
            assert start.group == "base" and "on the GPU where its build has CUDA" in start.choice.why
    assert plan((), {"engine": "llama", "device": "cpu"}, GPU, CUDA).choice.why == "the CPU, as --device cpu says"
    assert plan((), {"engine": "sim"}, GPU, CUDA).choice.why == "the simulated engine"
