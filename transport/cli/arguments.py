"""The commands of `app.py` and their flags."""

from __future__ import annotations

import argparse
from typing import Any, Final, get_type_hints

from actors.maintenance.introspection import PAGE_MAX, STATES
from transport.cli.audit import ABOUT as ABOUT_AUDIT
from transport.cli.audit import add_audit
from transport.cli.keys import ABOUT as ABOUT_KEYS
from transport.cli.keys import add_keys
from transport.cli.operator import Wanted
from transport.cli.settings import BadSetting, Settings, allowed
from transport.cli.users import ABOUT as ABOUT_USERS
from transport.cli.users import add_users

IN_A_CLUSTER: Final = ("gateway", "replica", "replicas", "sessions", "drain")
ONE_JOURNAL: Final = ("gateway", "replica")  # what these write and read must be the same for all

ABOUT_SESSIONS: Final = """\
Shows the sessions that are in a replica's memory: who owns them, under which fence, in which state ({states}), where
their KV is, which answers are open, and why they are there: new, woken, handed off or taken over, and which choice of
placement's hash the replica is. A parked session is in no memory; whoever speaks to it next wakes it."""


ABOUT_USAGE: Final = """\
Computes every response's usage again from its session's log and compares it with its usage row, to the token and to the
smallest part of the currency; ends with status 1 when anything differs. Reads the journal itself: with SQLite the
server must not be running, with PostgreSQL it may."""


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="app.py", description="Sessile: chat sessions as actors that own their KV.")
    roles = top.add_subparsers(dest="role", required=True)
    add_settings(roles.add_parser("serve", help="run everything in one process"))
    add_settings(roles.add_parser("gateway", help="run a gateway of a cluster: clients connect to it"))
    add_settings(roles.add_parser("replica", help="run a replica of a cluster: an engine with its actors"))
    add_settings(roles.add_parser("replicas", help="show the replicas of a cluster"))
    about = ABOUT_SESSIONS.format(states=", ".join(STATES))
    add_sessions(roles.add_parser("sessions", help="show who has which session, and why", description=about))
    drain = roles.add_parser("drain", help="move everything off a replica")
    drain.add_argument("replica", help="its name, as `replicas` shows it")
    add_settings(drain)
    usage = roles.add_parser("usage", help="hold what was billed against the logs", description=ABOUT_USAGE)
    usage.add_argument("action", choices=("reconcile",))
    usage.add_argument("--tenant", default="", help="only this one's")
    usage.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    add_settings(usage)
    add_keys(roles.add_parser("keys", help="make, show and revoke API keys", description=ABOUT_KEYS), add_settings)
    add_audit(roles.add_parser("audit", help="show and check the audit log", description=ABOUT_AUDIT), add_settings)
    about_users = "tell or erase everything of an end user"
    add_users(roles.add_parser("users", help=about_users, description=ABOUT_USERS), add_settings)
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


def add_sessions(role: argparse.ArgumentParser) -> None:
    role.add_argument("--replica", default="", help="only those that this one has")
    role.add_argument("--tenant", default="", help="only those of this tenant")
    role.add_argument("--session", default="", help="only this one")
    role.add_argument("--state", default="", choices=STATES, help="only those in this state")
    role.add_argument("--limit", type=int, default=50, metavar="N", help=f"of a page, at most {PAGE_MAX} (50)")
    role.add_argument("--after", default="", metavar="TENANT/SESSION", help="the page behind this one")
    role.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    add_settings(role)


def taken_sessions(given: dict[str, Any]) -> tuple[Wanted, bool]:
    """What `sessions` is asked for, taken out of the flags; and whether as JSON. Raises BadSetting."""
    wanted = Wanted(**{name: given.pop(name) for name in Wanted.__struct_fields__})
    if not 1 <= wanted.limit <= PAGE_MAX:
        raise BadSetting(f"limit = {wanted.limit}: at least 1, at most {PAGE_MAX}")
    return wanted, given.pop("json")


def check_role(role: str, settings: Settings) -> None:
    """Raises BadSetting for a role that its settings do not suffice for."""
    if role in IN_A_CLUSTER and not settings.directory:
        raise BadSetting(f"directory: a cluster needs one, for example --directory redis://127.0.0.1:6379 ({role})")
    if role in ONE_JOURNAL and not settings.journal.startswith(("postgresql://", "postgres://")):
        raise BadSetting(
            f"journal = {settings.journal!r}: a {role} needs one that the whole cluster shares, for example"
            " --journal postgresql://user@host/sessile"
        )
