"""Runs classifiers and scans long texts in a process of its own, so that they cost the event loop nothing.

    python -m inference.moderation.worker     # speaks `worker_frames` on its standard streams; ends with its server

One request at a time; the next ones wait in the pipe, and the server puts waiting texts into one batch. A failure
inside a request is its answer. It reads no settings and keeps no text.
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
    read_request,
)
from inference.worker_process import encode_frame

VERSIONS_MAX = 64


class ModerationWorker:
    """Answers requests with the policies and models that were loaded."""

    def __init__(self) -> None:
        self._scanners: dict[str, Scanner] = {}
        self._models: dict[str, Any] = {}

    def answer(self, request: Request) -> WorkerReply:
        try:
            match request:
                case LoadRequest():
                    return WorkerReply(versions=self._load(request))
                case JudgeRequest():
                    scores = self._scores(request.items)
                    pairs = zip(scores, request.items, strict=True)
                    return WorkerReply(results=[JudgeResult(each, self._hits(item)) for each, item in pairs])
        except Exception as error:  # noqa: BLE001 - the server decides what a failure means
            return WorkerReply(error=_error_text(error))

    def _load(self, request: LoadRequest) -> dict[str, str]:
        """Loads the policies and models; returns the version of each model."""
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
        gc.freeze()  # models live as long as the process and need no further collection
        return {name: model.version for name, model in self._models.items()}

    def _scores(self, items: Sequence[JudgeItem]) -> Sequence[dict[str, Any] | str]:
        """Runs each model on all of its texts at once. If a model fails at that, it runs on each text by itself, so
        that only the text at fault has no result."""
        results: list[dict[str, Any]] = [{} for _ in items]
        try:
            for name in {name for item in items for name in item.models}:
                indices = [index for index, item in enumerate(items) if name in item.models]
                scores = self._models[name].judge([items[index].text for index in indices])
                for index, score in zip(indices, scores, strict=True):
                    results[index][name] = score
        except Exception as error:  # noqa: BLE001 - the patterns' hits are returned all the same
            return [_error_text(error)] if len(items) == 1 else [self._scores((item,))[0] for item in items]
        return results

    def _hits(self, item: JudgeItem) -> list[Any] | str:
        if not item.version:
            return []
        try:
            hits = scan_message(self._scanners[item.version], item.text)
        except Exception as error:  # noqa: BLE001 - the models' scores are returned all the same
            return _error_text(error)
        return [(list(hit), start, end) for hit, start, end in hits]


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
