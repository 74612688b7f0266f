"""The commands and their options: what `--help` shows of each, and how arguments become a command with its settings.

Parses and prints help, nothing else: what a command does is `app.py`'s. A command shows the settings that it uses and
accepts every other one too, because the members of a cluster are started with the same flags.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec
from cyclopts import App, CycloptsError, Group, Parameter

from transport.cli import audit, encryption, keys, models, tokens, users
from transport.cli.cluster import DrainReplica, ListReplicas, ListSessions, UndrainReplica
from transport.cli.doctor import ExamineCluster
from transport.cli.plan import PlanCluster
from transport.cli.settings import CONFIG, FIELDS, GROUPS, TYPES, BadSetting, Settings, allowed, read_settings
from transport.cli.shared_flags import Json, Tenant

PROGRAM: Final = "./sessile"
VERSION: Final = "0.2.0"


class Serve(msgspec.Struct, frozen=True, kw_only=True):
    """Runs everything in one process: the public doors, the sessions, an engine and the journal."""


class RunGateway(msgspec.Struct, frozen=True, kw_only=True):
    """Runs a gateway of a cluster: clients connect to it, and it routes them to replicas."""


class RunReplica(msgspec.Struct, frozen=True, kw_only=True):
    """Runs a replica of a cluster: an engine with the sessions that it owns."""


class ReconcileUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Computes every response's usage again from its session's log and compares it with its usage row.

    Compares to the token and to the smallest part of the currency; ends with status 1 when anything differs. Reads the
    journal itself: with SQLite the server must not be running, with PostgreSQL it may.
    """

    tenant: Tenant = ""
    as_json: Json = False


class RestoreReplica(msgspec.Struct, frozen=True, kw_only=True):
    """Restores the journal of a data folder, which has none yet, from the copy that `serve --replicate` made.

    Put keys.db and master.key of the lost server into the folder too: neither is in the replica, and nobody can read it
    without both.
    """

    url: Annotated[str, Parameter(name="--from", metavar="URL", help="the URL of --replicate", show_default=False)]
    at: Annotated[
        str,
        Parameter(metavar="TIME", help="like 2026-11-24T01:20:00Z; else the last moment", show_default=False),
    ] = ""


class CommandSpec(NamedTuple):
    """What the command line knows of a command: the type of its options, the settings that its help shows (groups or
    names), and an example."""

    options: type[msgspec.Struct]
    settings: tuple[str, ...]
    example: str


CREDENTIALS: Final = (
    "peer_token",
    "peer_token_file",
    "peer_insecure",
    "peer_authority",
    "peer_certificate",
    "peer_key",
    "peer_server_name",
)
JOURNAL_KEYS: Final = (
    "journal",
    "journal_file",
    "audit_key",
    "journal_encryption",
    "master_key",
    "key_service",
    "key_service_token",
    "key_service_token_file",
    "key_service_authority",
)
URL: Final = "--url http://127.0.0.1:8080"
ENGINE: Final = ("Engine", "Simulated engine", "KV", "Sessions", "Retention", "Retrieval", "Metering", "Push")
OPERATOR: Final = ("directory", "directory_file", *CREDENTIALS, "Logging")
OFFLINE: Final = ("Journal", "Logging")
MODELS: Final = ("model_folder", "engine")
EITHER: Final = (*OFFLINE, "Running server")  # on the journal, or through a server
DOORS: Final = ("Listening", "Authentication", "Sign-in", "Limits", "Telemetry", "Logging")

