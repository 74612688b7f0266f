"""Makes the secrets of deploy/compose.yaml in a folder, each once; what is there stays.

    python make_secrets.py FOLDER

Each file belongs to the one user that reads it, mode 0400. Runs on the bare standard library, as root.
"""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

SESSILE = 10001  # the user of the image
SERVERS = 999  # of Valkey's and PostgreSQL's images
PASSWORDS = ("valkey", "postgres")


def make_secrets(folder: Path, owners: dict[str, int] | None = None) -> None:
    """`owners` None: those of the images. A password is in two files, the server's and the address of its clients, so
    neither is made anew without the other."""
    owner = {"sessile": SESSILE, "servers": SERVERS} if owners is None else owners
    folder.chmod(0o755)  # files are closed, each to all but its reader
    for name in ("peer-token", "master-key"):
        _make(folder / name, secrets.token_hex(32), owner["sessile"])
    for name in PASSWORDS:
        stored = folder / f"{name}-password"
        _make(stored, secrets.token_hex(32), owner["servers"])
        password = stored.read_text()
        if name == "valkey":
            config = f'dir /data\nappendonly yes\nmaxmemory-policy noeviction\nrequirepass "{password}"\n'
            _make(folder / "valkey.conf", config, owner["servers"])
            _make(folder / "directory", f"redis://:{password}@valkey:6379", owner["sessile"])
        else:
            _make(folder / "journal", f"postgresql://sessile:{password}@postgres/sessile", owner["sessile"])


def _make(path: Path, text: str, owner: int) -> None:
    """Whole or not at all: a file that is there is never touched."""
    if path.exists():
        return
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    with open(os.open(new, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o400), "w") as file:
        file.write(text)
    os.chown(new, owner, owner)
    new.rename(path)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: make_secrets.py FOLDER")
    make_secrets(Path(sys.argv[1]))
