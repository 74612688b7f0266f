"""The commands of `app.py` and their flags."""

from __future__ import annotations

import argparse
from typing import get_type_hints

from transport.command_line.settings import Settings, allowed


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="app.py", description="Sessile: chat sessions as actors that own their KV.")
    roles = top.add_subparsers(dest="role", required=True)
    add_settings(roles.add_parser("serve", help="run everything in one process"))
    add_settings(roles.add_parser("gateway", help="run a gateway of a cluster: clients connect to it"))
    add_settings(roles.add_parser("replica", help="run a replica of a cluster: an engine with its actors"))
    add_settings(roles.add_parser("replicas", help="show the replicas of a cluster"))
    drain = roles.add_parser("drain", help="move everything off a replica")
    drain.add_argument("replica", help="its name, as `replicas` shows it")
    add_settings(drain)
    chat = roles.add_parser("chat", help="talk to a server in the terminal", add_help=False)
    chat.add_argument("arguments", nargs=argparse.REMAINDER)
    return top


def add_settings(role: argparse.ArgumentParser) -> None:
    role.add_argument("--config", metavar="FILE", help="TOML file of settings")
    hints = get_type_hints(Settings, include_extras=True)
    defaults = Settings()
    for name in Settings.__struct_fields__:
        about = hints[name].__metadata__[0].description.replace("%", "%%")
        default = getattr(defaults, name)
        default = ",".join(default) if isinstance(default, tuple) else default
        role.add_argument(
            f"--{name.replace('_', '-')}",
            metavar="VALUE",
            default=argparse.SUPPRESS,
            help=f"{about} ({allowed(hints[name])}; default: {default!s}; SESSILE_{name.upper()})",
        )
