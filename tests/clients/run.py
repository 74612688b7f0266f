"""Drives popular clients, unchanged, against a server whose engine says what a script tells it, and writes their table.

    python -m tests.clients.run                     all of them; docs/clients.md is written anew
    python -m tests.clients.run Codex opencode      these alone; the others keep their rows
    python -m tests.clients.run --keep DIR Codex    what it printed and wrote stays in DIR, with the prompts' tools

`make test-clients` makes the environments from their locks: `node_modules` here, `.venv-clients-*`. Each scenario has a
home folder, a working folder, an engine and a server of its own. What is read is what the engine was asked and what it
could reuse, what the client printed, and what it left in the folder.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

import psutil
import structlog

from deploy.shipped_models import SMALL
from inference.simulated import decode
from persistence.memory.database import MemoryDatabase
from sessions.model.generation import ThoughtMarks
from sessions.model.types import UnixMs
from tests.clients.drivers import CLIENTS, HERE, NPM, PROGRAM, Call, Client, call
from tests.clients.engine import OPTIONS, AgentEngine, Step, kept_tokens
from tests.clients.evaluation import evaluate
from tests.support.doors.openai_server import SIMULATED, serving
from transport.gateway_store.history_file import StoredHistory

ROOT: Final = HERE.parents[1]
PAGE: Final = ROOT / "docs" / "clients.md"
HANGS_AFTER_S: Final = 900
EXACT: Final = 0.98  # of a client of which so much is reused every token of a prompt stands in the next one
THOUGHTS: Final = ThoughtMarks("<think>", "</think>", none="<think>\n\n</think>\n\n")  # as Qwen 3's template has them
LONG_CHARS: Final = 8_000  # of a file: as many tokens, for the engine's are bytes


class Failed(Exception):
    """A scenario came out otherwise than it should; the message says how."""


def check(condition: object, what: str) -> None:
    if not condition:
        raise Failed(what)


@dataclass(kw_only=True)
class Scene:
    """One client in a home of its own before a server of its own."""

    client: Client
    marker: str
    home: Path
    thinks: bool = False  # whether the model is one that thinks
    engine: AgentEngine = field(init=False)  # of the server that runs
    life: AsyncExitStack = field(default_factory=AsyncExitStack)
    store: MemoryDatabase = field(default_factory=MemoryDatabase)
    url: str = ""
    printed: list[str] = field(default_factory=list)

    @property
    def work(self) -> Path:
        return self.home / "work"

    async def serve(self) -> None:
        """Starts the server: at the address that it had, if it ran before."""
        port = int(self.url.rpartition(":")[2] or 0)
        self.engine = AgentEngine(self.marker, tools=self.client.has_tools, side=self.client.side)
        self.engine.thoughts = THOUGHTS if self.thinks else None
        folder = self.home.parent / "server"
        folder.mkdir(exist_ok=True)
        index = StoredHistory(
            folder, bytes(32), clock=time.monotonic, now_ms=lambda: UnixMs(time.time_ns() // 1_000_000)
        )
        history = await self.life.enter_async_context(index)
        running = serving(OPTIONS, engine=self.engine, store=self.store, port=port, history=history)
        self.url = (await self.life.enter_async_context(running)).server.url

    async def stop(self) -> None:
        await self.life.aclose()

    async def restart(self) -> None:
        await self.stop()
        await self.serve()

    def configure(self) -> None:
        self.work.mkdir(parents=True)
        for name, text in self.client.files.items():
            path = self.home / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.fill(text))

    def fill(self, text: str) -> str:
        return text.replace("{url}", self.url).replace("{here}", str(HERE)).replace("{home}", str(self.home))

    async def start(self, command: Sequence[str], prompt: str) -> asyncio.subprocess.Process:
        folders = [
            *((ROOT / f".venv-{self.client.environment}" / "bin",) if self.client.environment != "npm" else ()),
            *(NPM / ".bin", ROOT / ".venv-node" / "bin"),
        ]
        nowhere = "http://127.0.0.1:9"  # nothing listens there: whatever is not on loopback fails at once
        variables = {
            "PATH": ":".join([*map(str, folders), "/usr/local/bin", "/usr/bin", "/bin"]),
            "HOME": str(self.home),
            "TMPDIR": str(self.home),
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "NO_COLOR": "1",
            "CI": "1",
            "DO_NOT_TRACK": "1",
            "OPENAI_API_KEY": "none",
            **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), nowhere),
            **dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost"),
            **{name: self.fill(value) for name, value in self.client.variables.items()},
        }
        return await asyncio.create_subprocess_exec(
            *(self.fill(part) for part in command), prompt,
            cwd=self.work, env=variables, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    async def end(self, process: asyncio.subprocess.Process) -> str:
        """Waits until a client has ended, and returns what it printed. What it left running is ended too."""
        try:
            output, _ = await asyncio.wait_for(process.communicate(), HANGS_AFTER_S)
        except TimeoutError:
            raise Failed(f"it did not end within {HANGS_AFTER_S} s") from None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            for left in psutil.process_iter():  # Cline's hub has a session of its own
                with suppress(psutil.Error):
                    if left.environ().get("HOME") == str(self.home):
                        left.kill()
        self.printed.append(output.decode(errors="replace"))
        return self.printed[-1]

    async def ask(self, command: Sequence[str] | None, prompt: str, *answers: str) -> list[Step]:
        """Runs the client with one prompt, which the model answers thus, and returns the steps that it took."""
        assert command is not None
        before = len(self.engine.steps)
        self.engine.script[:] = [*answers[:-1], self.client.final(answers[-1])]
        output = await self.end(await self.start(command, f"{prompt} ({self.marker})"))
        steps = self.engine.steps[before:]
        check(len(steps) == len(answers), f"{len(steps)} steps instead of {len(answers)}: {output.strip()[-300:]!r}")
        check(
            words(answers[-1].rpartition(THOUGHTS.close)[2]) in words(output),
            f"the answer is not printed: {output.strip()[-300:]!r}",
        )
        return steps

    def reuse(self) -> tuple[int, int]:
        """Returns how many tokens were reused, and how many could have been: a step's prompt and answer in the next."""
        reused = there = 0
        for before, after in pairwise(self.engine.steps):
            if before.is_whole and after.cached is not None:
                whole = len(before.prompt) + before.written
                reused += min(after.cached, whole)  # a prompt that is read twice for one step finds all of itself
                there += whole
        return reused, there


