"""The command line's way in: reads a command with its settings and carries it out, or hands a role to the wiring.

Each command imports what it needs when it is known to be the one: what a server is made of takes two seconds to load,
and most commands only print something. Raises nothing that a user could have caused: that is a sentence and a status.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Coroutine, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from sessions.model.errors import SessileError
from transport.cli import commands, doctor, models
from transport.cli.cluster import DrainReplica, ListReplicas, ListSessions, UndrainReplica
from transport.cli.commands import VERSION, parse
from transport.cli.plain_text import plain_lines
from transport.cli.plan import PlanCluster
from transport.cli.settings import BadSetting, Settings, exposed_files, secrets_in
from transport.cli.start.start_stopped import StartStopped

if TYPE_CHECKING:
    import msgspec

    from sessions.model.types import UnixMs

INTERRUPTED: Final = 130  # as a shell says it of a program that Ctrl-C has ended
Role = Callable[[Any, Settings], Coroutine[Any, Any, int]]
ROLES: Final = (commands.Serve, commands.RunGateway, commands.RunReplica)


def run_command_line(
    arguments: Sequence[str],
    environment: MutableMapping[str, str],
    now_ms: Callable[[], UnixMs],
    run_role: Role | None = None,
) -> int | None:
    """Returns the status to exit with; None for a role (`serve`, `gateway`, `replica`) without `run_role`."""
    if arguments[:1] == ["chat"]:
        from transport.cli.chat import run_chat
        from transport.proxies import spare_loopback

        spare_loopback(environment)
        return run_chat(arguments[1:])
    try:
        parsed = parse(arguments, environment, VERSION)
        if parsed is None:
            return 0 if {"--help", "-h", "--version"} & set(arguments) else 2
        options, settings, config = parsed
        if isinstance(options, ROLES) and run_role is None:
            return None
        from transport.cli import logs

        logs.configure(settings.log_level, settings.log_format, secrets=secrets_in(settings))
        logs.warn_of_exposed_files(exposed_files(settings, config))
        return _run(options, settings, environment, now_ms, run_role)
    except (BadSetting, SessileError, BaseExceptionGroup, StartStopped) as error:
        cause: BaseException = error
        while isinstance(cause, BaseExceptionGroup) and len(cause.exceptions) == 1:
            cause = cause.exceptions[0]
        if isinstance(cause, StartStopped):
            return 0
        if not isinstance(cause, BadSetting | SessileError):
            raise
        message = cause.public_message if isinstance(cause, SessileError) else str(cause)
        print(f"sessile: {plain_lines(message)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED


def _run(
    options: msgspec.Struct,
    settings: Settings,
    environment: MutableMapping[str, str],
    now_ms: Callable[[], UnixMs],
    run_role: Role | None,
) -> int:
    """Raises BadSetting, SessileError."""
    from transport.proxies import spare_loopback

    spare_loopback(environment)
    if isinstance(options, models.ModelCommand):
        from deploy.commands.models import run_models_command

        return run_models_command(settings, options)
    if isinstance(options, PlanCluster):
        from deploy.commands.plan import run_plan

        return run_plan(options)
    import asyncio

    import uvloop

    work: Coroutine[Any, Any, int]  # made when all is loaded: Ctrl-C before that leaves none behind
    if isinstance(options, ROLES):
        from deploy.preload import preload

        assert run_role is not None
        if settings.engine != "sim":  # which has no model
            from deploy.commands.models import prepared

            settings = prepared(options, settings)
        has_engine, in_cluster = not isinstance(options, commands.RunGateway), not isinstance(options, commands.Serve)
        preload(settings, has_engine=has_engine, in_cluster=in_cluster)
        work = run_role(options, settings)
    elif isinstance(options, doctor.ExamineCluster):
        from deploy.commands.doctor import run_doctor

        work = run_doctor(settings, options)
    elif isinstance(options, ListReplicas | ListSessions | DrainReplica | UndrainReplica):
        from deploy.commands.cluster import run_cluster_command

        work = run_cluster_command(options, settings)
    else:
        from deploy.commands.journal import run_journal_command

        work = run_journal_command(options, settings, now_ms, environment)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            return runner.run(work)
        except KeyboardInterrupt:  # the command has cleaned up; a thread of it may wait for a server for minutes
            sys.stderr.flush()
            os._exit(INTERRUPTED)
