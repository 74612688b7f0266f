"""Writes docs/settings.md: every setting with its default, what it may be, and which commands read it.

python deploy/settings_page.py
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # as a script its own folder alone is there

from transport.cli.commands import COMMANDS
from transport.cli.settings import FIELDS, GROUPS, PREFIX, TYPES

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "settings.md"
SERVERS: Final = ("serve", "gateway", "replica")
OPENING: Final = f"""\
# Settings

Made from the program by `python deploy/settings_page.py`; `./sessile COMMAND --help` shows those of one command. Only
servers are named as readers; other commands read those of the journal or server that they work on.

Each setting has three spellings, here for `kv_disk_mb`: the option `--kv-disk-mb 4096`, the variable
`{PREFIX}KV_DISK_MB=4096`, and the line `kv_disk_mb = 4096` in the TOML file of `--config FILE` (or of
`{PREFIX}CONFIG`). An option counts before a variable, a variable before a line. Several values are written `a,b` in
options and variables, and `["a", "b"]` in the file. What is yes or no is an option alone (`--peer-insecure`), and
`true` or `false` elsewhere. What is misspelt or out of bounds ends the start with a sentence.
Where the second column names no value, the default is empty.

A setting named `..._mb` is in megabytes (10⁶ bytes), `..._s` in seconds, `..._ms` in milliseconds. Secrets (SECRET,
KEY, TOKEN) are never options: they stand in a variable, in the file of settings (mode 0600), or in a file of their own
that `..._file` names.

Files of limits, prices, policies, retention, models, tools and embeddings are read again when they change. A malformed
one prevents the start; later it is refused with a log line, and the old one stays in force.
"""


def page_text() -> str:
    """Returns the whole page."""
    parts = [OPENING]
    for group in dict.fromkeys(GROUPS.values()):
        names = [name for name in FIELDS if GROUPS[name] == group]
        readers = [_readers(name) for name in names]
        usual = max(readers, key=readers.count)
        others = "" if set(readers) == {usual} else ", if a row names no others"
        parts.append(f"\n## {group}\n\nRead by {usual}{others}.\n\n")
        parts.append("| setting | default; else | what it is |\n|---|---|---|\n")
        parts += [_row(name, usual) for name in names]
    return "".join(parts)


def _row(name: str, usual: str) -> str:
    metadata = FIELDS[name].metadata
    about = metadata["about"].replace("|", "\\|")
    readers = _readers(name)
    also = "" if readers == usual else f" ({readers})"
    allowed = _allowed(name)
    values = "; ".join(filter(None, (_default(FIELDS[name].default), allowed)))
    return f"| `{name}` | {values} | {about}{also} |\n"


def _default(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(f"`{each}`" for each in value)
    return "" if value == "" else f"`{_number(value)}`"


def _number(value: Any) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _allowed(name: str) -> str:
    kind, metadata = TYPES[name], FIELDS[name].metadata
    if get_origin(kind) is Literal:
        return ", ".join(f"`{each}`" for each in get_args(kind) if each != FIELDS[name].default)
    if kind is bool:
        return ""
    bounds = metadata["bounds"]
    words = {"ge": "from {}", "gt": "above {}", "le": "to {}", "lt": "below {}"}
    limits = [
        word.format(_number(limit)) for each, word in words.items() if (limit := getattr(bounds, each)) is not None
    ]
    return " ".join([metadata["metavar"], *limits])


def _readers(name: str) -> str:
    readers = [
        each for each, command in COMMANDS.items() if name in command.settings or GROUPS[name] in command.settings
    ]
    servers = [each for each in SERVERS if each in readers]
    named = ", ".join(f"`{each}`" for each in (servers or readers[:3]))
    return named + (" ..." if not servers and len(readers) > 3 else "")


if __name__ == "__main__":
    PAGE.write_text(page_text())