MODEL_ENGINES: Final = ("llama", "vllm")
READERS: Final[Mapping[str, tuple[str, ...]]] = {
    "engine_url": ("remote", "chat"),
    "engine_key_file": ("remote", "chat"),
    "model": (*MODEL_ENGINES, "remote", "chat"),
    "images": ("chat", "sim"),
    "projector": ("llama",),
    "model_folder": (*MODEL_ENGINES, "remote"),
    "brownout_slots": ("llama", "sim"),
    **dict.fromkeys(("gpu_memory", "memory_check", "step_target_ms", "threads"), MODEL_ENGINES),
    **dict.fromkeys(("kv_host_mb", "kv_staging", "kv_disk_mb"), MODEL_ENGINES),
    **dict.fromkeys(("kv_redis", "kv_redis_file", "kv_redis_mb"), MODEL_ENGINES),
}
"""The engines that read a setting, for settings that other engines would silently ignore."""
OWN_PREFIXES: Final[Mapping[str, tuple[str, ...]]] = {"sim_": ("sim",), "vllm_": ("vllm",)}

COMMANDS: Final[dict[str, CommandSpec]] = {
    "serve": CommandSpec(
        Serve,
        (*DOORS, "Journal", "Replication", "Files", *ENGINE, "Moderation"),
        "serve --model model.gguf --port 9000",
    ),
    "gateway": CommandSpec(
        RunGateway,
        (*DOORS, *JOURNAL_KEYS, "prices", "Retrieval", "Directory", "Files", "Push", *CREDENTIALS),
        "gateway --directory redis://127.0.0.1:6379 --journal postgresql://user@host/sessile",
    ),
    "replica": CommandSpec(
        RunReplica,
        (*ENGINE, "Moderation", "Journal", "Files", "Directory", "Peers", "Limits", "Telemetry", "Logging"),
        "replica --directory redis://127.0.0.1:6379 --journal postgresql://user@host/sessile --model model.gguf",
    ),
    "replicas": CommandSpec(
        ListReplicas, ("directory", "directory_file", "Logging"), "replicas --directory redis://127.0.0.1:6379"
    ),
    "sessions": CommandSpec(ListSessions, OPERATOR, "sessions --directory redis://127.0.0.1:6379 --state turn"),
    "drain": CommandSpec(DrainReplica, OPERATOR, "drain replica-1 --directory redis://127.0.0.1:6379"),
    "undrain": CommandSpec(UndrainReplica, OPERATOR, "undrain replica-1 --directory redis://127.0.0.1:6379"),
    "doctor": CommandSpec(
        ExamineCluster,
        ("directory", "directory_file", *CREDENTIALS, "journal", "journal_file", "data", "tls_certificate", "Logging"),
        "doctor --directory redis://127.0.0.1:6379 --journal postgresql://user@host/sessile",
    ),
    "plan": CommandSpec(PlanCluster, ("Logging",), "plan --of llama-3.1-405b --gpu h100,h200 --sessions 2000"),
    "restore": CommandSpec(RestoreReplica, ("data", "Logging"), "restore --from s3://copies/sessile --data restored"),
    "usage reconcile": CommandSpec(ReconcileUsage, OFFLINE, "usage reconcile --tenant acme"),
    "keys create": CommandSpec(keys.CreateKey, EITHER, "keys create --tenant acme --role operator --label me"),
    "keys list": CommandSpec(keys.ListKeys, EITHER, "keys list --tenant acme"),
    "keys show": CommandSpec(keys.ShowKey, EITHER, "keys show abcdefghijkl --url http://127.0.0.1:8080"),
    "keys revoke": CommandSpec(keys.RevokeKey, EITHER, "keys revoke abcdefghijkl --url http://127.0.0.1:8080"),
    "tokens revoke": CommandSpec(tokens.RevokeTokens, EITHER, f"tokens revoke --subject 8c1f {URL}"),
    "tokens list": CommandSpec(tokens.ListRevocations, EITHER, f"tokens list {URL}"),
    "audit list": CommandSpec(audit.ListRows, EITHER, "audit list --tenant acme --last 20"),
    "audit verify": CommandSpec(audit.VerifyChain, EITHER, "audit verify --tenant acme"),
    "encryption status": CommandSpec(encryption.ShowEncryption, EITHER, f"encryption status {URL}"),
    "encryption rotate": CommandSpec(encryption.RotateKeys, EITHER, f"encryption rotate --tenant acme {URL}"),
    "encryption rewrap": CommandSpec(encryption.RewrapKeys, EITHER, f"encryption rewrap {URL}"),
    "encryption stop": CommandSpec(encryption.StopSweep, EITHER, f"encryption stop {URL}"),
    "encryption resume": CommandSpec(encryption.ResumeSweep, EITHER, f"encryption resume {URL}"),
    "encryption destroy": CommandSpec(encryption.DestroyKeys, EITHER, "encryption destroy --tenant acme"),
    "encryption master": CommandSpec(
        encryption.ChangeMasterKey, ("data", "master_key", "Logging"), "encryption master add"
    ),
    "models list": CommandSpec(models.ListModels, MODELS, "models list"),
    "models pull": CommandSpec(models.PullModel, MODELS, "models pull hf:Qwen/Qwen3-4B-GGUF:Q4_K_M"),
    "models remove": CommandSpec(models.RemoveModel, MODELS, "models remove hf:Qwen/Qwen3-4B-GGUF"),
    "users export": CommandSpec(users.ExportUser, EITHER, "users export mary --tenant acme --out mary.jsonl"),
    "users erase": CommandSpec(users.EraseUser, EITHER, "users erase mary --tenant acme"),
}
FAMILIES: Final = {
    "usage": "Compares what was billed with the logs.",
    "keys": keys.__doc__,
    "tokens": tokens.__doc__,
    "audit": audit.__doc__,
    "users": users.__doc__,
    "encryption": encryption.__doc__,
    "models": models.__doc__,
}


