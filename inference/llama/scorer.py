"""Scores prompts with llama.cpp: how probable each token of a text is behind those before it, in one prefill.

llama-server reports probabilities of what it writes and of nothing that it reads. So a prompt is computed here, by the
same library and the same model file in a context of its own, which lasts as long as the prompt takes. The file is
mapped, so its weights are in memory once. It runs on the CPU, whatever the server uses, one prompt at a time.

The library has no Python interface for this, so its C interface is called (`library`).
"""

from __future__ import annotations

import asyncio
import ctypes
import struct
import threading
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from inference.llama.library import ParameterBlock, Signatures, UnknownBuild, model_parameters, open_library
from sessions.model.errors import Unavailable
from sessions.model.generation import TokenScore
from sessions.model.types import Tokens

PIECE_TOKENS: Final = 64  # computed in one step: the same step as llama-server's on a CPU, so the same rounding
_TYPES_AT: Final = 104  # of keys and values, in llama_context_params; f16 by default
_F16: Final = 1
_Q8_0: Final = 8
_WINDOW_STEP: Final = 256


class _Batch(ctypes.Structure):
    _fields_ = (
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.c_void_p),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    )


_SIGNATURES: Final[Signatures] = {
    "llama_context_default_params": (ParameterBlock, ()),
    "llama_init_from_model": (ctypes.c_void_p, (ctypes.c_void_p, ParameterBlock)),
    "llama_free": (None, (ctypes.c_void_p,)),
    "llama_set_n_threads": (None, (ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32)),
    "llama_batch_init": (_Batch, (ctypes.c_int32, ctypes.c_int32, ctypes.c_int32)),
    "llama_batch_free": (None, (_Batch,)),
    "llama_decode": (ctypes.c_int32, (ctypes.c_void_p, _Batch)),
    "llama_get_logits": (ctypes.POINTER(ctypes.c_float), (ctypes.c_void_p,)),
}


class PromptScorer:
    """Scores prompts of one model. The model is loaded for the first prompt; `close` frees its memory."""

    def __init__(self, model_path: Path, *, vocabulary_size: int, threads: int, kv_is_8bit: bool = False) -> None:
        self._path = model_path
        self._size = vocabulary_size
        self._threads = threads
        self._kv_type = _Q8_0 if kv_is_8bit else _F16
        self._turn = asyncio.Lock()
        self._library: Any = None
        self._model: int | None = None

    async def score(self, prompt: Tokens, top: int) -> list[TokenScore]:
        """Returns one score for each token of the prompt, about the token that follows it; each has the `top` likeliest
        tokens too. Raises Unavailable if this build of llama.cpp cannot score."""
        async with self._turn:
            left = threading.Event()
            work = asyncio.ensure_future(asyncio.to_thread(self._score, list(prompt), top, left))
            try:
                return await asyncio.shield(work)
            except asyncio.CancelledError:
                left.set()  # the thread ends behind the piece that it computes
                await asyncio.wait([work])
                raise

    async def close(self) -> None:
        async with self._turn:
            if self._model is not None:
                await asyncio.to_thread(self._library.llama_model_free, self._model)
            self._model = None

    def _load(self) -> None:
        try:
            library = open_library(_SIGNATURES)
            model = model_parameters(library)
        except UnknownBuild as exc:
            raise _unfit() from exc
        context = library.llama_context_default_params()
        if struct.unpack_from("<IIII", context.bytes) != (512, 2048, 512, 1):
            raise _unfit()
        if struct.unpack_from("<II", context.bytes, _TYPES_AT) != (_F16, _F16):
            raise _unfit()
        self._library, self._model = library, library.llama_model_load_from_file(str(self._path).encode(), model)
        if self._model is None:
            raise Unavailable("engine_unavailable", "llama.cpp could not load the model to score a prompt with it.")

    def _score(self, prompt: list[int], top: int, left: threading.Event) -> list[TokenScore]:
        if self._model is None:
            self._load()
        library = self._library
        parameters = library.llama_context_default_params()
        window = -(-len(prompt) // _WINDOW_STEP) * _WINDOW_STEP
        struct.pack_into("<III", parameters.bytes, 0, window, PIECE_TOKENS, PIECE_TOKENS)
        struct.pack_into("<II", parameters.bytes, _TYPES_AT, self._kv_type, self._kv_type)
        context = library.llama_init_from_model(self._model, parameters)
        if context is None:
            raise Unavailable("engine_unavailable", "There is no memory to score this prompt in.")
        batch = library.llama_batch_init(PIECE_TOKENS, 0, 1)
        scores: list[TokenScore] = []
        try:
            library.llama_set_n_threads(context, self._threads, self._threads)
            for begin in range(0, len(prompt), PIECE_TOKENS):
                if left.is_set():
                    break
                piece = prompt[begin : begin + PIECE_TOKENS]
                batch.n_tokens = len(piece)
                for index, token in enumerate(piece):
                    batch.token[index], batch.pos[index], batch.logits[index] = token, begin + index, 1
                    batch.n_seq_id[index], batch.seq_id[index][0] = 1, 0
                if library.llama_decode(context, batch):
                    raise Unavailable("engine_unavailable", "llama.cpp could not compute this prompt.")
                logits = np.ctypeslib.as_array(library.llama_get_logits(context), (len(piece), self._size))
                scores += _scores(logits, prompt[begin + 1 : begin + 1 + len(piece)], top)
        finally:
            library.llama_batch_free(batch)
            library.llama_free(context)
        return scores


def _scores(logits: npt.NDArray[np.float32], following: list[int], top: int) -> list[TokenScore]:
    """Returns one score for each row of logits; the last row of a prompt has no following token."""
    scores = []
    for row, values in enumerate(logits.astype(np.float64)):
        peak = values.max()
        logprobs = values - (peak + np.log(np.exp(values - peak).sum()))
        best = np.argpartition(-logprobs, top)[:top]
        best = best[np.argsort(-logprobs[best])]
        scores.append(
            TokenScore(
                float(logprobs[following[row]]) if row < len(following) else None,
                tuple((int(token), float(logprobs[token])) for token in best),
            )
        )
    return scores


def _unfit() -> Unavailable:
    message = "This build of llama.cpp cannot score prompts: leave out 'echo' or 'logprobs'."
    return Unavailable("engine_unavailable", message, retryable=False)
