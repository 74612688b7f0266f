"""What `--model` becomes before a server starts: shipped models, pulled ones, paths; and what is said of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy import shipped_models
from deploy.commands import models as module
from deploy.commands.models import describe_device, prepared, run_models_command, with_model
from deploy.devices import Devices, Gpu
from deploy.shipped_models import DEFAULT, SMALL, notice_of
from inference.llama import devices as llama_devices
from inference.llama.devices import Backend
from inference.models.library import ModelLibrary, PulledModel
from sessions.model.errors import BadInput, SessileError
from tests.support.engines.gguf_files import METADATA, TENSORS, gguf
from transport.cli import commands, models
from transport.cli.settings import BadSetting, Settings

CUDA0 = Backend("CUDA0", "NVIDIA H200", 139 << 30)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(shipped_models, "FOLDER", tmp_path)
    return tmp_path


def pulled(folder: Path) -> PulledModel:
    scratch = folder / ".partial" / "one"
    scratch.mkdir(parents=True)
    (scratch / "m-Q8_0.gguf").write_bytes(b"GGUF")
    model = PulledModel(repo="a/b", revision="main", commit="c" * 40, kind="gguf", files=("m-Q8_0.gguf",), size_bytes=4)
    return ModelLibrary(folder).put(scratch, model, "m-Q8_0.gguf")


def test_the_default_is_the_best_one_that_is_there(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BadSetting, match="make serve"):
        with_model(Settings())
    SMALL.path.write_bytes(b"GGUF")
    assert with_model(Settings()).model == str(SMALL.path)
    DEFAULT.path.write_bytes(b"GGUF")
    settings = with_model(Settings())
    assert (settings.model, settings.context) == (str(DEFAULT.path), 0)
    shown = capsys.readouterr().err
    assert (
        "licence Apache-2.0" in shown
        and "A toy of 1.5 billion parameters: often wrong." in shown
        and "--model hf:ORG/REPO" in shown
    )
    assert notice_of(settings.model) == "A toy of 1.5 billion parameters: often wrong."
    assert with_model(Settings(model=SMALL.name, context=512)).context == 512


def test_for_vllm_it_is_the_folder_that_was_converted(folder: Path) -> None:
    DEFAULT.path.write_bytes(b"GGUF")
    with pytest.raises(BadSetting, match="vLLM's format"):
        with_model(Settings(engine="vllm"))
    converted = folder / f"{DEFAULT.path.stem}-vllm-bf16"
    converted.mkdir()
    settings = with_model(Settings(engine="vllm"))
    assert settings.model == str(converted) and notice_of(settings.model) is not None


def test_a_pulled_model_needs_no_hub_and_gets_its_name(folder: Path) -> None:
    model = pulled(folder)
    settings = with_model(Settings(model="hf:a/b:Q8_0"))
    assert (settings.model, settings.served_model_name) == (str(model.path), ("m-Q8_0",))
    assert with_model(Settings(model="hf:a/b", served_model_name=("x", "y"))).served_model_name == ("x", "y")
    assert notice_of(settings.model) is None
    assert with_model(Settings(model="/some/m.gguf")) == Settings(model="/some/m.gguf")
    with pytest.raises(BadSetting, match=f"did you mean {SMALL.name}"):
        with_model(Settings(model="smollm2"))


def test_a_taken_port_is_refused_before_anything_is_pulled(monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(settings: Settings, names: object) -> None:
        raise BadSetting("port = 1: taken")

    def never(settings: Settings) -> Settings:
        raise AssertionError("it was pulled")

    monkeypatch.setattr(module, "check_ports", taken)
    monkeypatch.setattr(module, "with_model", never)
    with pytest.raises(BadSetting, match="taken"):
        prepared(commands.Serve(), Settings(model="hf:a/b"))
    sim = Settings(engine="sim")
    assert prepared(commands.Serve(), sim) is sim and prepared(commands.RunGateway(), Settings()) == Settings()


@pytest.mark.parametrize(
    ("settings", "backends", "said"),
    [
        (Settings(), [], "llama.cpp on the CPU; this build of llama.cpp has no CUDA"),
        (Settings(device="cpu"), [], "llama.cpp on the CPU"),
        (Settings(gpu_layers=0), [], "llama.cpp on the CPU"),
        (Settings(), [CUDA0], "llama.cpp with all layers on NVIDIA H200"),
        (Settings(gpu_layers=12), [CUDA0], "llama.cpp with 12 layers on NVIDIA H200"),
        (Settings(device="cpu"), [CUDA0], "llama.cpp on the CPU"),
    ],
)
def test_a_start_says_what_is_computed_on(
    settings: Settings,
    backends: list[Backend],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    machine = Devices((Gpu("nvidia", "NVIDIA H200", 140 << 30),), "580.95", (13, 0))
    monkeypatch.setattr(module, "find_devices", lambda: machine)
    monkeypatch.setattr(llama_devices, "find_backends", lambda: backends)
    describe_device(settings)
    line = capsys.readouterr().err.removeprefix("Device: 1 × NVIDIA H200 with 140 GiB, driver 580.95, CUDA 13.0; ")
    assert line.startswith(said) and ("no CUDA" in line) == ("no CUDA" in said)


def test_a_start_in_front_of_remote_servers_names_no_device(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    SMALL.path.write_bytes(gguf(METADATA, TENSORS))
    remote = Settings(engine="remote", engine_url=("http://127.0.0.1:1",), model=str(SMALL.path), port=0)
    prepared(commands.Serve(), remote)
    assert "Device" not in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"PK\x03\x04", gguf(METADATA, TENSORS)[:-64]], ids=["foreign", "unfinished"])
def test_a_damaged_model_is_refused_before_anything_is_made(content: bytes, tmp_path: Path) -> None:
    """The start left a new data folder behind."""
    (path := tmp_path / "m.gguf").write_bytes(content)
    settings = Settings(model=str(path), data=str(tmp_path / "data"), port=0, grpc_port=-1, metrics_port=-1)
    with pytest.raises(BadInput, match=r"The model file .*m\.gguf"):
        prepared(commands.Serve(), settings)
    assert list(tmp_path.iterdir()) == [path]


def test_a_start_in_front_of_remote_servers_needs_their_model() -> None:
    """The default model's tokenizer is no other model's."""
    with pytest.raises(BadSetting, match="--engine remote needs --model"):
        prepared(commands.Serve(), Settings(engine="remote", engine_url=("http://127.0.0.1:1",), port=0))


def test_models_are_listed_and_removed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = pulled(folder)
    SMALL.path.write_bytes(b"GGUF")
    assert run_models_command(Settings(), models.ListModels()) == 0
    shown = capsys.readouterr().out
    assert str(model.path) in shown and str(SMALL.path) in shown and "not fetched yet" in shown
    run_models_command(Settings(), models.RemoveModel("hf:a/b"))
    run_models_command(Settings(), models.RemoveModel(SMALL.name))
    assert not model.path.exists() and not SMALL.path.exists()
    with pytest.raises(SessileError, match="models list"):
        run_models_command(Settings(), models.RemoveModel("hf:a/b"))
    with pytest.raises(BadSetting, match="expected hf:ORG/REPO"):
        run_models_command(Settings(), models.PullModel("nonsense"))


@pytest.mark.parametrize("name", [SMALL.name, SMALL.name.upper(), SMALL.api_name, SMALL.api_name.lower()])
def test_a_shipped_model_has_the_same_names_everywhere(name: str, folder: Path) -> None:
    SMALL.path.write_bytes(b"GGUF")
    settings = with_model(Settings(model=name))
    assert (settings.model, settings.served_model_name) == (str(SMALL.path), (SMALL.api_name, SMALL.name))
    assert with_model(Settings(model=name, served_model_name=("own",))).served_model_name == ("own",)
    assert with_model(Settings(model=name, engine="remote")).served_model_name == ()
    run_models_command(Settings(), models.RemoveModel(name))
    assert not SMALL.path.exists()


@pytest.mark.parametrize("name", ["smollm2", "SMOLLM2", "smollm2.135m", "SmolLM2-135M-Instruct.Q8"])
def test_an_error_for_a_misspelt_model_names_those_that_there_are(name: str) -> None:
    for command in (lambda: with_model(Settings(model=name)), lambda: pull(name)):
        with pytest.raises(BadSetting, match=rf"{SMALL.name}.*; did you mean {SMALL.name}\?"):
            command()


def pull(name: str) -> int:
    return run_models_command(Settings(), models.PullModel(name))
