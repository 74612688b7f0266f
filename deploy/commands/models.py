"""Finds the device and the model that a server starts with, pulls the model where it is not there yet, and carries out
`models list|pull|remove`.

Part of the entry point: it knows the settings, the models that packages ship and the library of pulled ones. All of it
blocks, and runs before any event loop does, so that Ctrl-C ends a pull at once.
"""

from __future__ import annotations

import difflib
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

from deploy import shipped_models
from deploy.devices import find_devices
from inference.models.library import ModelLibrary, PulledModel
from inference.models.memory import check_fits, folder_footprint
from inference.models.reference import EXAMPLE, HubModel, Kind, parse_reference
from transport.cli import commands, models
from transport.cli.plain_text import plain
from transport.cli.settings import DEFAULT_MODEL, BadSetting, Settings
from transport.cli.start.preflight import check_files, check_ports


def prepared(options: object, settings: Settings) -> Settings:
    """The settings that a command runs with: of a server its model is found, or pulled once all else is known to be
    right, and what it computes on is said. Raises BadSetting, BadInput, Unavailable."""
    if not isinstance(options, commands.Serve | commands.RunReplica) or settings.engine == "sim":
        return settings
    serves = isinstance(options, commands.Serve)
    check_ports(settings, ("port", "grpc_port", "metrics_port") if serves else ("peer_port", "metrics_port"))
    check_files(settings)
    if settings.engine == "chat":  # whose model is a name
        return settings
    if settings.engine == "remote" and settings.model == DEFAULT_MODEL:
        raise BadSetting(
            "--engine remote needs --model: the Hugging Face folder of the servers' model, without its weights; for"
            " llama-server its GGUF file"
        )
    settings = with_model(settings)
    if settings.engine != "vllm" and Path(settings.model).is_file():
        from inference.llama.gguf import read_ahead  # with llama.cpp's room, which `models list` need not wait for

        read_ahead(Path(settings.model))
    if settings.engine != "remote" and Path(settings.model).exists():  # else the start is refused, with one sentence
        describe_device(settings)
    return settings


def _refuse_misspelt(model: str) -> None:
    """Raises BadSetting for a word that is neither a path nor the name of a shipped model."""
    if "/" in model or model.lower().endswith(".gguf") or not model or Path(model).exists():
        return
    names = ", ".join(shipped_models.SHIPPED)
    raise BadSetting(
        f"model = {model!r}: there are {names}, hf:ORG/REPO and GGUF files by their path{_did_you_mean(model)}"
    )


def _did_you_mean(model: str) -> str:
    names, word = list(shipped_models.SHIPPED), model.lower()
    near = difflib.get_close_matches(word, names, 1, 0.5) or [name for name in names if word and name.startswith(word)]
    return f"; did you mean {near[0]}?" if near else ""


def with_model(settings: Settings) -> Settings:
    """The settings with the path of the model that `--model` names, which is pulled where it is not there yet. Raises
    BadInput, Unavailable."""
    shipped = shipped_models.shipped_model(settings.model)
    if settings.model == DEFAULT_MODEL:
        shipped = shipped_models.default_model()
    if shipped is not None:
        path = shipped.path
        if settings.engine == "vllm":
            folders = sorted(path.parent.glob(f"{path.stem}-vllm-*"))
            if not folders:
                raise BadSetting(
                    f"model = {settings.model!r}: {path.name} is not in vLLM's format here; `make serve` converts it;"
                    " or name a folder, or hf:ORG/REPO, with --model"
                )
            path = folders[0]
        elif not path.is_file():
            raise BadSetting(
                f"model = {settings.model!r}: {path.name} is not on this machine; fetch it with `make serve`, or"
                f" `./sessile models pull {shipped.name}`, or name another one with --model"
            )
        real = "For a real one start with --model hf:ORG/REPO, a model of Hugging Face's hub, or --model FILE.gguf."
        about = f"{shipped_models.notice(shipped)} {real}"
        print(f"Model: {shipped.name}, licence {shipped.licence}. {about}", file=sys.stderr)
        if settings.engine == "remote":  # its servers say what they serve
            return replace(settings, model=str(path))
        own_name = path.name if settings.engine == "vllm" else path.stem
        names = settings.served_model_name or (own_name, shipped.name)
        return replace(settings, model=str(path), served_model_name=names)
    reference = parse_reference(settings.model)
    if reference is None:
        _refuse_misspelt(settings.model)
        return settings
    kind: Kind = "folder" if settings.engine == "vllm" else "gguf"
    pulled = model_library(settings).find(reference, kind) or pull_model(settings, reference)
    names = settings.served_model_name or (pulled.name,)
    return replace(settings, model=str(pulled.path), served_model_name=names)


