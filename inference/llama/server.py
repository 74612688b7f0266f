"""Starts and stops llama-server inside this process, and undoes what it leaves behind.

xllamacpp runs the server's threads beside the interpreter and offers an address on loopback. It also replaces the
process's handlers of SIGINT and SIGTERM, which would swallow a drain: they are put back right after.
HTTP is used rather than its in-process calls, because those block one Python thread per stream and take the
interpreter's lock for every token.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import xllamacpp

from inference.llama.http import HttpClient
from inference.llama.options import LlamaOptions
from sessions.model.errors import Unavailable

BUILD = f"llama.cpp/xllamacpp-{xllamacpp.__version__}"


class LlamaServer:
    """One server with one model. `start` before anything else; `stop` frees the memory."""

    def __init__(self, options: LlamaOptions, context_window: int, staging_folder: Path) -> None:
        self._parameters = _parameters(options, context_window, staging_folder)
        self._server: Any = None
        self.http: HttpClient | None = None

    async def start(self) -> HttpClient:
        """Loads the model in a thread. Raises Unavailable when llama.cpp refuses it."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.run_in_executor(None, xllamacpp.Server, self._parameters)
        except Exception as exc:
            raise Unavailable(
                "model_not_loaded",
                "llama.cpp could not load the model. It may be of an architecture that this build does not know, or"
                " need more memory: try fewer --slots or a smaller --context.",
            ) from exc
        finally:
            _restore_signal_handlers()
        address = urlsplit(self._server.listening_address)
        assert address.hostname is not None and address.port is not None
        self.http = HttpClient(address.hostname, address.port)
        return self.http

    async def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            boxed = [server]
            del server
            await asyncio.get_running_loop().run_in_executor(None, boxed.clear)  # its destructor joins threads


def _restore_signal_handlers() -> None:
    if threading.current_thread() is not threading.main_thread():
        return  # Python cannot set handlers here; then its own were not set by this loop either
    for number in (signal.SIGINT, signal.SIGTERM):
        handler = signal.getsignal(number)
        if handler is not None:
            signal.signal(number, handler)


def piece_tokens(options: LlamaOptions) -> int:
    """How many tokens of a prompt one step computes, and how long the pieces are that prompts are sent in.

    On a CPU 64 are computed as fast as 512, and everybody else waits less; below 64 llama.cpp takes another way through
    attention, on which a long prompt takes up to twice as long."""
    return options.batch_tokens or (512 if options.gpu_layers else 64)


def _parameters(options: LlamaOptions, context_window: int, staging_folder: Path) -> Any:
    p = xllamacpp.CommonParams()
    p.model.path = str(options.model_path)
    p.hostnames = ["127.0.0.1"]
    p.port = 0
    p.n_parallel = options.slots
    p.n_ctx = context_window * options.slots  # divided among the slots
    p.kv_unified = False
    p.n_batch = piece_tokens(options) + options.slots  # a piece stays whole beside those that decode
    p.n_ubatch = min(piece_tokens(options), 512)
    p.n_gpu_layers = options.gpu_layers
    p.cpuparams.n_threads = options.threads
    p.cpuparams_batch.n_threads = options.threads
    # Per stream one connection, plus one for saving or restoring each slot, plus short calls.
    p.n_threads_http = 2 * options.slots + 6
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
