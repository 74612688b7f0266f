"""Turns texts into vectors in a process of its own, with a low claim on the processor.

    python -m inference.embedding.worker NICENESS     # speaks `frames` on its standard streams

It reads no settings and keeps no text. An input that the model cannot take, or that makes a library fail, costs the
request that it came with.
"""

from __future__ import annotations

import os
import resource
import signal
import sys

import msgspec

from inference.embedding.frames import (
    DecodeTokens,
    EmbedBatch,
    EmbeddingReply,
    RankBatch,
    SplitText,
    WorkerRequest,
    read_request,
)
from inference.embedding.packaged import BadInputs, PackagedModel
from inference.worker_process import encode_frame


def answer(model: PackagedModel, request: WorkerRequest) -> EmbeddingReply:
    """Answers a request with the model. Raises nothing but MemoryError."""
    try:
        match request:
            case EmbedBatch(inputs):
                vectors, tokens = model.embed(inputs)
                return EmbeddingReply(vectors=tuple(vectors), tokens=tokens)
            case RankBatch(query, documents):
                scores, tokens = model.rank(query, documents)
                return EmbeddingReply(scores=tuple(scores), tokens=tokens)
            case SplitText(text):
                starts, ends = model.split(text)
                return EmbeddingReply(starts=tuple(starts), ends=tuple(ends), tokens=len(starts))
            case DecodeTokens(inputs):
                return EmbeddingReply(texts=tuple(model.decode(inputs)))
    except BadInputs as error:
        return EmbeddingReply(error=str(error), refused=error.index, too_long=error.too_long)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - a library's bug refuses this request alone
        return EmbeddingReply(error=f"the model failed ({type(error).__name__})")


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's; this process ends with its pipe
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(int(sys.argv[1]))
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # whatever a library prints is no answer
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        model = PackagedModel()
        model.embed(("ready",))
    except Exception as error:  # noqa: BLE001 - whatever it is, the server's log has it
        sys.exit(f"the embedding model cannot be loaded: {type(error).__name__}: {error}")
    answers.write(encode_frame(EmbeddingReply()))
    while True:
        try:
            request = read_request(sys.stdin.buffer)
        except msgspec.MsgspecError:
            os.abort()  # no server of this version writes that
        if request is None:
            return
        answers.write(encode_frame(answer(model, request)))


if __name__ == "__main__":
    main()
