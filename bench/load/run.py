"""Puts a load on a server that speaks OpenAI's API, and reports what its users feel: percentiles, and plots of them.

    make load ARGS="--url http://127.0.0.1:8080"
    make load ARGS="--url http://127.0.0.1:8080 --profile turns --users 16 --seconds 120"

aiperf sends and measures (in `.venv-load`, an environment of its own). What is ours is the prompts: each profile is a
file of conversations made from a seed, whose prompts differ from their first word on, so that no cache of prefixes
answers in the model's place. Tokens are counted by the server's `usage`; the tokenizer that aiperf asks for counts
bytes and is used for nothing that is reported. A key is read from SESSILE_API_KEY.

`dist/load/PROFILE` gets aiperf's table (`.csv`, `.json`, one line a request in `.jsonl`) and its plots.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
AIPERF: Final = ROOT / ".venv-load" / "bin" / "aiperf"
PROFILES: Final = ("short", "long", "tools", "turns")
SEED: Final = 7
WORDS: Final = (
    *("river", "stone", "amber", "cloud", "train", "paper", "winter", "garden"),
    *("signal", "copper", "lemon", "harbour", "meadow", "engine", "letter"),
)
# (words of the message, milliseconds that its user thinks before it): people who chat, made up and not recorded.
TURNS: Final = (
    ((30, 0), (14, 3100), (22, 6400)),
    ((120, 0), (18, 8200)),
    ((12, 0), (9, 1900), (11, 2400), (16, 5000)),
    ((400, 0), (25, 12000), (31, 9300)),
)
TOOLS: Final = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Tells the weather of a place.",
            "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
        },
    }
]


def conversations(profile: str, count: int, seed: int = SEED) -> list[dict[str, Any]]:
    """Makes `count` conversations of a profile in aiperf's `multi_turn` form; the same seed makes the same ones."""
    chance = random.Random(seed)

    def words(number: int) -> str:
        return " ".join(chance.choices(WORDS, k=number))

    made: list[dict[str, Any]] = []
    for number in range(count):
        turns: list[dict[str, Any]]
        match profile:
            case "short":
                turns = [{"text": words(30)}]
            case "long":
                turns = [{"text": words(1500)}]
            case "tools":
                turns = [{"text": f"What is the weather in {words(2)}? Use the tool."}]
            case _:
                turns = [{"text": words(size), "delay": delay} for size, delay in TURNS[number % len(TURNS)]]
        made.append({"session_id": f"{profile}-{number}", "turns": turns})
    return made


def aiperf_command(given: argparse.Namespace, model: str, folder: Path) -> list[str]:
    """Returns aiperf's command line for what was asked; `folder` has the conversations and the tokenizer."""
    command = [str(AIPERF), "profile", "--model", model, "--url", given.url, "--endpoint-type", "chat", "--streaming"]
    command += ["--use-server-token-count", "--tokenizer", str(folder / "tokenizer")]
    command += ["--input-file", str(folder / "conversations.jsonl"), "--custom-dataset-type", "multi_turn"]
    command += ["--artifact-dir", str(folder), "--auto-plot", "--benchmark-duration", str(given.seconds)]
    command += ["--request-rate", str(given.rate)] if given.rate else ["--concurrency", str(given.users)]
    extra: dict[str, Any] = {"max_tokens": given.max_tokens} | ({"tools": TOOLS} if given.profile == "tools" else {})
    return [*command, "--extra-inputs", json.dumps(extra)]


def first_model(url: str, key: str) -> str:
    request = urllib.request.Request(f"{url.rstrip('/')}/v1/models")
    if key:
        request.add_header("Authorization", f"Bearer {key}")
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(json.load(answer)["data"][0]["id"])


def write_tokenizer(folder: Path) -> None:
    """Writes a tokenizer of the 256 bytes: aiperf loads one even where the server counts."""
    program = """
import json, pathlib, sys
from tokenizers import Tokenizer, models, pre_tokenizers
letters = sorted(pre_tokenizers.ByteLevel.alphabet())
made = Tokenizer(models.BPE(vocab={letter: id for id, letter in enumerate(letters)}, merges=[]))
made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
folder = pathlib.Path(sys.argv[1])
made.save(str(folder / "tokenizer.json"))
settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "!", "eos_token": "!"}
(folder / "tokenizer_config.json").write_text(json.dumps(settings))
"""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run([AIPERF.with_name("python"), "-c", program, folder], check=True)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--model", default="", help="the first that the server lists, where none is named")
    parser.add_argument("--profile", choices=PROFILES, default="turns")
    parser.add_argument("--users", type=int, default=8, help="conversations at once")
    parser.add_argument("--rate", type=float, default=0.0, help="requests a second, whatever the server does")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--max-tokens", type=int, default=128)
    given = parser.parse_args(arguments)
    key = os.environ.get("SESSILE_API_KEY", "").strip()
    folder = ROOT / "dist" / "load" / given.profile
    write_tokenizer(folder / "tokenizer")
    lines = [json.dumps(each) for each in conversations(given.profile, 400)]
    (folder / "conversations.jsonl").write_text("\n".join(lines) + "\n")
    command = aiperf_command(given, given.model or first_model(given.url, key), folder)
    return subprocess.run([*command, *(["--api-key", key] if key else [])], cwd=folder).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
