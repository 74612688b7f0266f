"""Scripts that run whole or not at all on the server of their keys: those of `lua/`, assembled from parts, and single
files of other packages.

They are sent by their SHA-1, and once with their text where a server does not know them (new, restarted, failed over).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from hashlib import sha1
from pathlib import Path
from typing import Any, Final, NamedTuple

from redis.exceptions import NoScriptError

from actors.directory.pipelined_connection import Word
from actors.directory.topology import Servers

FOLDER: Final = Path(__file__).parent / "lua"
READ_ONLY: Final = {"locate", "watchers"}
WITH_MEMBERS: Final = {"announce", "view"}
NAMES: Final = READ_ONLY | WITH_MEMBERS | {"activated", "claim", "lease", "release", "resign", "watch", "withdraw"}


class Script(NamedTuple):
    name: str
    text: str
    sha: str
    writes: bool


@cache
def script(name: str) -> Script:
    """Returns a script of `lua/`, read at its first use."""
    # A script that declares what it does is refused as a whole when the server is out of memory, before its first
    # write.
    flags = "#!lua flags=no-writes\n" if name in READ_ONLY else "#!lua\n"
    parts = ["prelude", "members", name] if name in WITH_MEMBERS else ["prelude", name]
    text = flags + "\n".join((FOLDER / f"{part}.lua").read_text() for part in parts)
    return _of_text(name, text, writes=name not in READ_ONLY)


@cache
def read_script(path: Path) -> Script:
    """Returns a script that is one whole file, read at its first use."""
    return _of_text(path.stem, path.read_text(), writes=True)


async def run_script(servers: Servers, what: Script, keys: Sequence[str], *words: Word) -> Any:
    """Runs a script on the server of `keys`; returns its answer. Raises like `Servers.call`."""
    arguments = (len(keys), *keys, *words)
    try:
        return await servers.call(keys[0], "EVALSHA", what.sha, *arguments)
    except NoScriptError:
        return await servers.call(keys[0], "EVAL", what.text, *arguments)


def _of_text(name: str, text: str, *, writes: bool) -> Script:
    return Script(name, text, sha1(text.encode(), usedforsecurity=False).hexdigest(), writes)