def describe_device(settings: Settings) -> None:
    """Says what was found and what is computed on; refuses a model that does not fit a GPU. Raises BadInput."""
    machine = find_devices()
    if settings.engine == "vllm":
        print(f"Device: {machine}; vLLM", file=sys.stderr)
        if machine.cuda is not None and settings.memory_check == "on" and Path(settings.model).is_dir():
            free = sum(gpu.free_bytes for gpu in machine.gpus[: _tensor_parallel(settings)])
            need = folder_footprint(Path(settings.model), settings.context)
            check_fits(Path(settings.model), need, int(free * settings.gpu_memory), where="the GPU's memory")
        return
    from inference.llama.devices import find_backends, layers_on_device

    backends = find_backends()
    layers = layers_on_device(settings.device, settings.gpu_layers, backends)
    names = ", ".join(each.description for each in backends)
    chosen = f"llama.cpp with {'all' if settings.gpu_layers < 0 else layers} layers on {names}" if layers else ""
    idle = machine.cuda is not None and not backends and settings.device == "auto" and settings.gpu_layers
    unused = "; this build of llama.cpp has no CUDA: docs/models.md says how to get one that has" if idle else ""
    print(f"Device: {machine}; {chosen or 'llama.cpp on the CPU'}{unused}", file=sys.stderr)


def _tensor_parallel(settings: Settings) -> int:
    try:
        return max(1, int(json.loads(settings.vllm_args or "{}").get("tensor_parallel_size", 1)))
    except (ValueError, TypeError, AttributeError):
        return 1  # the engine says what is wrong with it


def model_library(settings: Settings) -> ModelLibrary:
    return ModelLibrary(Path(settings.model_folder) if settings.model_folder else shipped_models.FOLDER)


def pull_model(settings: Settings, reference: HubModel) -> PulledModel:
    """Fetches a model of the hub, with a bar. Raises BadInput, Unavailable."""
    from inference.models.hub import Hub  # its libraries take half a second to load

    library, draw = model_library(settings), models.ProgressLine()
    hub = Hub(library, pause=time.sleep, on_progress=lambda progress: draw(*progress))
    try:
        pulled = hub.pull(reference, "folder" if settings.engine == "vllm" else "gguf")
    finally:
        draw.end()
    licence = pulled.licence or "not named by its repository"
    print(plain(f"Model: {pulled.reference}, {pulled.size_bytes / 1e9:.1f} GB; licence {licence}."), file=sys.stderr)
    return pulled


def run_models_command(settings: Settings, command: models.ModelCommand) -> int:
    library = model_library(settings)
    if isinstance(command, models.ListModels):
        rows = [
            models.ModelRow(each.name, each.size_bytes, each.licence, str(each.path) if each.path.is_file() else "")
            for each in shipped_models.SHIPPED.values()
        ]
        rows += [
            models.ModelRow(each.reference, each.size_bytes, each.licence, str(each.path)) for each in library.models()
        ]
        print(models.format_models(rows, as_json=command.as_json))
        return 0
    shipped = shipped_models.shipped_model(command.reference)
    reference = parse_reference(command.reference)
    if shipped is None and reference is None:
        names = ", ".join(shipped_models.SHIPPED)
        near = _did_you_mean(command.reference)
        raise BadSetting(f"model = {command.reference!r}: expected {EXAMPLE}, or one of {names}{near}")
    if isinstance(command, models.PullModel):
        if shipped is not None:
            from deploy.fetch_model import ModelError, fetch

            try:
                fetch(shipped)
            except ModelError as error:
                raise BadSetting(str(error)) from error
        elif reference is not None:
            print(pull_model(settings, reference).path)
    elif shipped is not None:
        shipped.path.unlink(missing_ok=True)
    elif reference is not None:
        for each in library.remove(reference):
            print(f"removed {each.reference}, {each.size_bytes / 1e9:.1f} GB")
    return 0
