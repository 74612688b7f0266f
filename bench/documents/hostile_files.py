"""Hostile files, uploaded and attached to messages: what becomes of each, and what they cost the server.

    python -m bench.documents.hostile_files --count 2000 --seed 1 --at-once 2
    python -m bench.documents.hostile_files --kind images --plain 100

A server of its own with the simulated engine. After `--plain` ordinary files, what fills its memory of results (long
texts; 100 images) and half a quiet minute its memory is looked at; then hostile ones are uploaded to `/v1/files` and
sent to `/v1/responses`, so many at once, and then ordinary ones again: `testbed.documents.hostile` (bombs, broken
PDFs, XML that names files, polyglots, endless texts), or `testbed.images.hostile` for a model that sees. Bars: it
answers each with what it says, none with 5xx but "come again"; it is the same process at the end; its memory has grown
by at most 5%; no answer shows what stands in a file of the machine. Exits with 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

import httpx
import psutil

from bench.support import is_faultless, percentile, report, run_bench
from inference.file_workers.pool import RESULTS_BYTES_MAX
from testbed.documents.hostile import SECRET, Hostile, hostile_documents
from testbed.documents.made import a_docx, a_pdf, a_pptx, an_xlsx
from testbed.images.hostile import hostile_images
from testbed.images.made import encoded, noise
from testbed.server_process import ServerProcess

GROWTH_MAX: Final = 0.05
IDLE_S: Final = 5.0  # after which a session leaves memory
QUIET_S: Final = 30.0  # before memory is read
LONG_BYTES: Final = 900_000  # of a text that is remembered
EXPECTED: Final = frozenset(
    {
        *("file_type_unsupported", "file_unreadable", "file_too_complex", "content_too_large"),
        *("context_length_exceeded", "image_type_unsupported", "image_unreadable", "image_too_complex"),
    }
)


class Uploads:
    """Sends files as content parts of type `part`, and keeps what became of them."""

    def __init__(self, http: httpx.AsyncClient, part: str) -> None:
        self._http = http
        self._part = part
        self.outcomes: Counter[str] = Counter()
        self.faults: list[str] = []
        self.seconds: list[float] = []

    async def send(self, document: Hostile) -> None:
        kind, name, content = document
        began = time.monotonic()
        made = await self._http.post("/v1/files", data={"purpose": "user_data"}, files={"file": (name, content)})
        if made.status_code != 200:
            self.faults.append(f"{kind}: upload {made.status_code} {made.text[:200]}")
            return
        parts = [{"type": self._part, "file_id": made.json()["id"]}]
        body: dict[str, Any] = {"model": "simulated", "input": [{"role": "user", "content": parts}], "store": False}
        answer = await self._http.post("/v1/responses", json={**body, "max_output_tokens": 4})
        while answer.status_code == 503:
            self.outcomes["come again"] += 1
            await asyncio.sleep(float(answer.headers.get("retry-after", "1")))
            answer = await self._http.post("/v1/responses", json={**body, "max_output_tokens": 4})
        code = "read" if answer.status_code == 200 else answer.json()["error"]["code"]
        if (code not in EXPECTED and code != "read") or SECRET in answer.text:
            self.faults.append(f"{kind}: {answer.status_code} {answer.text[:200]}")
        self.outcomes[code] += 1
        self.seconds.append(time.monotonic() - began)
        await self._http.delete(f"/v1/files/{made.json()['id']}")

    async def all(self, documents: Iterable[Hostile], at_once: int) -> None:
        waiting = iter(documents)

        async def lane() -> None:
            for document in waiting:
                await self.send(document)

        await asyncio.gather(*(lane() for _ in range(at_once)))


def ordinary(count: int, *, images: bool) -> list[Hostile]:
    if images:
        return [("ordinary", "a.png", encoded(noise((400, 290), seed=number))) for number in range(count)]
    return [("ordinary", *_ordinary(number)) for number in range(count)]


def long_texts() -> Iterator[Hostile]:
    """Yields texts that fill what the server remembers of results."""
    for number in range(RESULTS_BYTES_MAX // LONG_BYTES + 1):
        yield "ordinary", "a.txt", f"{number:<20}".encode() * (LONG_BYTES // 20)


def _ordinary(number: int) -> tuple[str, bytes]:
    text = f"Document number {number}. " + "Some more words of it. " * 40
    match number % 4:
        case 0:
            return "a.pdf", a_pdf([text] * 3)
        case 1:
            return "a.docx", a_docx([(1, "Title"), text])
        case 2:
            return "a.xlsx", an_xlsx({"s": [[text]] * 20})
        case _:
            return "a.pptx", a_pptx([("Title", text, "")])


async def main(given: argparse.Namespace) -> bool:
    images = given.kind == "images"
    with ServerProcess("--engine", "sim", "--images", "yes", "--idle-s", str(IDLE_S)) as server:
        process = psutil.Process(server.pid)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=180) as http:
            part = "input_image" if images else "input_file"
            plain, filling, hostile = (Uploads(http, part) for _ in range(3))
            await plain.all(ordinary(given.plain, images=images), given.at_once)
            if not images:
                await filling.all(long_texts(), given.at_once)
            await asyncio.sleep(QUIET_S)
            before = process.memory_info().rss
            began = time.monotonic()
            documents = hostile_documents(given.count, given.seed)
            if images:
                documents = ((kind, "a.png", content) for kind, content in hostile_images(given.count, given.seed))
            while block := list(itertools.islice(documents, 20)):
                await hostile.all(block, given.at_once)
                del block
                gc.collect()
            took = time.monotonic() - began
            await asyncio.sleep(QUIET_S)
            after = process.memory_info().rss
            await plain.all(ordinary(given.plain, images=images), given.at_once)
            children = sum(child.memory_info().rss for child in process.children(recursive=True))
        alive = process.is_running() and server.pid == process.pid
    faults = [*plain.faults, *filling.faults, *hostile.faults]
    growth = after / before - 1
    if not alive:
        faults.append("the server ended")
    if growth > GROWTH_MAX:
        faults.append(f"the server's memory grew by {growth:.1%}")
    report(
        "hostile_files",
        {
            "kind": given.kind,
            "files": given.count,
            "seed": given.seed,
            "outcomes": dict(hostile.outcomes),
            "faults (bar 0)": len(faults),
            "server's memory before, MiB": before / 2**20,
            "server's memory behind, MiB": after / 2**20,
            "growth (bar 0.05)": growth,
            "workers' memory, MiB": children / 2**20,
            "p50, s": percentile(hostile.seconds, 0.5),
            "p99, s": percentile(hostile.seconds, 0.99),
            "ordinary p50, s": percentile(plain.seconds, 0.5),
            "seconds": took,
        },
    )
    return is_faultless(faults)


if __name__ == "__main__":
    run_bench(main, __doc__, count=2000, seed=1, at_once=2, plain=40, kind="documents")
