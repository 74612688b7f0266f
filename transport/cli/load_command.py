"""Puts a load on an OpenAI-compatible server, shows what its users feel, and judges it: `./sessile load`.

Its status is 0 where enough requests were good, 1 where they were not, and 2 where the load could not begin.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from transport.cli.api_client import base_of
from transport.cli.load import WATCH_RATE, GenerateLoad
from transport.cli.settings import BadSetting, Settings
from transport.cli.start.stop_signal import stop_signal
from transport.load.html_report import ReportHeader, html_report
from transport.load.live_table import error_lines, headline, table_of
from transport.load.load_exposition import LoadExposition
from transport.load.measurements import LatencyTargets, LoadSummary, Measurements
from transport.load.runner import LoadPlan, LoadRunner, request_body
from transport.load.stream_client import StreamClient, parse_address
from transport.load.workload import BadWorkload, TraceLine, Workload, parse_mix, parse_trace
from transport.ops.metrics_server import MetricsServer

READY_METRICS: Final = "Metrics are ready: "
WATCH_WINDOW_S: Final = 300.0
UPDATE_S: Final = 1.0
PLAIN_UPDATE_S: Final = 10.0  # where it is no terminal
PROBE_TOKENS: Final = 8


class LoadClocks(NamedTuple):
    """What `app.py` reads time with."""

    elapsed: Callable[[], float]
    """A fine clock: a loop's own is one of whole milliseconds."""
    own_cpu: Callable[[], float]


class LoadResult(msgspec.Struct, frozen=True):
    """What `--json` prints."""

    url: str
    model: str
    passed: bool
    seconds: float
    own_cpu_share: float
    latest_arrival_ms: float
    summaries: list[LoadSummary]
    errors: dict[str, int]


async def run_load(command: GenerateLoad, settings: Settings, clocks: LoadClocks) -> int:
    """The whole command; returns its status. Raises BadSetting."""
    base = base_of(command.url, settings.api_key)
    trace = read_trace(command.trace)
    client = StreamClient(parse_address(base), settings.api_key, clock=clocks.elapsed, timeout_s=command.timeout_s)
    try:
        model = await check_server(client, base, command.model)
        workload = Workload(parse_mix(command.mix), trace, seed=command.seed, long_tokens=command.long_tokens)
        measurements = Measurements(LatencyTargets(command.ttft_ms, command.tpot_ms))
        exposition = LoadExposition(measurements)
        plan = plan_of(command, model)
        runner = LoadRunner(client, workload, measurements, plan, clocks.elapsed, exposition.observe)
        async with AsyncExitStack() as stack:
            if settings.metrics_port >= 0:
                server = MetricsServer(exposition, host=settings.metrics_host, port=settings.metrics_port)
                await server.start()
                stack.push_async_callback(server.stop)
                print(f"{READY_METRICS}{server.url}/metrics", file=sys.stderr, flush=True)
            screen = LiveScreen(command, measurements, runner, clocks.own_cpu)
            await _until_stopped(runner, screen)
    finally:
        client.close()
    return _conclude(command, base, model, screen, runner)


def plan_of(command: GenerateLoad, model: str) -> LoadPlan:
    rate = command.rate or (WATCH_RATE if command.watch else 0.0)
    seconds = 0.0 if command.watch else command.seconds
    return LoadPlan(model=model, rate=rate, users=command.users, seconds=seconds, requests=command.requests)


def read_trace(path: str) -> list[TraceLine] | None:
    """Raises BadSetting."""
    if not path:
        return None
    try:
        return parse_trace(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeError) as error:
        raise BadSetting(f"trace: {path}: {getattr(error, 'strerror', None) or error}") from error
    except BadWorkload as error:
        raise BadSetting(f"trace: {path}: {error}") from error


async def check_server(client: StreamClient, base: str, wanted: str) -> str:
    """The model to load, after one short answer of it, which counts nowhere. Raises BadSetting: nothing is measured on
    a server that does not speak OpenAI's API."""
    names, problem = await client.models()
    if wanted and names and wanted not in names:
        raise BadSetting(f"model: {base} has no {wanted!r}, but {', '.join(names[:8])}")
    if not wanted and not names:
        raise BadSetting(f"url: {base}: {problem}")
    model = wanted or names[0]
    probe = request_body(model, [{"role": "user", "content": "Say hello."}], PROBE_TOKENS)
    answer = await client.complete(probe)
    if answer.error and answer.status != 429:
        raise BadSetting(f"url: {base}: {answer.error}")
    return model


