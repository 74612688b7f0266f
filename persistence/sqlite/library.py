"""The SQLite library that every store of this process uses, and what may be done with it.

Python uses the SQLite of its system, often years old. Before 3.51.3 a WAL file can be corrupted when one connection
makes a checkpoint while another one writes (SQLite's release notes, 3.51.3). The journal does just that, to keep its
commits short, so it uses the SQLite inside the `pysqlite3` wheel if there is one for this machine. Two libraries must
not open one file in one process (closing a file drops the POSIX locks of both): import it from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import sqlite3
else:
    try:
        from pysqlite3 import dbapi2 as sqlite3
    except ImportError:  # no wheel for this machine: the system's, with the checkpoints inside the writer's commits
        import sqlite3

__all__ = ["CHECKPOINTS_BESIDE_COMMITS", "sqlite3"]

CHECKPOINTS_BESIDE_COMMITS: Final = sqlite3.sqlite_version_info >= (3, 51, 3)
