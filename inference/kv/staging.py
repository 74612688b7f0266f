"""Makes the private in-memory folder where an engine may write KV in plain text.

It is memory-backed (/dev/shm) unless a folder is named; where the system has none, there is no spill. It belongs
to one process and goes with it (`inference.private_folder`).
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import structlog

from inference.private_folder import PrivateFolder
from sessions.model.errors import BadInput

log = structlog.get_logger(__name__)

PREFIX: Final = "sessile-kv-"
_SHARE: Final = 0.8
MEMORY_BACKED: Final = Path("/dev/shm")


class StagingFolder(PrivateFolder):
    """The folder in memory where engines write KV; made at construction, removed by `close`. Blocking."""

    def __init__(self, parent: Path) -> None:
        """Makes the folder below `parent`. Raises OSError."""
        parent.mkdir(parents=True, exist_ok=True)
        super().__init__(parent, PREFIX)

    def bound_bytes(self, requested: int) -> int:
        """Returns `requested`, or fewer bytes where that would crowd out other programs: most of what is free now."""
        room = int(shutil.disk_usage(self.path).free * _SHARE)
        if room < requested:
            log.warning(
                "host_tier_reduced",
                folder=str(self.path.parent),
                room_mb=room // 1_000_000,
                requested_mb=requested // 1_000_000,
                advice="make it larger (docker: --shm-size), or request less with --kv-host-mb",
            )
        return min(room, requested)


def warn_where_small(host_bytes_max: int, session_bytes: int) -> None:
    """Logs that a session as long as the window allows has no room in host memory: then it is never spilled, and is
    computed anew wherever it comes back. `session_bytes`: what one takes at most while it is saved."""
    if host_bytes_max < session_bytes:
        log.warning(
            "host_tier_small",
            host_mb=host_bytes_max // 1_000_000,
            session_mb=-(-session_bytes // 1_000_000),
            advice="give more with --kv-host-mb, or a smaller --context: KV of longer sessions is kept on the device"
            " alone",
        )


def create_staging_folder(named: Path | None) -> StagingFolder | None:
    """Makes a folder below `named`, else in memory. Returns None, with a log line, where the system offers no memory.

    Blocking. Raises BadInput for a folder that is named and cannot be used."""
    try:
        if named is None and not MEMORY_BACKED.is_dir():
            raise FileNotFoundError(f"{MEMORY_BACKED} is missing")  # and is not ours to make
        return StagingFolder(named or MEMORY_BACKED)
    except OSError as exc:
        if named is not None:
            raise BadInput(
                "bad_kv_folder",
                f"The folder for KV in plain text, {named}, cannot be used ({exc}). Give --kv-staging another one, or"
                " leave it out.",
                param="kv_staging",
            ) from exc
        log.warning(
            "kv_spill_disabled",
            error=str(exc),
            advice=f"mount a folder in memory at {MEMORY_BACKED} (docker: --shm-size), or name one by --kv-staging,"
            " where KV will lie in plain text",
        )
        return None