class LiveScreen:
    """What is shown while a load runs: a table that is drawn over itself on a terminal, else a line now and then."""

    def __init__(
        self, command: GenerateLoad, measurements: Measurements, runner: LoadRunner, own_cpu: Callable[[], float]
    ) -> None:
        self.measurements = measurements
        self._command = command
        self._runner = runner
        self._own_cpu = own_cpu
        self._cpu_before = own_cpu()
        self._drawn = 0
        self._terminal = sys.stderr.isatty()

    @property
    def cpu_share(self) -> float:
        """Of a core, since the start."""
        return (self._own_cpu() - self._cpu_before) / max(self._runner.elapsed_s, 1e-9)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(UPDATE_S if self._terminal else PLAIN_UPDATE_S)
            self.draw()

    def draw(self) -> None:
        """The figures of the whole run; of a watch those of its last minutes."""
        elapsed = self._runner.elapsed_s
        window = min(elapsed, WATCH_WINDOW_S) if self._command.watch else elapsed
        rows = self.measurements.summaries(self.measurements.newest(elapsed - window), window)
        line = headline(self.measurements, rows[-1], elapsed_s=elapsed, cpu_share=self.cpu_share)
        lines = [line, *table_of(rows).splitlines(), *error_lines(self.measurements)] if self._terminal else [line]
        up = f"\x1b[{self._drawn}F\x1b[J" if self._drawn else ""
        print(up + "\n".join(lines), file=sys.stderr, flush=True)
        self._drawn = len(lines) if self._terminal else 0


async def _until_stopped(runner: LoadRunner, screen: LiveScreen) -> None:
    """Until the load's own end, or a signal; then what is under way is not waited for."""
    stop = asyncio.ensure_future(stop_signal().wait())
    drawing = asyncio.ensure_future(screen.run())
    running = asyncio.ensure_future(runner.run())
    await asyncio.wait((running, stop, drawing), return_when=asyncio.FIRST_COMPLETED)
    ended = running.done()
    for task in (running, stop, drawing):
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    if not ended:
        screen.measurements.in_flight = 0


def _conclude(command: GenerateLoad, base: str, model: str, screen: LiveScreen, runner: LoadRunner) -> int:
    """Prints the figures and writes the report; the status."""
    elapsed, cpu_share, measurements = runner.elapsed_s, screen.cpu_share, screen.measurements
    summaries = measurements.summaries(measurements.results, elapsed)
    whole, latest_ms = summaries[-1], runner.latest_s * 1000
    passed = whole.requests > 0 and whole.goodput >= command.goodput
    verdict = (
        f"goodput {whole.goodput:.1%} ({whole.good} of {whole.requests} requests),"
        f" {'as' if passed else 'below what'} was required: {command.goodput:.1%}"
        f" within TTFT {command.ttft_ms:g} ms and TPOT {command.tpot_ms:g} ms"
    )
    result = LoadResult(
        base, model, passed, elapsed, cpu_share, latest_ms, summaries, dict(measurements.errors.most_common())
    )
    if command.as_json:
        print(msgspec.json.encode(result).decode())
    else:
        print(table_of(summaries), *error_lines(measurements), verdict, sep="\n")
    notes = []
    if any(each.counted_pieces for each in measurements.results):
        notes.append("the server sends no usage: a piece of the stream counts as a token")
    if cpu_share > 0.5 or latest_ms > 50:
        notes.append(
            f"the generator itself was busy ({cpu_share:.0%} of a core, arrivals up to {latest_ms:.0f} ms late):"
            " its figures are its own, too"
        )
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    if command.report:
        loop = (
            f"open, {plan_of(command, model).rate:g} dialogues/s"
            if plan_of(command, model).rate
            else (f"closed, {command.users} users")
        )
        facts = [
            ("server", base),
            ("model", model),
            ("loop", loop),
            ("mix", command.mix),
            ("seconds", f"{elapsed:.1f}"),
        ]
        facts += [("own CPU", f"{cpu_share:.1%} of a core"), *(("note", note) for note in notes)]
        header = ReportHeader(f"Load on {base}", facts, verdict, passed)
        page = html_report(
            header, summaries, list(measurements.results), error_lines(measurements), measurements.targets
        )
        try:
            Path(command.report).write_text(page, encoding="utf-8")
        except OSError as error:
            raise BadSetting(f"report: {command.report}: {error.strerror}") from error
    return 0 if passed else 1