class Parsed(NamedTuple):
    options: msgspec.Struct
    settings: Settings
    config: str | None = None
    """The path of the settings file; None if there is none."""


def parse(arguments: Sequence[str], environment: Mapping[str, str], version: str) -> Parsed | None:
    """Returns the command of these arguments with its settings; None if help or the version was printed instead.

    Raises BadSetting."""
    try:
        parsed = command_line(environment, version, arguments)(
            arguments, exit_on_error=False, print_error=False, result_action="return_value"
        )
    except CycloptsError as error:
        chain = " ".join([PROGRAM, *(error.command_chain or ())])
        raise BadSetting(f"{error} `{chain} --help` shows what there is.") from error
    return parsed if isinstance(parsed, Parsed) else None


def command_line(environment: Mapping[str, str], version: str, arguments: Sequence[str] | None = None) -> App:
    """Returns the parser of all commands. With `arguments`, only the commands that these name get their options and
    settings: making all four thousand of them takes a second."""
    top = App(
        name=PROGRAM,
        help="Sessile: chat sessions as actors that own their KV.",
        help_epilogue=(
            "Each setting is a flag (--kv-disk-mb), a variable (SESSILE_KV_DISK_MB) and a key of the TOML file that"
            " --config or SESSILE_CONFIG names (kv_disk_mb); a flag goes before a variable, a variable before the file."
        ),
        help_format="plaintext",
        version=version,
        group_parameters=Group("Options", sort_key=0),
        default_parameter=Parameter(allow_repeating=True, negative=()),
    )
    families = {name: App(name=name, help=_paragraphs(about), help_epilogue="") for name, about in FAMILIES.items()}
    for family in families.values():
        top.command(family)
    words = [word for word in arguments or () if not word.startswith("-")][:2]
    for name, command in COMMANDS.items():
        prefix, _, action = name.rpartition(" ")
        is_named = arguments is None or name in (*words[:1], " ".join(words))
        families.get(prefix, top).command(
            _entry(command, environment) if is_named else _not_named,
            name=action,
            help=_paragraphs(command.options.__doc__),
            help_epilogue=f"Example: {PROGRAM} {command.example}",
        )
    top.command(App(name="chat", help="Talks to a server in the terminal.", help_flags=()))
    return top


def _not_named() -> None:
    """Stands for a command that the arguments do not name."""


def _paragraphs(docstring: str | None) -> str:
    """Returns a docstring without the line breaks within its paragraphs."""
    return "\n\n".join(" ".join(each.split()) for each in (docstring or "").split("\n\n"))