def words(text: str) -> str:
    return " ".join(text.split())


# -- scenarios ---------------------------------------------------------------------------------------------------------

FIRST: Final = "Rivers begin in the hills, and end in the sea."
SECOND: Final = "Lakes have no end at all."
LINE: Final = 'The quick brown fox jumps over the lazy dog, item {}: "it\'s" <b> & \\n.\n'


async def two_turns(scene: Scene) -> None:
    await scene.ask(scene.client.run, "Tell me about rivers.", FIRST)
    (step,) = await scene.ask(scene.client.resume, "And lakes?", SECOND)
    check(FIRST in decode(step.prompt), "the second turn lacks the first answer")


async def tools(scene: Scene) -> None:
    """A command, a long file, the command's output again, an answer; then a turn more."""
    client = scene.client
    text = "".join(LINE.format(number) for number in range(LONG_CHARS // len(LINE)))
    path = scene.work / "long.txt"
    if client.shell is not None:
        write = client.write(str(path), text) if client.write else shell_write(client.shell, path, text)
        calls: list[Call] = [client.shell("echo $((6 * 7))-seen"), write, client.shell("wc -l < long.txt")]
        answers = [f"I shall look.\n{call(*calls[0])}", *(call(*each) for each in calls[1:]), FIRST]
        steps = await scene.ask(client.run, "Look, write the file, count its lines.", *answers)
        check("42-seen" in decode(steps[1].prompt), "the output of the command is not told to the model")
    else:
        assert client.edit is not None
        steps = await scene.ask(client.run, "Write the file.", client.edit(str(path), text))
    check(path.exists(), f"the file was not written: {decode(steps[-1].prompt)[-300:]!r}")
    check(path.read_text().strip() == text.strip(), "the file has other words than the model wrote")
    if client.resume is not None:
        await scene.ask(client.resume, "Thank you. And lakes?", SECOND)


def shell_write(shell: Callable[[str], Call], path: Path, text: str) -> Call:
    return shell(f"cat > {path.name} <<'EOF'\n{text}EOF")


async def invalid(scene: Scene) -> None:
    """A function that is not there, arguments that are missing; then a right call."""
    client = scene.client
    assert client.shell is not None
    name, _ = client.shell("")
    answers = [call("no_such_function", {"a": 1}), call(name, {}), call(*client.shell("echo $((6 * 7))-seen")), FIRST]
    steps = await scene.ask(client.run, "Do as you like.", *answers)
    shown = decode(steps[-1].prompt)
    check("42-seen" in shown, f"the right call behind the wrong ones was not run: {shown[-300:]!r}")


async def built_in(scene: Scene) -> None:
    """Calls of the client's own tools: two that it cannot carry out, the time, a long note, a search for it."""
    text = "".join(LINE.format(number) for number in range(LONG_CHARS // len(LINE)))
    calls: list[Call] = [
        ("no_such_function", {"a": 1}),
        ("write_note", {}),
        ("get_current_timestamp", {}),
        ("write_note", {"title": "Foxes", "content": text}),
        ("search_notes", {"query": "Foxes"}),
    ]
    answers = [*(call(*each) for each in calls), FIRST]
    steps = await scene.ask(scene.client.run, "Do as you like, then write the note.", *answers)
    told = [decode(after.prompt)[len(decode(before.prompt)) :] for before, after in pairwise(steps)]
    check("current_timestamp" in told[2].partition("</tool_call>")[2], f"the time is not told: {told[2][-300:]!r}")
    check('"snippet"' in told[4], f"the note was not found: {told[4][-300:]!r}")
    await scene.ask(scene.client.resume, "Thank you. And lakes?", SECOND)


async def cancel(scene: Scene) -> None:
    """Ctrl-C while the answer is written: the server stops, and the conversation goes on."""
    scene.engine.script[:] = ["A long story without an end. " * 10_000]
    process = await scene.start(scene.client.run, f"Tell me a long story. ({scene.marker})")
    ended = asyncio.create_task(scene.end(process))
    writing = asyncio.create_task(scene.engine.writing())
    await asyncio.wait([ended, writing], return_when=asyncio.FIRST_COMPLETED, timeout=HANGS_AFTER_S)
    if not writing.done():
        writing.cancel()
        process.send_signal(signal.SIGKILL)
        raise Failed(f"it never streamed: {(await ended)[-300:]!r}")
    for _ in range(2):  # some ask for a second Ctrl-C
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        await asyncio.wait([ended], timeout=60)
        if ended.done():
            break
    else:
        os.killpg(process.pid, signal.SIGKILL)
        raise Failed(f"Ctrl-C does not end it: {(await ended)[-300:]!r}")
    await asyncio.wait_for(scene.engine.idle(), HANGS_AFTER_S)
    check(not scene.engine.steps[0].is_whole, "the server wrote on")
    if scene.client.resume is not None and scene.client.keeps_cancelled:
        await scene.ask(scene.client.resume, "Never mind. And lakes?", SECOND)


async def restart(scene: Scene) -> None:
    """The server ends between two turns, and all KV with it: the next prompt begins with the very tokens of before."""
    (before,) = await scene.ask(scene.client.run, "Tell me about rivers.", FIRST)
    await scene.restart()
    (after,) = await scene.ask(scene.client.resume, "And lakes?", SECOND)
    kept, whole = kept_tokens(before, after), len(before.prompt) + before.written
    least = whole * scene.client.reuse if scene.client.why_less else whole
    if scene.client.reuse >= EXACT:
        least = max(least, len(before.prompt))
    check(kept >= least, f"{kept} of {whole} tokens are the same behind a restart")


async def thoughts(scene: Scene) -> None:
    """A model that thinks before each answer: the thought is folded, and no mark is shown."""
    for command, said in ((scene.client.run, FIRST), (scene.client.resume, SECOND)):
        answer = f"{THOUGHTS.open}\nThey ask, and I had better think.\n{THOUGHTS.close}\n\n{said}"
        await scene.ask(command, "Tell me about them.", answer)
        shown = scene.printed[-1]
        check("Thought" in shown, f"nothing says that it thought: {shown[-300:]!r}")
        hidden = ("I had better think", THOUGHTS.open, THOUGHTS.close)
        check(not any(each in shown for each in hidden), f"the thought is shown as text: {shown[-300:]!r}")


async def log_likelihoods(scene: Scene) -> None:
    """200 multiple-choice items of a task of ours, on a small model, held against the engine's own scores."""

    async def harness(url: str) -> str:
        given = f"model={SIMULATED},base_url={url}/v1/completions,tokenizer_backend=remote,num_concurrent=1"
        return await scene.end(await scene.start(scene.client.run, given))

    await scene.stop()
    problem, printed = await evaluate(scene.work, harness, SMALL.path)
    check(not problem, f"{problem}: {printed.strip()[-300:]!r}")


SCENARIOS: Final[Mapping[str, Callable[[Scene], Awaitable[None]]]] = {
    "two turns": two_turns,
    "tools": tools,
    "invalid calls": invalid,
    "built-in tools": built_in,
    "cancel": cancel,
    "restart": restart,
    "thoughts": thoughts,
    "log-likelihoods": log_likelihoods,
}


async def play(name: str, scenario: str, keep: Path | None) -> tuple[str, tuple[int, int]]:
    """Runs one scenario; returns what went wrong, if anything, and the reuse."""
    client = CLIENTS[name]
    marker = f"zebra {scenario}"
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        scene = Scene(client=client, marker=marker, home=home, thinks=scenario == "thoughts")
        problem = ""
        try:
            await scene.serve()
            scene.configure()
            await SCENARIOS[scenario](scene)
        except* Failed as failed:  # those of a server's tasks come in groups
            problem = "; ".join(problems(failed))
        finally:
            await scene.stop()
        if keep is not None:
            save(scene, keep / f"{name}-{scenario}".replace(" ", "-"))
        return problem, scene.reuse()


def problems(group: BaseExceptionGroup[Failed]) -> list[str]:
    """Returns the messages of an exception, those of the groups in it too."""
    return [
        text
        for each in group.exceptions
        for text in (problems(each) if isinstance(each, BaseExceptionGroup) else [str(each)])
    ]


def save(scene: Scene, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(scene.home, folder / "home", symlinks=True, ignore=shutil.ignore_patterns("*.sock", "node_modules"))
    for number, output in enumerate(scene.printed):
        (folder / f"printed-{number}").write_text(output)
    for number, prompt in enumerate(scene.engine.seen):
        (folder / f"prompt-{number}").write_text(decode(prompt))


# -- the table ---------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Row:
    """One line of the table: a client and its results."""

    name: str
    works: list[str] = field(default_factory=list)
    reused: int = 0
    there: int = 0
    notes: list[str] = field(default_factory=list)
    failed: bool = False

    def __str__(self) -> str:
        client = CLIENTS[self.name]
        reuse = f"{self.reused / self.there:.3f}" if self.there else "-"
        works = "all" if self.works == ALL else ", ".join(self.works)
        cells = (self.name, version(client), client.door, works, reuse, "; ".join(self.notes))
        return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def version(client: Client) -> str:
    """A client's version, as its lock has it."""
    if client.environment == "npm":
        packages = json.loads((HERE / "package-lock.json").read_text())["packages"]
        return str(packages[f"node_modules/{client.package}"]["version"])
    lock = (ROOT / "requirements" / f"{client.environment}.lock").read_text()
    found = re.search(rf"^{re.escape(client.package)}(?:\[[^\]]*\])?==(\S+)", lock, re.MULTILINE)
    assert found is not None, f"{client.package} is not in requirements/{client.environment}.lock"
    return found[1]


def is_installed(client: Client) -> bool:
    if client.environment == "npm":
        return (NPM / client.package / "package.json").exists()
    wanted = f"lib/python*/site-packages/{client.package.replace('-', '_')}-*.dist-info"
    return any((ROOT / f".venv-{client.environment}").glob(wanted))


def page(rows: Mapping[str, str], last: str) -> str:
    """Returns docs/clients.md. Clients that have not been tried keep the row that they have on the page."""
    kept = {match[1]: match[0] for match in re.finditer(r"^\| ([^|]+) \|.*\|$", last, re.MULTILINE)}
    table = [rows.get(name) or kept[name] for name in CLIENTS if name in rows or name in kept]
    parts = [OPENING + "\n".join([*HEAD, *table])]
    libraries = []
    for name, client in CLIENTS.items():
        variables = {key: value for key, value in client.variables.items() if key not in PROGRAM}
        if not client.files and not variables:
            libraries.append(name)
            continue
        parts.append(f"### {name}")
        parts += [f"`~/{file}`:\n\n{fence(Path(file).suffix[1:], text)}" for file, text in client.files.items()]
        if variables:
            parts.append(fence("text", "\n".join(f"{key}={value}" for key, value in variables.items())))
    parts.insert(1, CONFIGURED)
    parts += [f"### {'; '.join(libraries)}", "Their base URL is `{url}/v1`, in the program that uses them."]
    return "\n\n".join(parts).replace("{url}", "http://127.0.0.1:8080").replace("{home}", "~") + "\n"


def fence(language: str, text: str) -> str:
    language = {"yml": "yaml"}.get(language, language)
    return f"```{language}\n{text.strip()}\n```"


ALL: Final = ["two turns", "tools", "invalid calls", "cancel", "restart"]
HEAD: Final = (
    "| client | version | door | works | reuse | remarks |",
    "|---|---|---|---|---|---|",
)
OPENING: Final = """# Clients

Programs that people use with OpenAI's and Anthropic's API, unchanged, at the versions that `make test-clients` installs
and drives. It writes this page.

Each is driven with a scripted model, by these steps:

* *two turns*: a question, and a second one when the program is started anew (its *resume*);
* *tools*: a command, a file of 8,000 tokens, another command, an answer, one turn more;
* *invalid calls*: the model calls a function that is not there, and leaves out arguments; then it calls rightly;
* *built-in tools*, where it has no command and no file: calls that it cannot carry out, the time, a note, a search;
* *cancel*: Ctrl-C or a stop button while an answer is written; the conversation goes on;
* *restart*: the server ends between two turns, and the conversation goes on with the same tokens;
* *thoughts*: the model thinks before its answers; the thoughts are folded;
* *log-likelihoods*: for an evaluation, 200 multiple-choice items: the scores are the engine's own within 0.001.

*All* are two turns, tools, invalid calls, cancel and restart. *Reuse* is the share of the previous prompt and answer
that a step did not compute again. *Door* is the API: `/v1/chat/completions`, `/v1/responses`, `/v1/messages` or
`/v1/completions`.

## What works

"""
CONFIGURED: Final = """## How each is configured

The model is `simulated` in these tests; write the name that `/v1/models` lists. Any key will do where the server has
none."""


async def try_client(name: str, scenarios: Sequence[str], keep: Path | None) -> Row:
    client, row = CLIENTS[name], Row(name=name)
    if not is_installed(client):
        print(f"{name}: {client.package} is not installed in {client.environment}", flush=True)
        row.failed, row.notes = True, ["it could not be installed"]
        return row
    for scenario in scenarios:
        if scenario in client.lacks:
            row.notes.append(f"{scenario}: {client.lacks[scenario]}")
            continue
        problem, (reused, there) = await play(name, scenario, keep)
        print(f"{name}: {scenario}: {problem or 'passed'} ({reused} of {there} tokens reused)", flush=True)
        row.reused += reused
        row.there += there
        if problem:
            row.failed = True
            row.notes.append(f"{scenario}: {problem}")
        else:
            row.works.append(scenario)
    if row.there and row.reused < client.reuse * row.there:
        row.failed = True
        print(f"{name}: {row.reused} of {row.there} tokens reused; it should be {client.reuse}")
    row.notes += [client.why_less] if client.why_less else []
    return row


async def main(given: argparse.Namespace) -> int:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what a job in the background ignores, clients would too
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    names = given.only or list(CLIENTS)
    rows: list[Row] = []
    for name in names:
        rows.append(await try_client(name, given.scenario or CLIENTS[name].scenarios, given.keep))
        if not given.scenario:
            PAGE.write_text(page({row.name: str(row) for row in rows}, PAGE.read_text() if PAGE.exists() else ""))
    print("\n".join(map(str, rows)))
    failed = [row.name for row in rows if row.failed]
    print(f"{sum(len(row.works) for row in rows)} passed" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="a folder for what clients printed and were asked")
    parser.add_argument("--scenario", action="append", choices=list(SCENARIOS), help="this alone")
    parser.add_argument("only", nargs="*", choices=[*CLIENTS, []], help="these alone")
    sys.exit(asyncio.run(main(parser.parse_args())))
