"""Starts and stops llama-server inside this process, and undoes what it leaves behind.

xllamacpp runs the server's threads beside the interpreter. The server knows no keys and serves whoever reaches it, so
it listens on a unix socket in a private folder (mode 0700), and on no port. It also replaces the process's handlers of
SIGINT and SIGTERM, which would swallow a drain: they are put back right after.
HTTP is used rather than its in-process calls, because those block one Python thread per stream and take the
interpreter's lock for every token.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from pathlib import Path
from typing import Any, Final

import xllamacpp

from inference.http_client import HttpClient
from inference.llama.grammar_cache import GRAMMAR_CACHE
from inference.llama.options import LlamaOptions
from inference.llama.shown_prompts import COUNTING_TEMPLATE
from inference.private_folder import PrivateFolder, create_socket_folder
from inference.step_budget import TARGET_CPU_MS, TARGET_GPU_MS, StepBudget
from sessions.model.errors import Unavailable

BUILD: Final = f"llama.cpp/xllamacpp-{xllamacpp.__version__}"
# Of the session's own text alone: by a pool of all sessions one could see from the speed what others wrote. Drafts
# follow an earlier place with as many equal tokens: with fewer, drafts that fail make ordinary text slower.
MATCH_TOKENS: Final = 6
DRAFT_TOKENS: Final = 16
UBATCH_CPU: Final = 64
"""Tokens of one pass on a CPU: 64 are computed as fast as 512, and below 64 llama.cpp takes another way through
attention, on which a long prompt takes up to twice as long."""
SOCKET: Final = "llama.sock"  # by its ending llama-server knows that it is no host name


class LlamaServer:
    """One llama-server with one model, in this process. `start` before anything else; `stop` frees the memory."""

    def __init__(self, options: LlamaOptions, context_window: int, staging_folder: Path) -> None:
        self._model_path = options.model_path
        self._parameters = _parameters(options, context_window, staging_folder)
        self._folder: PrivateFolder | None = None
        self._server: Any = None
        self._http: HttpClient | None = None

    async def start(self) -> HttpClient:
        """Loads the model in a thread. Raises Unavailable when llama.cpp refuses it."""
        loop = asyncio.get_running_loop()
        self._folder = await loop.run_in_executor(None, create_socket_folder, len(SOCKET))
        path = str(self._folder.path / SOCKET)
        self._parameters.hostnames = [path]
        try:
            self._server = await loop.run_in_executor(None, _started, self._parameters, path)
        except Unavailable:
            await self.stop()
            raise
        except Exception as exc:
            await self.stop()
            raise Unavailable(
                "model_not_loaded",
                "llama.cpp could not load the model. It may be of an architecture that this build does not know, or"
                " need more memory: try fewer --slots or a smaller --context."
                + (" Or the --projector belongs to another model." if self._parameters.mmproj.path else ""),
            ) from exc
        finally:
            _restore_signal_handlers()
        self._http = HttpClient.unix(path)
        return self._http

    async def has_grammars(self) -> bool:
        """Returns whether requests to this server may name a JSON schema: if no other server of the process has done
        so and still runs."""
        if GRAMMAR_CACHE.is_owned_by(self):
            return True
        return await asyncio.to_thread(GRAMMAR_CACHE.claim, self, self._model_path)

    async def stop(self) -> None:
        """Stops the server and frees its memory. Idempotent. Requests are ended first: the destructor holds Python's
        lock until they have ended, so that nobody could send the rest of one."""
        if self._http is not None:
            await self._http.close()
        server, self._server = self._server, None
        folder, self._folder = self._folder, None
        loop = asyncio.get_running_loop()
        if server is not None:
            boxed = [server]
            del server
            await loop.run_in_executor(None, boxed.clear)  # its destructor joins threads
            GRAMMAR_CACHE.release(self)
        if folder is not None:
            await loop.run_in_executor(None, folder.close)


def _started(parameters: Any, path: str) -> Any:
    """Returns a server whose loop runs: one that is destroyed before, which a cancelled start does, would never end.
    Blocking. Raises Unavailable for one that does not listen on the socket."""
    server = xllamacpp.Server(parameters)
    if (address := server.listening_address) != f"unix://{path}":
        raise Unavailable("engine_unavailable", f"This build of llama.cpp listens on {address}, not on a socket.")
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        connection.sendall(b"GET /lora-adapters HTTP/1.0\r\n\r\n")  # which the loop answers
        connection.recv(1)
    return server


def _restore_signal_handlers() -> None:
    if threading.current_thread() is not threading.main_thread():
        return  # Python cannot set handlers here; then its own were not set by this loop either
    for number in (signal.SIGINT, signal.SIGTERM):
        handler = signal.getsignal(number)
        if handler is not None:
            signal.signal(number, handler)


def batch_tokens(options: LlamaOptions) -> int:
    """Returns how many tokens of prompts one step computes at most."""
    return options.batch_tokens or (2048 if options.gpu_layers else 512)


def make_budget(options: LlamaOptions) -> StepBudget:
    """Makes the token budget of llama-server's steps. A budget of more than `UBATCH_CPU` tokens is a multiple of
    that."""
    target_ms = options.step_target_ms or (TARGET_GPU_MS if options.gpu_layers else TARGET_CPU_MS)
    return StepBudget(target_ms / 1000, batch_tokens(options), unit=UBATCH_CPU)


def _parameters(options: LlamaOptions, context_window: int, staging_folder: Path) -> Any:
    p = xllamacpp.CommonParams()
    p.model.path = str(options.model_path)
    p.cors_origins = ""  # no page is let in, whatever its origin
    p.cors_credentials = False
    p.n_parallel = options.slots
    p.n_ctx = context_window * options.slots  # divided among the slots
    p.kv_unified = False
    p.n_batch = batch_tokens(options) + options.slots  # a piece stays whole beside those that decode
    p.n_ubatch = min(batch_tokens(options), 512 if options.gpu_layers else UBATCH_CPU)
    p.n_gpu_layers = options.gpu_layers
    p.no_op_offload = not options.gpu_layers  # or a build for a GPU computes prompts there though no layer is on it
    p.cpuparams.n_threads = options.threads
    p.cpuparams_batch.n_threads = options.threads
    # Per stream one connection, plus one for saving or restoring each slot, plus short calls.
    p.n_threads_http = 2 * options.slots + 6
    if options.speculation == "ngram":
        p.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
        p.speculative.ngram_simple.size_n, p.speculative.ngram_simple.size_m = MATCH_TOKENS, DRAFT_TOKENS
    if options.kv_dtype == "8bit":
        p.cache_type_k = p.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_Q8_0
        p.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED  # values want it
    if options.projector is not None:
        p.mmproj.path = str(options.projector)
        p.mmproj_use_gpu = options.gpu_layers > 0
        p.n_ubatch = p.n_batch  # or llama.cpp aborts at an image whose tokens see each other and do not fit
        p.use_jinja, p.chat_template = True, COUNTING_TEMPLATE
    p.ctx_shift = False  # the log decides what leaves the context
    p.cache_ram_mib = 0  # its own prompt cache has restored the wrong conversation
    p.cache_idle_slots = False
    p.slot_prompt_similarity = 0.0  # slots are ours to choose
    p.slot_save_path = f"{staging_folder}/"
    p.endpoint_slots = True
    p.fit_params = False
    p.warmup = False
    p.ui = False
    p.verbosity = 1  # errors only; they go to stderr
    return p
