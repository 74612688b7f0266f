"""The release before this one (N−1): what it was, and its tree where this checkout has its history.

When a release is made, `REVISION` becomes the one before it, `record.py` is run in its tree, and what only that
release's neighbour needed may go: docs/upgrading.md.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[3]
RECORDED: Final = ROOT / "tests" / "golden" / "neighbours"
REVISION: Final = "6d6d3371968f0c3da622ebbd2b3c654047fa34fa"  # what was unreleased
SCHEMA: Final = 16  # the newest migration that it knows
PROTOCOLS: Final = (1, 2)  # the peer protocols that it speaks
TREE: Final = (
    "actors",
    "inference",
    "persistence",
    "sessions",
    "transport",
    "deploy",
    "app.py",
    "pyproject.toml",
    "tests",
)


def has_history(revision: str = REVISION) -> bool:
    """Whether this checkout can make that release's tree."""
    known = subprocess.run(["git", "cat-file", "-e", f"{revision}^{{commit}}"], cwd=ROOT, capture_output=True)
    return known.returncode == 0


def unpack_release(folder: Path, revision: str = REVISION) -> Path:
    """The tree of a release, in `folder`, to be run by this checkout's environment."""
    archive = subprocess.run(["git", "archive", revision, *TREE], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    for shared in (".venv", ".cache"):
        if (ROOT / shared).exists():
            (folder / shared).symlink_to(ROOT / shared)
    return folder
