"""Runs Litestream beside an SQLite journal: a second process that copies every commit to a folder or a bucket.

* Litestream alone makes the checkpoints then (`SqliteTuning.checkpoints = "none"` on our side): it keeps a read
  transaction open, so that no page leaves the write-ahead log before it was copied.
* Both sides need an SQLite in which a checkpoint beside a write cannot damage the log (3.51.3 or newer): ours is
  checked by `CHECKPOINTS_BESIDE_COMMITS`, Litestream's by its version (0.5.17 has SQLite 3.53.0).
* It is started again, with growing pauses, whenever it dies; the server goes on meanwhile, and `lag_s` grows.
* It starts after the journal was opened and ends after the journal was closed, with a last sync. It inherits a lock in
  the data folder, so that one whose server was killed has ended before the next one begins.
* Only `journal.db` is copied: neither `keys.db` nor `master.key`, without which nobody can read the copy.

Source: https://litestream.io/reference/config/ and /reference/replicate/.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit

import structlog

from persistence.sqlite.library import CHECKPOINTS_BESIDE_COMMITS, sqlite3
from sessions.metrics import Metrics
from sessions.model.errors import BadInput

log = structlog.get_logger(__name__)

VERSION_MIN: Final = (0, 5, 17)
SYNC_EVERY_S: Final = 0.5
SYNC_S: Final = 5
LAST_SYNC_S: Final = 10
BEHIND_S: Final = 10.0
"""The lag in seconds from which on a warning is logged."""
PAUSES_S: Final = (0.5, 1.0, 2.0, 5.0, 15.0, 30.0)
RESTART_PAGES: Final = 16_384  # 64 MiB of log, from which on a checkpoint waits for writers
_PR_SET_PDEATHSIG: Final = 1
_OPTIONS: Final = frozenset({"endpoint", "region"})


def litestream(environment: Mapping[str, str]) -> str:
    """Returns the path of the program. Raises BadInput if it is missing or too old, or our SQLite is too old for it."""
    if not CHECKPOINTS_BESIDE_COMMITS:
        raise BadInput(
            "replication_not_possible",
            f"replicate: this Python uses SQLite {sqlite3.sqlite_version}, in which two processes on one journal can"
            " damage it; 3.51.3 or newer is needed (the pysqlite3 wheel has it, where there is one for this machine).",
            param="replicate",
        )
    path = shutil.which("litestream", path=f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}")
    shown = subprocess.run([path, "version"], capture_output=True, text=True, timeout=60).stdout if path else ""
    version = tuple(map(int, re.findall(r"\d+", shown)[:3]))
    if path is None or version < VERSION_MIN:
        needed = ".".join(map(str, VERSION_MIN))
        raise BadInput(
            "replication_not_possible",
            f"replicate: Litestream {needed} or newer is needed, and {shown.strip() or 'none'} is installed; run"
            " `make setup-replicate`.",
            param="replicate",
        )
    return path


def replica_of(url: str, setting: str) -> dict[str, object]:
    """Returns Litestream's settings of the replica at `url`. Raises BadInput, which names `setting`, for an address
    that is invalid."""
    parts = urlsplit(url)
    options = {name: values[0] for name, values in parse_qs(parts.query).items()}
    if parts.scheme == "file" and not parts.netloc and parts.path.startswith("/"):
        return {"type": "file", "path": unquote(parts.path)}
    if parts.scheme == "s3" and parts.netloc and "@" not in parts.netloc and options.keys() <= _OPTIONS:
        path_style = {"force-path-style": True} if "endpoint" in options else {}
        return {"type": "s3", "bucket": parts.netloc, "path": parts.path.strip("/"), **options, **path_style}
    raise BadInput(
        "invalid_setting",
        f"{setting} is file:///FOLDER, or s3://BUCKET/PREFIX with ?endpoint=https://HOST and &region=NAME where they"
        " are needed; credentials stand in AWS's own variables or files, never here.",
        param=setting,
    )


class Replication:
    """Litestream beside one journal, from `start` to `close`."""

    def __init__(
        self,
        url: str,
        folder: Path,
        *,
        keep_hours: float,
        environment: Mapping[str, str],
        metrics: Metrics | None = None,
    ) -> None:
        """Starts nothing yet. `keep_hours` is how far back a restore can go; `environment` has AWS's credentials.
        Raises BadInput."""
        self._program, self._url, self._folder = litestream(environment), url, folder.absolute()
        self._environment = _without_bundle(environment)
        self._clock = asyncio.get_running_loop().time
        self._replica = replica_of(url, "replicate")
        self._keep_hours = keep_hours
        self._own = Path(tempfile.mkdtemp(prefix="sessile-litestream-"))
        self._socket = self._own / "control.sock"
        self._process: asyncio.subprocess.Process | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._synced_at = self._clock()
        metrics = metrics or Metrics()
        self._restarts = metrics.counter("replication_restarts", "Times that Litestream was started again.")
        metrics.gauge("replication_lag_seconds", "For how long the replica has not had everything.", (), self._lag)

    @property
    def lag_s(self) -> float:
        """The number of seconds by which the replica may be behind: every commit older than that is in it."""
        return self._clock() - self._synced_at

    def _lag(self) -> dict[tuple[str, ...], float]:
        return {(): self.lag_s}

    def start(self) -> None:
        """Starts Litestream and watches it until `close`. The journal must be open."""
        self._synced_at = self._clock()
        self._tasks = [asyncio.create_task(self._watch()), asyncio.create_task(self._keep_syncing())]

    async def close(self) -> None:
        """Ends Litestream after a last sync. The journal must be closed."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        process = self._process
        if process is not None and process.returncode is None:
            process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(process.wait(), LAST_SYNC_S + 5)
            except TimeoutError:
                log.error("replication_killed", hint="the last commits may not be in the replica")
                process.kill()
                await process.wait()
        else:
            log.error("replication_not_finished", hint="Litestream was not running: the last commits are not copied")
        shutil.rmtree(self._own, ignore_errors=True)

    async def sync(self) -> None:
        """Returns when every commit up to this call is in the replica. Raises OSError."""
        began = self._clock()
        path = str(self._folder / "journal.db")
        body = json.dumps({"path": path, "wait": True, "timeout": SYNC_S}).encode()
        async with asyncio.timeout(SYNC_S + 5):
            reader, writer = await asyncio.open_unix_connection(str(self._socket))
            try:
                writer.write(b"POST /sync HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                answer = await reader.read()
            finally:
                writer.close()
        head, _, content = answer.partition(b"\r\n\r\n")
        if head.split(b" ", 2)[1:2] != [b"200"]:
            raise OSError(content.decode(errors="replace").strip() or "Litestream gave no answer")
        self._synced_at = began

    async def _keep_syncing(self) -> None:
        is_behind = False
        while True:
            await asyncio.sleep(SYNC_EVERY_S)
            cause = ""
            try:
                await self.sync()
            except OSError as exc:  # TimeoutError is one
                cause = str(exc) or type(exc).__name__
            if (self.lag_s > BEHIND_S) != is_behind:
                is_behind = not is_behind
                if is_behind:
                    log.error("replication_behind", lag_s=round(self.lag_s), cause=cause, replica=self._url)
                else:
                    log.info("replication_caught_up", replica=self._url)

    async def _watch(self) -> None:
        num_failures = 0
        while True:
            began = self._clock()
            try:
                await self._run()
            except OSError as exc:
                log.error("replication_not_started", cause=str(exc))
            num_failures = 0 if self._clock() - began > PAUSES_S[-1] else num_failures + 1
            await asyncio.sleep(PAUSES_S[min(num_failures, len(PAUSES_S)) - 1])
            self._restarts.add()

    async def _run(self) -> None:
        """Runs Litestream until it ends. Raises OSError if it cannot be started."""
        self._socket.unlink(missing_ok=True)
        config = self._own / "litestream.yml"
        config.write_text(json.dumps(self._config()))  # JSON is YAML
        lock = os.open(self._folder / "replication.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as exc:
                raise OSError("the Litestream of a server that was killed has not ended yet") from exc
            self._process = process = await asyncio.create_subprocess_exec(
                self._program,
                *("replicate", "-no-expand-env", "-config", str(config)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=(lock,),
                preexec_fn=_die_with_the_server if sys.platform == "linux" else None,
                env=self._environment,
                start_new_session=True,  # Ctrl-C is the server's: Litestream ends after the journal was closed
            )
        finally:
            os.close(lock)
        log.info("replication_started", replica=self._url, pid=process.pid)
        assert process.stderr is not None
        last = b""
        while piece := await process.stderr.read(1 << 16):  # to the end, for a full pipe would hold Litestream up
            last = (last + piece)[-2_000:]
        status = await process.wait()
        message = last.decode(errors="replace").strip().rpartition("\n")[2]
        log.error("replication_ended", status=status, said=message[:500])

    def _config(self) -> dict[str, object]:
        database = {
            "path": str(self._folder / "journal.db"),
            "truncate-page-n": RESTART_PAGES,
            "replica": {**self._replica, "sync-interval": "1s"},
        }
        return {
            "dbs": [database],
            "socket": {"enabled": True, "path": str(self._socket), "permissions": 0o600},
            "snapshot": {"interval": f"{min(24.0, self._keep_hours)}h", "retention": f"{self._keep_hours}h"},
            "shutdown-sync-timeout": f"{LAST_SYNC_S}s",
            "logging": {"level": "warn", "type": "json", "stderr": True},
        }


def _without_bundle(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment for Litestream: with AWS's credentials, without settings of the server. `AWS_CA_BUNDLE`
    is renamed, because Litestream 0.5.17 fails if it is set."""
    changed = {name: value for name, value in environment.items() if not name.startswith("SESSILE_")}
    if bundle := changed.pop("AWS_CA_BUNDLE", ""):
        changed.setdefault("SSL_CERT_FILE", bundle)
    return changed


def _die_with_the_server() -> None:
    """Runs in the child: makes the kernel end Litestream, which then makes a last sync, when the server is killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def restore_replica(url: str, folder: Path, *, environment: Mapping[str, str], at: str = "") -> None:
    """Restores `folder/journal.db` from a replica, as it was at the time `at` (RFC 3339; "": the latest). When it is
    opened it gets another incarnation, because no marker is beside it. Raises BadInput. Blocking."""
    program, folder = litestream(environment), folder.absolute()
    journal = folder / "journal.db"
    for name in ("journal.db", "journal.db-wal", "journal.marker"):
        if (folder / name).exists():
            raise BadInput(
                "journal_exists",
                f"{folder / name} is there: name a folder without a journal with --data.",
                param="data",
            )
    replica = replica_of(url, "from")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="sessile-litestream-") as own:
        config = Path(own) / "litestream.yml"
        config.write_text(json.dumps({"dbs": [{"path": str(journal), "replica": replica}]}))
        words = [program, "restore", "-no-expand-env", "-config", str(config), "-integrity-check", "full"]
        words += ["-timestamp", at] if at else []
        done = subprocess.run([*words, str(journal)], capture_output=True, text=True, env=_without_bundle(environment))
    if done.returncode:
        journal.unlink(missing_ok=True)
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise BadInput("replica_not_restored", f"Nothing was restored: {lines[-1] if lines else '?'}", param="from")
    journal.chmod(0o600)
