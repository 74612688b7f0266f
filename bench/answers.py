"""Thirty questions that decide which of the models that packages ship is the default.

    python -m bench.answers --model qwen2.5-coder-1.5b

Each is asked alone over the OpenAI door of a server of ours, without a system prompt, at temperature 0, with at most
200 tokens. An answer is right when all of `right` are in it and none of `wrong` (questions.toml, small letters and
capitals alike). The questions were written before any model was tried on them. Bar: the default answers 20 of 30.
"""

from __future__ import annotations

import argparse
import json
import re
import time
import tomllib
import urllib.request
from pathlib import Path
from typing import Any

from bench.support import report, run_bench
from tests.support.doors.server_process import ServerProcess

QUESTIONS = Path(__file__).with_name("questions.toml")
TOKENS_MAX = 200


def questions() -> list[dict[str, Any]]:
    return list(tomllib.loads(QUESTIONS.read_text())["questions"])


def is_right(question: dict[str, Any], answer: str) -> bool:
    text = answer.strip()

    def has(pattern: str) -> bool:
        return re.search(pattern, text, re.IGNORECASE) is not None

    return all(map(has, question["right"])) and not any(map(has, question.get("wrong", ())))


def answer_of(port: int, text: str) -> tuple[str, int]:
    body = {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": TOKENS_MAX}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        json.dumps({"model": served(port), **body}).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=300) as answered:
        completion = json.load(answered)
    return completion["choices"][0]["message"]["content"] or "", completion["usage"]["completion_tokens"]


def served(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=30) as listed:
        return str(json.load(listed)["data"][0]["id"])


def main(arguments: argparse.Namespace) -> bool:
    flags = ["--model", arguments.model, "--slots", "1", "--threads", str(arguments.threads)]
    asked, right, tokens = questions(), 0, 0
    with ServerProcess(*flags) as server:
        started = time.monotonic()
        first_s = 0.0
        for question in asked:
            text, count = answer_of(server.port, question["text"])
            first_s = first_s or time.monotonic() - started
            good = is_right(question, text)
            right += good
            tokens += count
            shown = " ".join(text.split())
            print(f"{'right' if good else 'WRONG'}  {question['text'][:60]:<60}  {shown[:100]}")
        seconds = time.monotonic() - started
    figures = {
        "model": arguments.model,
        f"right of {len(asked)} (bar 20)": right,
        "first answer s": first_s,
        "tokens": tokens,
        "seconds": seconds,
    }
    report("answers", figures)
    return right >= 20


if __name__ == "__main__":
    run_bench(main, __doc__, model="qwen2.5-coder-1.5b", threads=2)
