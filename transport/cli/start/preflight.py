"""Checks before a start what would else fail late: ports, files that are named, the data folder.

Nothing is held: between a check and the start another process may still take the port; then the start fails as before.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import tempfile
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Final

from sessions.governance.retention import Retention
from transport.addresses import bare_host, check_loopback
from transport.auth.client_addresses import TrustedProxies
from transport.auth.origins import OriginPolicy
from transport.cli.settings import BadSetting, Settings, read_keys
from transport.cli.start.config_files import ConfigFile, limits_file, parse_retention
from transport.cli.start.credentials import read_sign_in
from transport.push.opening import push_door

JOURNAL: Final = "journal.db"
KEYS: Final = "keys.db"
MASTER_KEY: Final = "master.key"
HOSTS: Final = {"port": "host", "grpc_port": "host", "metrics_port": "metrics_host", "peer_port": "peer_host"}
WHY: Final = {
    errno.EADDRINUSE: "port {port} of {host} is taken; stop what listens there, or choose another port with --{flag}",
    errno.EACCES: "this user may not listen on port {port}; choose one above 1023 with --{flag}",
    errno.EADDRNOTAVAIL: "{host} is not an address of this machine",
}


def check_ports(settings: Settings, names: Iterable[str]) -> None:
    """Raises BadSetting for a port that cannot be listened on. `names` are those of the ports' settings; 0 (any free
    port) and -1 (off) are not checked."""
    for name in names:
        port: int = getattr(settings, name)
        if port > 0:
            _check_port(name, getattr(settings, HOSTS[name]), port)


def _check_port(name: str, host: str, port: int) -> None:
    try:
        for family, kind, proto, _, address in socket.getaddrinfo(bare_host(host), port, type=socket.SOCK_STREAM):
            with socket.socket(family, kind, proto) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
                probe.listen(1)
    except OSError as error:
        why = WHY.get(error.errno or 0, "{error}")
        flag = name.replace("_", "-")
        raise BadSetting(f"{name} = {port}: {why.format(host=host, port=port, flag=flag, error=error)}") from error


def check_model(settings: Settings) -> None:
    """Raises BadSetting if the model's file does not exist, or is a folder although the engine is llama.cpp."""
    path = Path(settings.model)
    if settings.engine not in ("llama", "vllm") or not settings.model:
        return
    if not path.exists():
        raise BadSetting(
            f"model = {settings.model!r}: this file does not exist. Name a GGUF file, hf:ORG/REPO, or a model of"
            " `./sessile models list`, with --model"
        )
    if settings.engine == "llama" and path.is_dir():
        raise BadSetting(f"model = {settings.model!r}: this is a folder. Name the GGUF file in it with --model")


def check_files(settings: Settings) -> None:
    """Raises BadSetting or BadInput for a wrong file of limits, retention, keys or issuers, and for wrong settings of
    origins, proxies, pushes or the sign-in. Called before the model is loaded, which takes long."""
    OriginPolicy(settings.origins, proxies=TrustedProxies(settings.trusted_proxies))
    read_sign_in(settings)
    if settings.limits:
        limits_file(settings.limits)
    if settings.retention:
        ConfigFile("retention", settings.retention, parse_retention, Retention())
    if settings.keys:
        read_keys(settings.keys)
    if settings.issuers:
        from transport.auth.jwt_issuers import read_issuers  # PyJWT takes a tenth of a second to load

        read_issuers(settings.issuers)
    push_door(settings)


def check_journal_exists(settings: Settings, *, made: bool = False) -> None:
    """Raises BadSetting if the data folder has no journal: a command with a misspelt folder would otherwise make a new,
    empty one. With `made`, a missing journal is allowed, because the command makes it."""
    check_journal_complete(settings)
    if made:
        return
    if settings.journal == "sqlite" and not (Path(settings.data) / JOURNAL).is_file():
        raise BadSetting(
            f"data = {settings.data!r}: there is no journal in this folder; name the data folder of the server with"
            " --data, or its database with --journal"
        )


@contextlib.contextmanager
def checked_start(settings: Settings, ports: Collection[str]) -> Iterator[None]:
    """Checks ports, host, data folder, model and files, then runs the block. Makes the data folder if it is not there.
    Raises BadSetting, BadInput."""
    check_ports(settings, ports)
    asks_for_keys = settings.auth == "keys" or settings.keys or settings.issuers or settings.oidc_issuer
    if "port" in ports and not asks_for_keys:
        check_loopback(settings.host)
    with new_data_folder(settings):
        check_model(settings)
        check_files(settings)
        yield


@contextlib.contextmanager
def new_data_folder(settings: Settings) -> Iterator[None]:
    """Makes the data folder if it does not exist, and runs the block. If the block fails before anything but a new
    master key was written, removes the folder again. Raises BadSetting."""
    folder = Path(settings.data)
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        check_journal_complete(settings)
        check_data_folder(settings)
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            if made and {each.name for each in folder.iterdir()} <= {MASTER_KEY}:
                (folder / MASTER_KEY).unlink(missing_ok=True)  # made by this start, and nothing was encrypted under it
                for each in made:
                    each.rmdir()
        raise


def check_journal_complete(settings: Settings) -> None:
    """Raises BadSetting where a data folder has lost one of the files that belong together (moved, deleted, not
    restored): the server would begin with a new, empty one as if nothing had been."""
    if settings.journal != "sqlite":
        return
    folder = Path(settings.data)
    journal, keys = folder / JOURNAL, folder / KEYS
    has_rows = journal.is_file() and journal.stat().st_size > 0
    lost = ""
    if keys.is_file() and not journal.is_file():
        lost = (
            f"{KEYS} is there and {JOURNAL} is not; put the journal back, from a backup if need be, or move {KEYS} away"
            " to begin without what was in it"
        )
    elif has_rows and not keys.is_file():
        lost = (
            f"{KEYS} is missing: nobody can read what {JOURNAL} has without it; put it back, from a backup if need be,"
            f" or move {JOURNAL} away to begin without what is in it"
        )
    elif keys.is_file() and not (settings.master_key or settings.key_service or (folder / MASTER_KEY).is_file()):
        lost = (
            f"{MASTER_KEY} is missing: nobody can read what {JOURNAL} has without it; put it back from where it is"
            f" kept, or name its file with --master-key, or move {JOURNAL} and {KEYS} away to begin without what is in"
            " them"
        )
    if lost:
        raise BadSetting(f"data = {settings.data!r}: {lost}")


def check_data_folder(settings: Settings) -> None:
    """Makes the data folder if it does not exist. Raises BadSetting if nothing can be written to it."""
    folder = Path(settings.data)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"\0")
    except OSError as error:
        raise BadSetting(
            f"data = {settings.data!r}: the data folder cannot be written to ({error.strerror or error}); make it a"
            " folder that this user may write to, or choose another one with --data"
        ) from error
