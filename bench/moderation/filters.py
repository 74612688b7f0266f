"""The input chain's latency, and what the shipped filters find: precision and recall by category.

    python -m bench.moderation.filters                  # about a minute
    python -m bench.moderation.filters --rounds 2000
    python -m bench.moderation.filters --beside llama   # about three minutes

Latency: messages of 2,000 tokens (8,500 code points, 4.25 a token) through the whole chain of one policy: phrases,
personal data, secrets and toxicity, each message another one; alone, with eight at once, and alone
beside a process that keeps a core busy. Once more with names of people and places (spaCy through Presidio) added. Bar
(issue 34): p99 ≤ 5 ms.

`--beside llama`: beside llama.cpp in this process, one thread, while it answers 32 streams, as a server. Two messages
a second; stretches of 6 s with messages and without take turns (the order of `bench.pairs`). Bars: p99 ≤ 5 ms, and of
the streams' tokens a second at least 97% (mean of the pairs; its 95% lower bound is shown).

Quality: toxicity on the labelled texts in `bench/filters_data`, written for this project; personal data and secrets on
sentences made from templates with values drawn at random (seed 7), half of them near misses (wrong checksums, versions,
dates, order numbers, placeholders). The thresholds are the policies' default, 0.5; nothing was tuned on these. The
verdict on the latency bar is the last line.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvloop

from bench.pairs import ORDER
from bench.peer import MODEL
from bench.support import Option, command_line, lower_bound, percentile, report, spread
from inference.llama import LlamaEngine, LlamaOptions
from inference.moderation import PolicyFilterSet
from inference.moderation.patterns import is_card_number, is_iban
from sessions.model.generation import Chunk
from sessions.model.types import LOCAL_PRINCIPAL, Sampling
from sessions.ports import InputFilter
from tests.support.engines.engines import key, request

FOLDER = Path(__file__).parent / "filters_data"
CODE_POINTS = 8_500
BAR_MS = 5.0
WORDS = [  # of the messages
    word
    for line in (FOLDER / "toxicity_test.tsv").read_text().splitlines()
    if line[0] == "0"
    for word in line[2:].split()
]
POLICY = """
[policies.default]
deadline_ms = 10000
[policies.default.input]
phrases = { deny = ["project nightjar", "the blue ledger"], action = "flag" }
secrets = { action = "flag" }
toxicity = { action = "flag" }
pii = { action = "flag"KINDS }
"""
NAMES = ', kinds = ["email", "credit_card", "iban", "us_ssn", "phone", "ip_address", "person", "location"]'


def message(rng: random.Random, words: list[str]) -> str:
    """Prose with some numbers and addresses in it."""
    made: list[str] = []
    length = 0
    while length < CODE_POINTS:
        word = rng.choice(words)
        if rng.random() < 0.02:
            word = rng.choice(
                [str(rng.randrange(10**6)), "https://example.org/a?b=c", f"v{rng.randrange(9)}.1.{rng.randrange(99)}"]
            )
        made.append(word + rng.choice(["", "", "", "", "", "", ",", "."]))
        length += len(made[-1]) + 1
    return " ".join(made)[:CODE_POINTS]


async def timed(each: InputFilter, texts: list[str], at_once: int) -> list[float]:
    """Milliseconds that each message took."""
    took: list[float] = []
    rest = iter(texts)

    async def work() -> None:
        for text in rest:
            began = time.perf_counter()
            await each.check(LOCAL_PRINCIPAL, text)
            took.append((time.perf_counter() - began) * 1e3)

    await asyncio.gather(*(work() for _ in range(at_once)))
    return took


async def with_filter(policy: str, body: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy.toml"
        path.write_text(policy)
        filters = PolicyFilterSet(str(path))
        await filters.open()
        try:
            (each,) = filters.input_filters(LOCAL_PRINCIPAL)
            return await body(each)
        finally:
            await filters.close()


# -- what is found -----------------------------------------------------------------------------------------------------


def luhn_number(rng: random.Random, good: bool) -> str:
    while True:
        digits = "4" + "".join(rng.choices(string.digits, k=15))
        if is_card_number(digits) is good:
            return " ".join(digits[at : at + 4] for at in range(0, 16, 4)) if rng.random() < 0.7 else digits


def iban_number(rng: random.Random, good: bool) -> str:
    while True:
        text = "DE" + "".join(rng.choices(string.digits, k=20))
        if good:
            body = text[4:] + "131400"
            text = f"DE{98 - int(body) % 97:02d}{text[4:]}"
        if is_iban(text) is good:
            return " ".join(text[at : at + 4] for at in range(0, 22, 4)) if rng.random() < 0.7 else text


def token(rng: random.Random, length: int, letters: str = string.ascii_letters + string.digits) -> str:
    return "".join(rng.choices(letters, k=length))


def planted(rng: random.Random) -> list[tuple[str, str, bool]]:
    """(category, sentence, whether it holds one)."""
    n = rng.randrange
    name = token(rng, 6, string.ascii_lowercase)
    pairs: list[tuple[str, str, str]] = [  # category/kind, one, a near miss
        ("pii/email", f"{name}.{name[:3]}@{name}.example.org", f"{name} at example dot org"),
        ("pii/email", f"{name}+news@mail.{name}.de", f"@{name}"),
        ("pii/credit_card", luhn_number(rng, True), luhn_number(rng, False)),
        ("pii/iban", iban_number(rng, True), iban_number(rng, False)),
        ("pii/us_ssn", f"{n(100, 665)}-{n(10, 99)}-{n(1000, 9999)}", f"{n(901, 999)}-{n(10, 99)}-{n(1000, 9999)}"),
        ("pii/phone", f"+49 30 {n(1000000, 99999999)}", f"{n(100, 999)}/{n(10, 99)}"),
        ("pii/phone", f"({n(201, 989)}) {n(201, 989)}-{n(1000, 9999)}", f"20{n(10, 26)}-{n(10, 12)}-{n(10, 28)}"),
        ("pii/ip_address", f"{n(11, 223)}.{n(256)}.{n(256)}.{n(1, 255)}", f"{n(1, 9)}.{n(20)}.{n(300, 999)}.{n(9)}"),
        ("secrets/aws_key", "AKIA" + token(rng, 16, string.ascii_uppercase + "234567"), "AKIA" + token(rng, 7)),
        ("secrets/github_token", "ghp_" + token(rng, 36), "ghp_" + token(rng, 5)),
        ("secrets/model_key", "sk-" + token(rng, 40), f"sk-{name}"),
        ("secrets/jwt", f"eyJ{token(rng, 30)}.eyJ{token(rng, 60)}.{token(rng, 43)}", f"eyJ{token(rng, 12)}"),
        ("secrets/assigned", f"password={token(rng, 12)}", "password: your-password-here"),
        ("secrets/assigned", f"api_key: {token(rng, 24)}", f"the api key is in {name}.md"),
        (
            "secrets/url_password",
            f"https://{name}:{token(rng, 10)}@db.example.org/x",
            f"https://{name}.example.org:8080/x",
        ),
    ]
    frames = ["Please note {} for later.", "It is {}, as far as I know.", "{}", "(see {})", "Old: {}; new: none."]
    return [
        (category.split("/")[0], rng.choice(frames).format(value), holds)
        for category, good, bad in pairs
        for value, holds in ((good, True), (bad, False))
    ]


def counted(found: list[tuple[bool, bool]]) -> dict[str, Any]:
    """`found` is (expected, said)."""
    right = sum(expected and said for expected, said in found)
    said, expected = sum(said for _, said in found), sum(expected for expected, _ in found)
    return {
        "precision": round(right / said, 3) if said else None,
        "recall": round(right / expected, 3) if expected else None,
        "texts": len(found),
    }


async def quality(each: InputFilter) -> dict[str, Any]:
    results: dict[str, list[tuple[bool, bool]]] = {}
    labelled: list[tuple[str, str, bool]] = []
    rows = [line.split("\t", 1) for line in (FOLDER / "toxicity_test.tsv").read_text().splitlines()]
    labelled += [("toxicity", text, label == "1") for label, text in rows]
    rng = random.Random(7)
    for _ in range(40):
        labelled += planted(rng)
    for category, text, expected in labelled:
        verdict = await each.check(LOCAL_PRINCIPAL, text)
        said = any(finding.category.partition("/")[0] == category for finding in verdict.findings)
        results.setdefault(category, []).append((expected, said))
    return {category: counted(found) for category, found in results.items()}


# -- beside an engine --------------------------------------------------------------------------------------------------

STREAMS = 32
STRETCH_S = 6.0
MESSAGES_PER_S = 2.0


class Streams:
    """As many answers as the engine has slots, each followed by another, and their tokens counted."""

    def __init__(self, engine: LlamaEngine) -> None:
        self._engine = engine
        self.tokens = self.begun = 0
        self.all_speak = asyncio.Event()

    async def run(self, number: int) -> None:
        chance = random.Random(number)
        for turn in itertools.count():
            prompt = tuple(chance.randrange(300, 4000) for _ in range(24))
            sampling, most = Sampling(temperature=0.8), 960  # whole stretches are decoded: prompts would come in lumps
            said = False
            async for part in self._engine.generate(
                request(key(f"s{number}"), prompt, max_tokens=most, sampling=sampling, seed=turn)
            ):
                if isinstance(part, Chunk):
                    self.begun += turn == 0 and not said
                    said = True
                    if self.begun == STREAMS:
                        self.all_speak.set()
                    self.tokens += len(part.tokens)


async def every(each: InputFilter, texts: Iterator[str], seconds: float) -> list[float]:
    """Milliseconds that each message took; they come by the clock, however long one takes."""
    loop = asyncio.get_running_loop()
    took: list[float] = []

    async def one(text: str) -> None:
        began = time.perf_counter()
        await each.check(LOCAL_PRINCIPAL, text)
        took.append((time.perf_counter() - began) * 1e3)

    begun = loop.time()
    async with asyncio.TaskGroup() as tasks:
        for number in range(round(seconds * MESSAGES_PER_S)):
            await asyncio.sleep(max(0.0, begun + number / MESSAGES_PER_S - loop.time()))
            tasks.create_task(one(next(texts)))
        await asyncio.sleep(max(0.0, begun + seconds - loop.time()))
    return took


async def beside_engine(pairs: int) -> bool:
    words = WORDS
    rng = random.Random(3)
    texts = (message(rng, words) for _ in itertools.count())
    engine = LlamaEngine(LlamaOptions(model_path=MODEL, slots=STREAMS, context_window=1024, waiting_max=64))
    streams = Streams(engine)
    took: list[float] = []
    ratios: list[float] = []

    async def body(each: InputFilter) -> None:
        await streams.all_speak.wait()
        await every(each, texts, STRETCH_S)  # all streams speak, workers are warm
        for _ in range(pairs):
            rates = {"ours": 0.0, "theirs": 0.0}
            for side in ORDER:
                before, begun = streams.tokens, time.perf_counter()
                if side == "ours":
                    took.extend(await every(each, texts, STRETCH_S))
                else:
                    await asyncio.sleep(STRETCH_S)
                rates[side] += (streams.tokens - before) / (time.perf_counter() - begun)
            ratios.append(rates["ours"] / rates["theirs"])

    await engine.start()
    speaking = [asyncio.create_task(streams.run(number)) for number in range(STREAMS)]
    try:
        begun = time.perf_counter()
        await with_filter(POLICY.replace("KINDS", ""), body)
        rate = streams.tokens / (time.perf_counter() - begun)
    finally:
        for task in speaking:
            task.cancel()
        ended = await asyncio.gather(*speaking, return_exceptions=True)
        await engine.close()
    for each in ended:
        if isinstance(each, Exception):
            raise each
    share = sum(ratios) / len(ratios)
    figures = {
        "streams": STREAMS,
        "tokens/s": rate,
        "messages": len(took),
        "code points": CODE_POINTS,
        **spread("{} ms", took, "p50 p95 p99"),
        "tokens/s with messages, of those without": share,
        "95% lower bound": lower_bound(ratios) if len(ratios) > 1 else None,
        "pairs": len(ratios),
    }
    passed = percentile(took, 0.99) <= BAR_MS and share >= 0.97
    report("filters beside llama.cpp", figures)
    print("PASS" if passed else "FAIL")
    return passed


async def measure(rounds: int) -> bool:
    words = WORDS
    rng = random.Random(3)

    def texts(count: int = rounds) -> list[str]:
        return [message(rng, words) for _ in range(count)]

    async def chain(each: InputFilter) -> dict[str, Any]:
        await timed(each, texts(20), 1)
        figures: dict[str, Any] = {}
        for name, at_once in (("alone", 1), ("eight at once", 8)):
            figures |= spread(name + ", {} ms", await timed(each, texts(), at_once))
        fresh = texts()
        busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        try:
            took = await timed(each, fresh, 1)
        finally:
            busy.kill()
            busy.wait()
        return figures | spread("beside a busy process, {} ms", took) | {"quality": await quality(each)}

    async def named(each: InputFilter) -> dict[str, Any]:
        return spread("with names, {} ms", await timed(each, texts(60), 1))

    figures = await with_filter(POLICY.replace("KINDS", ""), chain)
    found = figures.pop("quality")
    figures |= await with_filter(POLICY.replace("KINDS", NAMES), named)
    for category, each in found.items():
        figures |= {f"{category}, {what}": value for what, value in each.items()}
    report("filters", {"messages": rounds, "code points": CODE_POINTS, **figures})
    passed = bool(figures["alone, p99 ms"] <= BAR_MS and figures["beside a busy process, p99 ms"] <= BAR_MS)
    print("PASS" if passed else "FAIL")
    return passed


def main() -> None:
    given = command_line(
        __doc__,
        rounds=1_000,
        beside=Option("", "an engine that answers meanwhile", choices=["", "llama"]),
        pairs=Option(3, "with and without messages, beside an engine"),
    )
    work = beside_engine(given.pairs) if given.beside else measure(given.rounds)
    sys.exit(0 if uvloop.run(work) else 1)  # the server's loop


if __name__ == "__main__":
    main()
