"""The script that unpacks pgBackRest says why it cannot."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_without_lists_of_packages_it_says_what_to_run(tmp_path: Path) -> None:
    """The script ended silently: nothing of what `apt-cache` printed was a server."""
    for program in ("apt-get", "apt-cache"):
        stub = tmp_path / "bin" / program
        stub.parent.mkdir(exist_ok=True)
        stub.write_text("#!/bin/sh\n")
        stub.chmod(0o755)
    script = tmp_path / "deploy" / "ensure_backups.sh"
    script.parent.mkdir()
    shutil.copy(ROOT / "deploy" / script.name, script)
    ended = subprocess.run(
        ["bash", str(script)],
        env={"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1 and "[backups] not run" in ended.stderr and "apt-get update" in ended.stderr
