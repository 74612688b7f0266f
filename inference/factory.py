"""Makes the engine and the filters that the settings name.

Engines are imported only when they are needed: llama.cpp's library is 100 MB.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, runtime_checkable

import structlog

from sessions.metrics import Metrics
from sessions.model.audit import INSTALLATION, Action, Audited, AuditLog
from sessions.model.errors import BadInput, SessileError
from sessions.model.types import Json, UnixMs
from sessions.ports import Engine, FilterSet, Keys
from sessions.turn.keyword_filter import KeywordFilterSet

if TYPE_CHECKING:
    from inference.moderation.personal import PersonalTexts

log = structlog.get_logger(__name__)


class EngineSettings(Protocol):
    """The application's settings for engines, a property each; `--help` documents their meaning."""

    @property
    def engine(self) -> Literal["llama", "vllm", "remote", "chat", "sim"]: ...
    @property
    def engine_url(self) -> tuple[str, ...]: ...
    @property
    def engine_key(self) -> str: ...
    @property
    def data(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def images(self) -> Literal["auto", "yes", "no"]: ...
    @property
    def projector(self) -> str: ...
    @property
    def served_model_name(self) -> tuple[str, ...]: ...
    @property
    def brownout_model(self) -> str: ...
    @property
    def brownout_slots(self) -> int: ...
    @property
    def chat_template(self) -> str: ...
    @property
    def device(self) -> Literal["auto", "cpu", "cuda"]: ...
    @property
    def gpu_layers(self) -> int: ...
    @property
    def gpu_memory(self) -> float: ...
    @property
    def memory_check(self) -> Literal["on", "off"]: ...
    @property
    def speculation(self) -> Literal["off", "ngram"]: ...
    @property
    def kv_dtype(self) -> Literal["auto", "8bit"]: ...
    @property
    def step_target_ms(self) -> int: ...
    @property
    def threads(self) -> int: ...
    @property
    def slots(self) -> int: ...
    @property
    def context(self) -> int: ...
    @property
    def kv_host_mb(self) -> int: ...
    @property
    def kv_staging(self) -> str: ...
    @property
    def kv_disk_mb(self) -> int: ...
    @property
    def kv_redis(self) -> str: ...
    @property
    def kv_redis_mb(self) -> int: ...
    @property
    def vllm_args(self) -> str: ...
    @property
    def vllm_adapter(self) -> str: ...
    @property
    def vllm_standby(self) -> bool: ...
    @property
    def sim_tokens_per_s(self) -> float: ...
    @property
    def sim_prefill_per_s(self) -> float: ...
    @property
    def sim_answer_tokens(self) -> int: ...
    @property
    def sim_tools(self) -> bool: ...
    @property
    def sim_brownout_speed(self) -> float: ...


MODEL_SETTINGS: Final = {
    "speculation": ("off",),
    "kv_dtype": ("auto",),
    "step_target_ms": (0,),
    "device": ("auto", "cpu"),
    "chat_template": ("model",),
    "gpu_layers": (-1, 0),
    "vllm_args": ("",),
}
"""Settings of a model, with the values that the simulated engine, which computes on the CPU, honours as well."""
CONTEXT_MIN: Final = 256  # the minimum of both engines that have a model
SIMULATED_CONTEXT_MAX: Final = 1_048_576


def make_engine(
    settings: EngineSettings, keys: Keys | None = None, environment: MutableMapping[str, str] | None = None
) -> Engine:
    """Makes the engine that the settings name; `start` comes later. KV that leaves the device is encrypted under
    `keys`. Processes that the engine starts inherit from `environment` only what they need; if it is None, which is for
    tests, they inherit everything. Raises BadInput, which names the wrong setting."""
    if settings.vllm_adapter and settings.engine != "vllm":
        raise BadInput(
            "invalid_setting",
            f"vllm_adapter is for --engine vllm: {settings.engine} would answer without it. Leave --vllm-adapter out.",
            param="vllm_adapter",
        )
    if settings.projector and (settings.engine != "llama" or settings.brownout_model):
        why = (
            f"{settings.engine} would not read it"
            if settings.engine != "llama"
            else "a smaller model would see nothing"
        )
        raise BadInput(
            "invalid_setting",
            f"projector is for --engine llama without --brownout-model: {why}. Leave --projector out.",
            param="projector",
        )
    if settings.vllm_standby and settings.engine != "vllm":
        raise BadInput(
            "invalid_setting",
            f"vllm_standby is for --engine vllm: {settings.engine} has no process that could die. Leave it out.",
            param="vllm_standby",
        )
    if settings.engine_url and settings.engine not in ("remote", "chat"):
        raise BadInput(
            "invalid_setting",
            f"engine_url is for --engine remote and chat: {settings.engine} would not ask it. Leave --engine-url out.",
            param="engine_url",
        )
    _check_context(settings)
    if settings.engine == "sim":
        _check_simulated(settings)
        return _simulated(settings)
    if settings.engine in ("remote", "chat"):
        return _remote(settings, chat=settings.engine == "chat")
    if settings.vllm_args and settings.engine != "vllm":
        raise BadInput(
            "invalid_setting",
            f"vllm_args is for --engine vllm: {settings.engine} would not read it. Leave --vllm-args out.",
            param="vllm_args",
        )
    if settings.kv_redis:
        from inference.kv.redis import check_address  # its client is loaded only where it is needed

        check_address(settings.kv_redis)
    if settings.engine == "vllm":
        if settings.brownout_model:
            raise _bad_brownout_model(
                "vLLM has none beside it: a second engine would take its device memory, and it makes no forecasts for"
                " admission to go by. Leave --brownout-model out"
            )
        return _vllm(settings, keys, environment)
    return _llama(settings, keys)


def _remote(settings: EngineSettings, *, chat: bool) -> Engine:
    from inference.remote.engine import RemoteEngine
    from inference.remote.options import RemoteOptions

    usual = {"brownout_model": "", "speculation": "off", "kv_dtype": "auto", "device": "auto", "gpu_layers": -1}
    usual |= {"chat_template": "model"} if chat else {}
    for name, value in {**usual, "kv_redis": "", "vllm_args": ""}.items():
        if getattr(settings, name) != value:
            what = f"{name} is the servers' own business: leave --{name.replace('_', '-')} out, and set it there."
            raise BadInput("invalid_setting", what, param=name)
    if not settings.engine_url:
        what = f"--engine {settings.engine} needs --engine-url http://HOST:PORT."
        raise BadInput("invalid_setting", what, param="engine_url")
    if chat and settings.model in ("", "default"):
        raise BadInput("invalid_setting", "--engine chat needs --model NAME, as its provider names it.", param="model")
    options = RemoteOptions(
        urls=settings.engine_url,
        tokenizer=Path(settings.model),
        chat_model=settings.model if chat else "",
        key=settings.engine_key,
        model_name=settings.served_model_name[0] if settings.served_model_name else None,
        model_aliases=settings.served_model_name[1:],
        chat_template=_chat_template(settings.chat_template),
        context_window=settings.context,
        slots=settings.slots,
        images={"yes": True, "no": False}.get(settings.images),
    )
    return RemoteEngine(options)


def _vllm(settings: EngineSettings, keys: Keys | None, environment: MutableMapping[str, str] | None) -> Engine:
    try:
        from inference.vllm.device import check_device
        from inference.vllm.engine import VllmEngine, VllmOptions
    except ImportError as exc:
        raise BadInput(
            "engine_not_installed",
            f"vLLM is not installed here ({exc}). Its environment is made by `make setup-vllm`; run the server with"
            " .venv-vllm/bin/python.",
            param="engine",
        ) from exc
    try:
        engine_args = json.loads(settings.vllm_args or "{}")
    except ValueError:
        engine_args = None
    if not isinstance(engine_args, dict):
        raise BadInput("invalid_setting", "vllm_args must be a JSON object.", param="vllm_args")
    block_tokens = engine_args.pop("block_size", 32)
    if type(block_tokens) is not int or block_tokens < 1:
        raise BadInput("invalid_setting", "block_size in vllm_args must be a number of tokens.", param="vllm_args")
    if check_device(settings.device) == "cuda":
        engine_args.setdefault("gpu_memory_utilization", settings.gpu_memory)
        if settings.vllm_standby:
            check_standby_fits(engine_args)
    return VllmEngine(
        VllmOptions(
            model_path=Path(settings.model),
            slots=settings.slots,
            context_window=settings.context,
            threads=_threads(settings),
            block_tokens=block_tokens,
            adapter=Path(settings.vllm_adapter) if settings.vllm_adapter else None,
            standby=settings.vllm_standby,
            engine_args=engine_args,
            **_shared_options(settings, host_bytes_max=4 << 30),
        ),
        keys,
        environment=environment,
    )


def check_standby_fits(engine_args: dict[str, Any]) -> None:
    """Raises BadInput if each vLLM may take more than half of the GPU's memory, so that a second one would not fit
    beside it."""
    share = engine_args["gpu_memory_utilization"]
    if "kv_cache_memory_bytes" not in engine_args and isinstance(share, int | float) and 2 * share > 1:
        raise BadInput(
            "invalid_setting",
            f"vllm_standby: two engines that take {share:g} of the GPU's memory each do not fit. Give each less than"
            " half, by --gpu-memory 0.45, or leave --vllm-standby out.",
            param="vllm_standby",
        )


def _shared_options(settings: EngineSettings, *, host_bytes_max: int) -> dict[str, Any]:
    """Returns the options that llama.cpp and vLLM share, except the default of host memory."""
    return {
        "model_name": settings.served_model_name[0] if settings.served_model_name else None,
        "model_aliases": settings.served_model_name[1:],
        "speculation": settings.speculation,
        "kv_dtype": settings.kv_dtype,
        "step_target_ms": settings.step_target_ms,
        "chat_template": _chat_template(settings.chat_template),
        "staging_folder": Path(settings.kv_staging) if settings.kv_staging else None,
        "host_bytes_max": settings.kv_host_mb * 1_000_000 or host_bytes_max,
        "disk_folder": Path(settings.data) / "kv" if settings.kv_disk_mb else None,
        "disk_bytes_max": settings.kv_disk_mb * 1_000_000,
        "redis_url": settings.kv_redis,
        "redis_bytes_max": settings.kv_redis_mb * 1_000_000,
    }


def _chat_template(given: str) -> str | None:
    """Returns None for the model's own template, a built-in one's name, or the text of a file. Raises BadInput."""
    if given == "model":
        return None
    from inference.chat_template import BUILT_IN

    if given in BUILT_IN:
        return given
    try:
        return Path(given).read_text()
    except (OSError, UnicodeDecodeError) as exc:
        raise BadInput(
            "bad_chat_template",
            f"chat_template = {given!r} cannot be read ({exc}). Allowed are model, {', '.join(BUILT_IN)}, and the path"
            " of a file with a Jinja template.",
            param="chat_template",
        ) from exc


def _threads(settings: EngineSettings) -> int:
    return settings.threads or max(1, (os.cpu_count() or 1) - 1)


def _bad_brownout_model(why: str) -> BadInput:
    return BadInput("bad_brownout_model", f"The model for brownout: {why}.", param="brownout_model")


def smaller_slots(settings: EngineSettings) -> int:
    """Returns how many answers the smaller model writes at a time: it shares the model's device, so half as many by
    default."""
    return settings.brownout_slots or max(1, settings.slots // 2)


def _check_simulated(settings: EngineSettings) -> None:
    for name, usual in MODEL_SETTINGS.items():
        if getattr(settings, name) not in usual:
            raise BadInput(
                "invalid_setting",
                f"{name} is for engines with a model: --engine sim computes nothing. Leave --{name.replace('_', '-')}"
                " out.",
                param=name,
            )


def _check_context(settings: EngineSettings) -> None:
    if 0 < settings.context < CONTEXT_MIN:
        raise BadInput(
            "invalid_setting",
            f"context = {settings.context}: a conversation needs {CONTEXT_MIN} tokens at least. Give --context"
            f" {CONTEXT_MIN} or more, or 0 for the model's own window.",
            param="context",
        )
    if settings.engine == "sim" and settings.context > SIMULATED_CONTEXT_MAX:
        raise BadInput(
            "invalid_setting",
            f"context = {settings.context}: the simulated engine takes {SIMULATED_CONTEXT_MAX} tokens at most."
            f" Give --context {SIMULATED_CONTEXT_MAX} or less.",
            param="context",
        )


def _simulated(settings: EngineSettings) -> Engine:
    from inference.simulated import SimulatedEngine, SimulatedOptions

    window = settings.context or 8192
    names = settings.served_model_name or ("simulated",)
    options = SimulatedOptions(
        model=names[0],
        model_aliases=names[1:],
        slots=settings.slots,
        context_window=window,
        kv_tokens_max=max(262_144, window * settings.slots),
        step_base_s=1 / settings.sim_tokens_per_s,
        prefill_tokens_per_s=settings.sim_prefill_per_s,
        answer_tokens_mean=settings.sim_answer_tokens,
        tools=settings.sim_tools,
        images=settings.images == "yes",
    )
    if not settings.brownout_model:
        return SimulatedEngine(options)
    smaller = options.smaller(settings.brownout_model, settings.sim_brownout_speed, smaller_slots(settings))
    from inference.brownout_engine import make_brownout_engine

    return make_brownout_engine(SimulatedEngine(options), lambda _: SimulatedEngine(smaller))


def _llama(settings: EngineSettings, keys: Keys | None) -> Engine:
    from inference.llama import LlamaEngine, LlamaOptions

    threads = _threads(settings)
    # Both compute at the same time, and threads of llama.cpp spin: more of them than cores would starve each other.
    smaller_threads = max(1, threads // 4) if settings.brownout_model else 0
    from inference.llama.devices import find_backends, layers_on_device

    backends = find_backends()
    options = LlamaOptions(
        model_path=Path(settings.model),
        projector=Path(settings.projector) if settings.projector else None,
        gpu_layers=layers_on_device(settings.device, settings.gpu_layers, backends),
        gpu_free_bytes=int(sum(backend.free_bytes for backend in backends) * settings.gpu_memory),
        checks_memory=settings.memory_check == "on",
        slots=settings.slots,
        context_window=settings.context,
        threads=max(1, threads - smaller_threads),
        **_shared_options(settings, host_bytes_max=1 << 30),
    )
    main = LlamaEngine(options, keys)
    if not settings.brownout_model:
        return main
    path, slots = Path(settings.brownout_model), smaller_slots(settings)
    if not path.is_file():
        raise _bad_brownout_model(f"{path} is no file. Name a GGUF file with --brownout-model, or leave it out")
    if options.model_path.exists() and path.samefile(options.model_path):
        raise _bad_brownout_model(f"{path} is the model itself. Name a smaller one of its family, or none")
    from inference.brownout_engine import make_brownout_engine

    return make_brownout_engine(
        main, lambda info: LlamaEngine(options.smaller(path, slots, smaller_threads, info.context_window))
    )


class FilterSettings(Protocol):
    @property
    def policy(self) -> str: ...
    @property
    def input_keywords(self) -> tuple[str, ...]: ...
    @property
    def output_keywords(self) -> tuple[str, ...]: ...


@contextlib.asynccontextmanager
async def open_filters(settings: FilterSettings, measures: Metrics) -> AsyncIterator[FilterSet]:
    """Opens the filters for messages and answers: a policy file, read again on SIGHUP, or phrases. Raises BadInput."""
    if not settings.policy:
        yield KeywordFilterSet(input_phrases=settings.input_keywords, output_phrases=settings.output_keywords)
        return
    if settings.input_keywords or settings.output_keywords:
        raise BadInput("invalid_setting", "input_keywords, output_keywords: with a policy, phrases stand in the policy")
    from inference.moderation import PolicyFilterSet

    filters = PolicyFilterSet(settings.policy, measures)
    await filters.open()
    try:
        with filters.reload_on_sighup():
            yield filters
    finally:
        await filters.close()


@contextlib.asynccontextmanager
async def open_image_fetcher(hosts: Sequence[str]) -> AsyncIterator[Callable[[str], Awaitable[bytes]] | None]:
    """Opens the client that fetches images from `hosts`, and yields its function; None if no hosts are named. Raises
    BadInput for a host that is none."""
    if not hosts:
        yield None
        return
    from inference.image_fetcher import ImageFetcher  # the HTTP client is loaded only where it is needed

    async with ImageFetcher(hosts) as fetcher:
        yield fetcher.fetch


def personal_texts(filters: FilterSet) -> PersonalTexts:
    """Makes the detector of personal data in texts, which goes by the policies of `filters`."""
    from inference.moderation.personal import PersonalTexts

    return PersonalTexts(filters)


@runtime_checkable
class _VersionedFilters(Protocol):
    @property
    def versions(self) -> dict[str, str]: ...

    def subscribe(self, listener: Callable[[Action, dict[str, Json]], Awaitable[None]]) -> None: ...


async def audit_policies(filters: FilterSet, audit: AuditLog, now_ms: Callable[[], UnixMs]) -> None:
    """Writes an audit row about the policies in force, and from now on one for each policy file that is loaded or
    refused. Raises Unavailable if the first row cannot be written; a later failure is only logged, and the policies
    take effect."""
    if not isinstance(filters, _VersionedFilters):
        return

    async def write(action: Action, detail: dict[str, Json]) -> None:
        try:
            await audit.record(INSTALLATION, [Audited(action=action, at=now_ms(), detail=detail)])
        except SessileError as error:
            log.error("policy_audit_failed", action=action, error=error.code)

    loaded = Audited(action="policy.loaded", at=now_ms(), detail={"versions": filters.versions})
    await audit.record(INSTALLATION, [loaded])
    filters.subscribe(write)
