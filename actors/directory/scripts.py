"""The scripts of `lua/`, put together: each runs whole or not at all on the server of its keys.

They are sent by their SHA-1 and, where a server does not know it (new, restarted, failed over), once with their text.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha1
from pathlib import Path
from typing import Final, NamedTuple

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
    """Reads it at its first use."""
    # A script that declares what it does is refused as a whole when the server is out of memory, before its first
    # write.
    flags = "#!lua flags=no-writes\n" if name in READ_ONLY else "#!lua\n"
    parts = ["prelude", "members", name] if name in WITH_MEMBERS else ["prelude", name]
    text = flags + "\n".join((FOLDER / f"{part}.lua").read_text() for part in parts)
    return Script(name, text, sha1(text.encode(), usedforsecurity=False).hexdigest(), name not in READ_ONLY)