def _entry(command: CommandSpec, environment: Mapping[str, str]) -> Any:
    """Returns a function with a command's options and all settings as its parameters."""
    hints = get_type_hints(command.options, include_extras=True)
    own = [_own(each, hints[each.name]) for each in inspect.signature(command.options).parameters.values()]

    def entry(*positional: Any, **given: Any) -> Parsed:
        config = given.pop("config", None) or environment.get(CONFIG)
        named = dict(zip([each.name for each in own], positional, strict=False))
        named |= {name: given.pop(name) for name in list(given) if name in hints}
        options, settings = command.options(**named), read_settings(given, environment, config)
        if issubclass(command.options, Serve | RunReplica):
            _check_engine(settings.engine, given)
        if {"directory", "Directory"} & set(command.settings):
            _check_cluster(options, settings)
        return Parsed(options, settings, config)

    config = Annotated[str | None, Parameter(metavar="FILE", help="TOML file of settings", show_default=False)]
    parameters = [
        *own,
        inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, annotation=config, default=None),
        *(_setting(name, shown=command.settings) for name in FIELDS if name not in hints),
    ]
    entry.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return entry


def _check_cluster(options: msgspec.Struct, settings: Settings) -> None:
    """Raises BadSetting if the settings do not suffice for a member or an operator of a cluster."""
    if not settings.directory and isinstance(options, ExamineCluster):
        if not options.gateways:
            raise BadSetting(
                "directory: name that of the cluster, for example --directory redis://127.0.0.1:6379; or a single"
                " server (`serve`) by --gateways http://127.0.0.1:8080"
            )
    elif not settings.directory:
        raise BadSetting(
            "directory: a cluster needs one, for example --directory redis://127.0.0.1:6379. A single server"
            " (`serve`) has none, and this command is for clusters."
        )
    if isinstance(options, RunGateway | RunReplica) and not settings.journal.startswith(
        ("postgresql://", "postgres://")
    ):
        raise BadSetting(
            f"journal = {settings.journal!r}: a cluster needs one that all its members share, for example"
            " --journal postgresql://user@host/sessile"
        )


def _check_engine(engine: str, flags: Iterable[str]) -> None:
    """Raises BadSetting for a flag that the engine would not read. Variables and files are often shared by several
    servers, and may have more than one of them needs."""
    for name in flags:
        own = next((each for prefix, each in OWN_PREFIXES.items() if name.startswith(prefix)), ())
        readers = READERS.get(name, own)
        if readers and engine not in readers:
            flag = f"--{name.replace('_', '-')}"
            raise BadSetting(
                f"{flag} is for --engine {', '.join(readers)}: --engine {engine} does not read it. Leave {flag} out"
            )


def _own(parameter: inspect.Parameter, hint: Any) -> inspect.Parameter:
    positional = parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    return parameter.replace(annotation=hint, kind=inspect.Parameter.POSITIONAL_ONLY if positional else parameter.kind)


def _setting(name: str, *, shown: tuple[str, ...]) -> inspect.Parameter:
    """Returns the command line parameter of a setting. A yes-or-no setting is a flag without a value; every other one
    takes text, which `read_settings` converts like the text of environment variables and of the file."""
    metadata, choices, default = FIELDS[name].metadata, get_origin(TYPES[name]) is Literal, FIELDS[name].default
    bounds = allowed(name).partition(", ")[2]
    switch = TYPES[name] is bool
    parameter = Parameter(
        group=Group(GROUPS[name], sort_key=1 + list(GROUPS.values()).index(GROUPS[name])),
        help=f"{metadata['about']} ({bounds})" if bounds else metadata["about"],
        metavar=metadata["metavar"],
        choices=get_args(TYPES[name]) if choices else None,
        show=GROUPS[name] in shown or name in shown,
        negative=(),
        show_default=False if default in ("", ()) else f"{default:g}" if isinstance(default, float) else str(default),
    )
    kind = Annotated[bool | None, parameter] if switch else Annotated[str | None, parameter]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=None)
