"""Starts vLLM and runs requests on it, as chunks. Scheduler and workers live in processes of their own.

The front half (`AsyncLLM`) runs on our event loop; it turns token ids into text and nothing else, so no spinning thread
of the engine is ever on that loop. Token ids go in: vLLM tokenises nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncGenerator, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

import structlog
import vllm
from vllm import SamplingParams
from vllm.config import KVTransferConfig, StructuredOutputsConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.exceptions import VLLMClientError
from vllm.lora.request import LoRARequest
from vllm.platforms import current_platform
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from inference.private_folder import PrivateFolder, create_socket_folder
from inference.process_environment import only_handed_over
from inference.sampling import unfit_continuation
from inference.step_budget import TARGET_CPU_MS, TARGET_GPU_MS
from inference.vllm.images import PlacedImage, VllmImages, engine_input, make_images
from inference.vllm.model_folder import Adapter, VllmModel
from inference.vllm.options import VllmOptions
from inference.vllm.sampling import CheckedParams, prefill_params, public_logprobs, scoring_params, token_scores
from inference.vllm.scheduling.grammar_replay import EMITTED
from inference.vllm.scheduling.step_planner import STEP_TARGET
from inference.vllm.worker_events import WorkerReady, WorkerUnfit, all_ready
from sessions.model.errors import BadInput, EngineLost, Internal, SessileError, Unavailable
from sessions.model.generation import Chunk, TokenScore

log = structlog.get_logger(__name__)

BUILD: Final = f"vllm/{vllm.__version__}"
CONNECTOR_KNOWS: Final = ("0.32.",)  # versions whose connector interface ours was verified against
SCHEDULER: Final = "inference.vllm.scheduling.scheduler.make_scheduler"
_CPU_KV_BYTES: Final = 1 << 30
_RANKS: Final = (8, 16, 32, 64, 128, 256, 320, 512)  # ranks of adapters that vLLM supports
_SOCKET_BYTES: Final = 36  # vLLM names its sockets by UUIDs
_LOOPBACK: Final = "lo" if sys.platform == "linux" else "lo0"
_MULTI_NODE_ARGS: Final = ("nnodes", "node_rank", "master_addr", "data_parallel_address")
_GRAMMAR_THREADS: Final = 2  # the costliest grammars take a second each, without the interpreter's lock
_LAST_WORD_S: Final = 1.0
_FIRST_TOKENS: Final = 8  # fewer than fill a block: nothing of it stays


class RunEnded(NamedTuple):
    """How a run ended ("stop", "length" or "abort"), and how many tokens of its prompt had KV already."""

    reason: str
    cached_tokens: int


class VllmCore:
    """A running vLLM. `start` first; after `close` every run ends with RunEnded("abort", ...)."""

    def __init__(self, options: VllmOptions, environment: MutableMapping[str, str] | None = None) -> None:
        """`environment` is that of this process, of which vLLM's processes inherit only a part. None, which is for
        tests: they inherit all of it."""
        self.options = options
        self._environment = {} if environment is None else environment
        self.kv_shape: list[WorkerReady] | str | None = None  # the workers' reports on their KV, or why KV cannot move
        self.dead = False  # a run learned that its processes had ended by themselves
        self.connector_folder: str | None = None  # the connector's folder that it was started with
        self._adapter: Adapter | None = None  # the adapter of every run
        self._llm: AsyncLLM | None = None
        self._folder: PrivateFolder | None = None  # the folder of the sockets between its processes
        self._grammars = ThreadPoolExecutor(_GRAMMAR_THREADS, thread_name_prefix="grammar-check")

    @property
    def is_known_version(self) -> bool:
        return BUILD.removeprefix("vllm/").startswith(CONNECTOR_KNOWS)

    @property
    def has_own_scheduler(self) -> bool:
        """Whether vLLM runs our scheduler: only that one continues answers in a fixed format, and shares prompt
        beginnings."""
        return self.is_known_version and "scheduler_cls" not in self.options.engine_args

    async def start(self, context_window: int, connector_folder: str | None, adapter: Adapter | None = None) -> None:
        """Starts vLLM; takes 15 s and more, without blocking the event loop. Raises BadInput for settings, else
        Unavailable."""
        if self._folder is None:
            self._folder = await asyncio.to_thread(create_socket_folder, _SOCKET_BYTES)
        self._prepare(self._folder.path)
        self.dead, self.kv_shape, self._adapter = False, None, adapter
        self.connector_folder = connector_folder
        arguments = self._arguments(context_window, connector_folder)
        try:
            with only_handed_over(self._environment):
                llm = await asyncio.to_thread(lambda: AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments)))
            self._llm = llm
            await self._load_adapter(llm)
            await self._first_run()
        except (ValueError, TypeError, VLLMClientError) as exc:
            raise BadInput("invalid_setting", f"vLLM refuses its settings: {exc}", param="engine_args") from exc
        except (RuntimeError, OSError, MemoryError) as exc:
            raise Unavailable(
                "engine_unavailable",
                f"vLLM could not start ({exc}). Its own log lines above say why; too little memory for the model is the"
                " usual reason: give it less KV memory (--vllm-args '{\"kv_cache_memory_bytes\": BYTES}') or a smaller"
                " model.",
            ) from exc

    async def wait_workers(self, reports: asyncio.Queue[WorkerReady | WorkerUnfit]) -> list[WorkerReady] | str:
        """Waits until every worker has reported on its KV. Returns the reports, or the reason why KV cannot be
        moved."""
        if self.kv_shape is None:
            self.kv_shape = await all_ready(reports)
        return self.kv_shape

    async def close(self) -> None:
        llm, self._llm = self._llm, None
        if llm is not None:
            if llm.output_handler is not None:
                llm.output_handler.cancel()  # or it would take the end of its processes for their death
            await asyncio.to_thread(llm.shutdown)  # which waits for its processes, 5 s at most
        folder, self._folder = self._folder, None
        if folder is not None:
            await asyncio.to_thread(folder.close)

    async def reap(self) -> None:
        """Closes a vLLM that has died: kills its remaining processes, so that none of them writes any more."""
        llm = self._llm
        if llm is not None:
            for process in getattr(llm.engine_core.resources.engine_manager, "processes", ()):
                process.kill()
            if llm.output_handler is not None:
                await asyncio.wait([llm.output_handler], timeout=_LAST_WORD_S)  # its runs hear of the death by it
        await self.close()

    @property
    def is_dead(self) -> bool:
        """Whether vLLM's processes have ended by themselves. If so, the caller closes this object and starts it
        again."""
        return self.dead or (self._llm is not None and self._llm.errored)

    @property
    def device_tokens(self) -> int:
        cache = self._llm.vllm_config.cache_config if self._llm is not None else None
        return (cache.num_gpu_blocks or 0) * cache.block_size if cache is not None else 0

    @property
    def block_tokens(self) -> int:
        """How many tokens a block holds. It may differ from the configured size, because some models and kernels allow
        only one."""
        return int(self._llm.vllm_config.cache_config.block_size) if self._llm is not None else 0

    @property
    def dtype(self) -> str:
        return str(self._llm.model_config.dtype) if self._llm is not None else ""

    def make_images(self, model: VllmModel) -> VllmImages | None:
        """Returns what shows images to the model; None if it sees none. It outlives this vLLM. Blocking."""
        return None if self._llm is None else make_images(self._llm.model_config, model)

    async def run(
        self,
        name: str,
        prompt: list[int],
        salt: str,
        params: SamplingParams,
        priority: int,
        images: Sequence[PlacedImage] = (),
    ) -> AsyncGenerator[Chunk | RunEnded, None]:
        """Yields the run's chunks, then one RunEnded. `name` is the request's name, `salt` the cache salt of its
        blocks, `images` those that the prompt names. Closing the generator aborts the run within one step. Raises
        SessileError."""
        llm = self._llm
        if llm is None:
            raise Unavailable("engine_unavailable", "The engine has been closed.")
        ends = set(params.stop_token_ids or ())
        # In the form that vLLM's own renderer gives it, a prompt needs no thread of vLLM's and no `await` on its way to
        # the scheduler: a run is cancelled before it was sent or after, never in between.
        rendered = engine_input(prompt, images, salt)
        stream = llm.generate(rendered, params, name, lora_request=self._lora, priority=priority)
        cached: int | None = None
        try:
            if isinstance(params, CheckedParams):
                await asyncio.get_running_loop().run_in_executor(self._grammars, params.check_grammar, llm)
            async for output in stream:
                if cached is None:
                    cached = output.num_cached_tokens
                answer = output.outputs[0]
                tokens = tuple(answer.token_ids)
                reason = answer.finish_reason
                if reason == "stop" and tokens and (answer.stop_reason is None or tokens[-1] in ends):
                    tokens = tokens[:-1]
                if tokens or answer.text:
                    logprobs = public_logprobs(tokens, answer.logprobs or (), params.logprobs or 0)
                    yield Chunk(tokens, answer.text, logprobs, cached_tokens=cached or 0)
                if reason is not None:
                    if reason == "error" and EMITTED in (params.extra_args or ()):
                        raise unfit_continuation()
                    if reason not in ("stop", "length", "abort"):
                        raise _refused(params, f"it ended with {reason}")
                    yield RunEnded(reason, cached or 0)
                    return
        except EngineDeadError as exc:
            self.dead = self.dead or self._llm is llm  # who was slow to read hears it when another one has begun
            raise EngineLost("engine_lost", "The model's engine has died.") from exc
        except (ValueError, VLLMClientError) as exc:
            raise _refused(params, str(exc)) from exc
        finally:
            await stream.aclose()

    async def score(self, name: str, prompt: list[int], top: int) -> list[TokenScore]:
        """Returns the scores of a prompt. All of the prompt is computed, because vLLM uses no cached blocks for this.
        Raises SessileError."""
        llm = self._llm
        if llm is None:
            raise Unavailable("engine_unavailable", "The engine has been closed.")
        params = scoring_params(top)
        rendered: dict[str, Any] = {"type": "token", "prompt_token_ids": prompt}
        stream = llm.generate(rendered, params, name, lora_request=self._lora, priority=0)
        try:
            async for output in stream:
                if output.finished:
                    return token_scores(prompt, output.prompt_logprobs or [None], output.outputs[0].logprobs[0])
        except EngineDeadError as exc:
            self.dead = self.dead or self._llm is llm
            raise EngineLost("engine_lost", "The model's engine has died.") from exc
        except (ValueError, VLLMClientError) as exc:
            raise _refused(params, str(exc)) from exc
        finally:
            await stream.aclose()
        raise Unavailable("engine_unavailable", "The model's engine cut an answer short.")

    async def abort(self, names: list[str]) -> None:
        if self._llm is not None and names:
            await self._llm.abort(names)

    async def reset(self) -> bool:
        """Drops every cached block of the device. Returns False if that is impossible because some blocks are in
        use."""
        return self._llm is not None and bool(await self._llm.reset_prefix_cache())

    # -- inside ------------------------------------------------------------------------------------------

    @property
    def _lora(self) -> LoRARequest | None:
        return None if self._adapter is None else LoRARequest(self._adapter.path.name, 1, str(self._adapter.path))

    async def _load_adapter(self, llm: AsyncLLM) -> None:
        if self._adapter is None:
            return
        try:
            await llm.add_lora(self._lora)
        except EngineDeadError as exc:
            raise EngineLost("engine_lost", "The model's engine has died.") from exc
        except Exception as exc:  # what its worker raises comes as a plain one
            raise BadInput(
                "bad_model_file",
                f"vLLM cannot use the adapter {self._adapter.path}: {exc}. It must be LoRA for the model served.",
                param="vllm_adapter",
            ) from exc

    async def _first_run(self) -> None:
        """Makes a first run, so that nobody waits for what vLLM and its processes prepare at their first use."""
        assert self._llm is not None
        await self._llm.get_supported_tasks()
        async with contextlib.aclosing(self.run("first", [0] * _FIRST_TOKENS, "", prefill_params({}), 0)) as run:
            async for _ in run:
                pass

    def _prepare(self, folder: Path) -> None:
        """Sets the environment variables that vLLM reads, in this process and, by inheritance, in those that it
        starts."""
        variables = {"VLLM_NO_USAGE_STATS": "1", "VLLM_RPC_BASE_PATH": str(folder), "VLLM_XGRAMMAR_CACHE_MB": "64"}
        variables["TOKENIZERS_PARALLELISM"] = "false"  # a text is one task; its threads would not outlive a fork
        variables["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"  # a fork would have the memory that holds our secrets
        if not any(name in self.options.engine_args for name in _MULTI_NODE_ARGS):
            variables |= {"VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": _LOOPBACK}
        if current_platform.is_cpu():
            variables |= {
                # With this the scheduler's process is the worker too: one process fewer to hand tensors to.
                "VLLM_ENABLE_V1_MULTIPROCESSING": "0" if self._single else "1",
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                "OMP_NUM_THREADS": str(self.options.threads),
            }
        for name, value in variables.items():
            os.environ[name] = value

    @property
    def _single(self) -> bool:
        sizes = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
        return all(self.options.engine_args.get(name, 1) == 1 for name in sizes)

    def _arguments(self, context_window: int, connector_folder: str | None) -> dict[str, Any]:
        options = self.options
        arguments: dict[str, Any] = {
            "model": str(options.model_path),
            "max_model_len": context_window,
            "max_num_seqs": options.slots,
            "block_size": options.block_tokens,
            "enable_prefix_caching": True,
            # with priorities vLLM's own scheduler serves KV that was never computed: see `_preempt_request` of ours
            "scheduling_policy": "priority" if self.has_own_scheduler else "fcfs",
            "mm_processor_cache_gb": 0,  # images come processed
            "disable_log_stats": True,
            "enable_log_requests": False,
        }
        kv_bytes = options.device_kv_bytes or (_CPU_KV_BYTES if current_platform.is_cpu() else 0)
        if kv_bytes:
            arguments["kv_cache_memory_bytes"] = kv_bytes
        if options.device_blocks:
            arguments["num_gpu_blocks_override"] = options.device_blocks
        if self._adapter is not None:
            rank = next(most for most in _RANKS if most >= self._adapter.rank)
            arguments |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": rank}
        # Not vLLM's choice, which takes seconds of every core for a string with a length: this one works as it goes.
        arguments["structured_outputs_config"] = StructuredOutputsConfig(backend="guidance")
        if self.has_own_scheduler:
            arguments["scheduler_cls"] = SCHEDULER
            usual_ms = TARGET_CPU_MS if current_platform.is_cpu() else TARGET_GPU_MS
            arguments["additional_config"] = {STEP_TARGET: options.step_target_ms or usual_ms}
        if current_platform.is_cpu():
            arguments["enforce_eager"] = True  # compiled code takes minutes and has answered wrongly on CPUs
            if self.is_known_version:
                arguments["worker_cls"] = "inference.vllm.worker.CpuWorker"
            if self._single:
                arguments["distributed_executor_backend"] = "uni"
        if connector_folder is not None:
            arguments["kv_transfer_config"] = KVTransferConfig(
                kv_connector="SessileConnector",
                kv_connector_module_path="inference.vllm.connector",
                kv_role="kv_both",
                kv_connector_extra_config={"folder": connector_folder, "front": os.getpid()},
                kv_load_failure_policy="recompute",
            )
        given = dict(options.all_engine_args)
        if isinstance(config := given.get("additional_config"), dict):
            given["additional_config"] = arguments.get("additional_config", {}) | config
        return arguments | given


def _refused(params: SamplingParams, why: str) -> SessileError:
    if params.structured_outputs is not None:
        return BadInput("invalid_schema", f"The schema cannot be followed: {why[:200]}", param="text.format")
    if "context" in why or "max_model_len" in why:
        return BadInput("context_length_exceeded", "The prompt does not fit the model's context window.")
    log.warning("request_refused", engine="vllm", reason=why)
    return Internal("engine_failed", "The model's engine failed.")
