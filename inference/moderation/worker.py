"""The moderation worker: a process of its own, so that models and long texts cost the event loop nothing.

    python -m inference.moderation.worker            # speaks `wire` on its standard streams; ends with its server

One request at a time; what it is asked while it works waits in the pipe, and the server puts waiting texts into one
batch. A failure inside a request is its answer. It reads no settings and keeps no text.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from inference.moderation.input_filter import scan_message
from inference.moderation.policy import Policies
from inference.moderation.scan import Scanner
from inference.moderation.worker_frames import (
    JudgeItem,
    JudgeRequest,
    JudgeResult,
    LoadRequest,
    Request,
    WorkerReply,
    encode_frame,
    read_request,
)

VERSIONS_MAX = 64


class ModerationWorker:
    def __init__(self) -> None:
        self._scanners: dict[str, Scanner] = {}
        self._models: dict[str, Any] = {}

    def answer(self, request: Request) -> WorkerReply:
        try:
            match request:
                case LoadRequest():
                    return WorkerReply(versions=self._load(request))
                case JudgeRequest():
                    scores = self._judged(request.items)
                    pairs = zip(scores, request.items, strict=True)
                    return WorkerReply(seen=[JudgeResult(each, self._places(item)) for each, item in pairs])
        except Exception as error:  # noqa: BLE001 - the server decides what a failure means
            return WorkerReply(error=_error_text(error))

    def _load(self, request: LoadRequest) -> dict[str, str]:
        """Returns the version of each model."""
        policies = msgspec.json.decode(request.policies, type=Policies)
        for policy in policies.policies.values():
            self._scanners[policy.version] = Scanner(policy.input)
        while len(self._scanners) > max(VERSIONS_MAX, len(policies.policies)):
            del self._scanners[next(iter(self._scanners))]
        if request.models:
            from inference.moderation import classifiers

            for name in request.models:
                if name not in self._models:
                    self._models[name] = classifiers.load_classifier(name)
        gc.collect()
        gc.freeze()  # models live as long as the process and are not worth looking at again
        return {name: model.version for name, model in self._models.items()}

    def _judged(self, items: Sequence[JudgeItem]) -> Sequence[dict[str, Any] | str]:
        """Each model sees all of its texts at once; where one errs, each goes by itself: the others have theirs."""
        results: list[dict[str, Any]] = [{} for _ in items]
        try:
            for name in {name for item in items for name in item.models}:
                asked = [index for index, item in enumerate(items) if name in item.models]
                scores = self._models[name].judge([items[index].text for index in asked])
                for index, score in zip(asked, scores, strict=True):
                    results[index][name] = score
        except Exception as error:  # noqa: BLE001 - what patterns find is told all the same
            return [_error_text(error)] if len(items) == 1 else [self._judged((item,))[0] for item in items]
        return results

    def _places(self, item: JudgeItem) -> list[Any] | str:
        if not item.version:
            return []
        try:
            found = scan_message(self._scanners[item.version], item.text)
        except Exception as error:  # noqa: BLE001 - what models say is told all the same
            return _error_text(error)
        return [(list(hit), start, end) for hit, start, end in found]


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's; this process ends with its pipe
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    gc.set_threshold(50_000, 20, 50)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # whatever a library prints is no answer
    worker = ModerationWorker()
    while (request := read_request(sys.stdin.buffer)) is not None:
        answers.write(encode_frame(worker.answer(request)))


if __name__ == "__main__":
    main()
