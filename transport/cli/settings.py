"""Settings: what can be set, in groups, with limits; and how flags, variables and a file become one `Settings`.

Sources in rising order: the TOML file, `SESSILE_*` variables, flags. Pure but for reading the file that is named: the
environment comes as an argument, because nothing but `app.py` reads it. A value that is not allowed is refused with its
name and with what is allowed, and so is a name that is no setting. What a setting does is not known here.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_origin, get_type_hints
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import Meta

from sessions.model.api_keys import ApiKeyRequest, user_of_key
from sessions.model.errors import BadInput
from sessions.model.types import DEFAULT_SCOPES, Authority, Principal, Scope, TenantId
from sessions.setting_files import parse_toml, reason

DEFAULT_MODEL: Final = "default"
PREFIX: Final = "SESSILE_"
CONFIG: Final = f"{PREFIX}CONFIG"  # the file of settings, where no --config names one
NOT_SETTINGS: Final = ("SESSILE_TEST_", "SESSILE_BENCH_")  # the tests' and the benches' own variables


def option(default: Any, metavar: str | None, about: str, *, group: str | None = None, **bounds: Any) -> Any:
    """Declares a setting: its default, the word for its value in `--help` (None: it is one of a few words), what it is,
    and its bounds. `group` begins a group of `--help`, which lasts until the next one."""
    metadata = {"metavar": metavar, "about": about, "group": group, "bounds": Meta(**bounds)}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings, with their bounds. Field names are also those of flags, variables and the file."""

    host: str = option("127.0.0.1", "ADDRESS", "address to listen on; without keys only loopback", group="Listening")
    port: int = option(8080, "PORT", "port for WebSocket and HTTP; 0 picks a free one", ge=0, le=65535)
    grpc_port: int = option(-1, "PORT", "port for gRPC; 0 picks a free one, -1 has none", ge=-1, le=65535)
    trusted_proxies: tuple[str, ...] = option(
        (), "CIDR,...", "proxies in front, whose X-Forwarded-For says where a caller is"
    )
    plain_per_address: int = option(768, "N", "plain connections of one address at most, of 1,024 in all", ge=1)
    unauthenticated_per_address: int = option(256, "N", "of one address, before they showed a good key", ge=1)
    connections_per_principal: int = option(10_000, "N", "connections of one key, all its users together", ge=1)
    keep_alive_s: float = option(75, "S", "that an idle connection is kept; longer than a balancer keeps its own", gt=0)
    tls_certificate: str = option("", "FILE", "PEM file of the certificate chain for HTTPS and gRPC")
    tls_key: str = option("", "FILE", "PEM file of its key; give both or none")
    origins: tuple[str, ...] = option((), "ORIGIN,...", "browser origins that may connect, beside the server's own")
    unknown_parameters: Literal["refuse", "ignore"] = option(
        "refuse", None, "of OpenAI's API: refused, or left out with a Warning header"
    )

    auth: Literal["auto", "keys"] = option(
        "auto", None, "keys: a key is required; auto: only with --keys or --issuers", group="Authentication"
    )
    keys: str = option("", "FILE", "TOML file of API keys, beside those that the `keys` command makes")
    issuers: str = option("", "FILE", "TOML file of issuers whose tokens (JWT) are let in")

    oidc_issuer: str = option("", "URL", "OpenID provider that people sign in with; docs/sign-in.md", group="Sign-in")
    oidc_client_id: str = option("", "ID", "what this server is called there")
    oidc_client_secret: str = option("", "SECRET", "its secret there, if it has one")
    oidc_client_secret_file: str = option("", "FILE", "file that holds it")
    oidc_scopes: tuple[str, ...] = option(("openid",), "SCOPE,...", "what is requested there; openid is always")
    oidc_tenant: str = option("", "TENANT", "whose people they are ...")
    oidc_tenant_claim: str = option("", "CLAIM", "... or the claim that says so: one of the two")
    oidc_user_claim: str = option("sub", "CLAIM", "the claim that names the end user", min_length=1)
    oidc_role_claim: str = option("", "CLAIM", "the claim that says the role, or a list that has it")
    oidc_roles: tuple[Authority, ...] = option(
        ("user",), "ROLE,...", "of user, service, operator: what it may say; the first is who has none"
    )
    public_url: str = option("", "URL", "where browsers reach this server: https://HOST; people come back there")
    sign_in_s: float = option(43_200.0, "SECONDS", "after so long people sign in again", gt=0, le=2_592_000)

    engine: Literal["llama", "vllm", "remote", "chat", "sim"] = option(
        "llama",
        None,
        "llama.cpp, vLLM, servers that run already, a provider of chat completions, or simulated text for tests",
        group="Engine",
    )
    engine_url: tuple[str, ...] = option(
        (),
        "URL,...",
        "for remote: addresses of vLLM, SGLang or llama-server, all of one model; for chat: https://HOST/v1",
    )
    engine_key: str = option("", "KEY", "what they take as a bearer token")
    engine_key_file: str = option("", "FILE", "file that holds it")
    model: str = option(
        DEFAULT_MODEL,
        "MODEL",
        "PATH of a GGUF file, for vLLM of a folder; hf:ORG/REPO[:FILE] of Hugging Face's hub; docs/models.md",
    )
    projector: str = option("", "PATH", "llama: GGUF file with which the model sees images (mmproj); docs/models.md")
    images: Literal["auto", "yes", "no"] = option(
        "auto", None, "chat, sim: whether the model sees images; auto: as its provider says, else no"
    )
    served_model_name: tuple[str, ...] = option(
        (), "NAME,...", "its names for clients, the first one in answers; empty: that of the file or repository"
    )
    model_folder: str = option("", "FOLDER", "folder of pulled models; empty: .cache/models beside the program")
    brownout_model: str = option("", "PATH", "GGUF file of a smaller model of its family, for brownout; docs/limits.md")
    brownout_slots: int = option(0, "N", "its answers at the same time; 0: half of --slots", ge=0, le=4096)
    chat_template: str = option("model", "NAME", "model: the model's own; chatml; or a file with a Jinja template")
    device: Literal["auto", "cpu", "cuda"] = option(
        "auto", None, "what it computes on; auto: a GPU where the engine's build has one"
    )
    gpu_layers: int = option(-1, "N", "layers of a GGUF model on the GPU; -1: all, where there is one", ge=-1)
    gpu_memory: float = option(0.9, "PART", "part of the GPU's memory that the engine may take", gt=0, le=1)
    memory_check: Literal["on", "off"] = option(
        "on", None, "a model that does not fit into memory is refused before it is loaded"
    )
    speculation: Literal["off", "ngram"] = option(
        "off", None, "ngram: tokens that followed the same words before are tried at once; docs/speculation.md"
    )
    kv_dtype: Literal["auto", "8bit"] = option(
        "auto", None, "8bit: KV in half the memory, with slightly other answers; docs/speculation.md"
    )
    step_target_ms: int = option(
        0,
        "MS",
        "how long a step of the engine may last, so that nobody waits for long prompts; 0: 250 on a CPU, 50 on a GPU",
        ge=0,
        le=60_000,
    )
    threads: int = option(0, "N", "engine threads in all; 0: one less than the cores", ge=0, le=1024)
    slots: int = option(4, "N", "answers that run at the same time", ge=1, le=4096)
    context: int = option(0, "TOKENS", "context window per session in tokens; 0: the model's", ge=0)
    vllm_args: str = option("", "JSON", 'vLLM\'s own settings as JSON: {"tensor_parallel_size": 2}')
    vllm_adapter: str = option("", "FOLDER", "folder of a LoRA adapter (PEFT) that vLLM applies to every answer")
    vllm_standby: bool = option(
        False, None, "a second vLLM is kept started, for when the first one dies: twice the memory; docs/vllm.md"
    )

    sim_tokens_per_s: float = option(
        50.0, "RATE", "decode rate of a stream, tokens a second", gt=0, group="Simulated engine"
    )
    sim_prefill_per_s: float = option(20_000.0, "RATE", "prefill rate, tokens a second", gt=0)
    sim_answer_tokens: int = option(64, "TOKENS", "mean length of an answer", ge=0)
    sim_tools: bool = option(True, None, "tools are taken, though what it writes calls none")
    sim_brownout_speed: float = option(4.0, "FACTOR", "how many times as fast the smaller model is", gt=0)

    kv_host_mb: int = option(
        0, "MB", "bound of spilled KV in memory, MB; 0: 1074 (1 GiB), for vLLM 4295 (4 GiB)", ge=0, group="KV"
    )
    kv_staging: str = option("", "FOLDER", "folder for that, in plain text; empty: /dev/shm where there is one")
    kv_disk_mb: int = option(2048, "MB", "bound of the folder for spilled KV, MB; 0: none on disk", ge=0)
    kv_redis: str = option("", "URL", "Redis or Valkey for small KV snapshots: redis://, rediss:// or unix://")
    kv_redis_file: str = option("", "FILE", "file of that URL, if it has a password")
    kv_redis_mb: int = option(256, "MB", "bound of KV in there, MB, of all replicas together", ge=1)

    idle_s: float = option(600.0, "SECONDS", "a session leaves memory after idling for so long", gt=0, group="Sessions")
    actors: int = option(20_000, "N", "sessions in memory at most", ge=1)
    tool_deadline_s: float = option(600.0, "SECONDS", "how long a turn waits for its tools", gt=0)
    titles: Literal["auto", "model", "off"] = option(
        "auto", None, "conversations are named by their model; auto: unless its text is simulated"
    )
    context_policy: Literal["auto", "off", "truncate", "compact"] = option(
        "auto",
        None,
        "what becomes of a conversation that outgrows its context window; auto: truncate, at OpenAI's doors off",
    )
    answer_tokens: int = option(
        0, "TOKENS", "the most of an answer where nobody names a limit; 0: what fits, of a shipped toy 2048", ge=0
    )
    answer_room: int = option(256, "TOKENS", "tokens of the window that a prompt leaves to its answer at least", ge=1)
    orphan_policy: Literal["continue", "pause", "cancel"] = option(
        "continue", None, "what an answer without readers does"
    )
    orphan_after_s: float = option(30.0, "SECONDS", "after so long without readers", ge=0)
    rollup_ms: float = option(25.0, "MS", "deltas are rolled up for so long", ge=0, le=1000)
    result_cache_mb: int = option(
        256,
        "MB",
        "bound of answers kept to be given again, MB, where tenants have that (docs/limits.md); 0: none",
        ge=0,
    )
    content_bytes: int = option(1_000_000, "BYTES", "size of one message at most", ge=1)
    drain_s: float = option(10.0, "SECONDS", "how long open answers may go on after SIGTERM", ge=0)

    data: str = option("data", "FOLDER", "folder for the journal and spilled KV", min_length=1, group="Journal")
    journal: str = option("sqlite", "URL", "sqlite (in --data), postgresql://..., or memory, which forgets everything")
    journal_file: str = option("", "FILE", "file of that URL, if it has a password")
    journal_encryption: Literal["auto", "on", "off"] = option(
        "auto", None, "texts in the journal are encrypted; auto: with PostgreSQL only where a key is named"
    )
    master_key: str = option(
        "", "FILE", "wraps the keys of the journal and of stored KV, mode 0600; empty: master.key in --data"
    )
    key_service: str = option(
        "", "URL", "wraps the journal's keys in its place: Vault or OpenBao, https://HOST/transit/KEY"
    )
    key_service_token: str = option("", "TOKEN", "its token")
    key_service_token_file: str = option("", "FILE", "file of its token, read again for each call")
    key_service_authority: str = option("", "FILE", "PEM file of the authority of its certificate")
    audit_key: str = option("", "FILE", "64 hex digits that seal the audit log, the same everywhere; docs/audit.md")

    replicate: str = option(
        "",
        "URL",
        "the SQLite journal is copied there by Litestream: file:///FOLDER or s3://BUCKET/PREFIX; docs/backup.md",
        group="Replication",
    )
    replicate_hours: float = option(24.0, "HOURS", "how far back a restore from there can go", ge=1, le=8760)

    files: str = option(
        "",
        "FOLDER",
        "where uploaded files lie, encrypted; empty: in the journal's database",
        group="Files",
    )
    file_bytes: int = option(33_554_432, "BYTES", "size of one uploaded file at most; 0: no files", ge=0, le=1 << 30)

    image_hosts: tuple[str, ...] = option(
        (), "HOST,...", "hosts that images of messages are fetched from: NAME, *.NAME, and private NETWORKs they are in"
    )

    retention_days: float = option(
        30.0, "DAYS", "deleted sessions are purged after so many days", ge=0, group="Retention"
    )
    audit_days: float = option(0.0, "DAYS", "audit log rows are trimmed after so many days; 0: never", ge=0)
    retention: str = option("", "FILE", "TOML file of these per tenant, in their place; docs/audit.md")

    limits: str = option("", "FILE", "TOML file of limits per tenant and user; docs/limits.md", group="Limits")
    models: str = option("", "FILE", "TOML file of models, aliases and who may use them; docs/models.md")
    tools: str = option("", "FILE", "TOML file of functions that this server calls for models; docs/tools.md")

    embeddings: str = option(
        "",
        "FILE",
        "TOML file of embedding models; empty: the packaged one, where it is installed; docs/retrieval.md",
        group="Retrieval",
    )
    vector_stores: Literal["auto", "off"] = option(
        "auto", None, "auto: vector stores; with PostgreSQL only if it has pgvector"
    )

    prices: str = option("", "FILE", "TOML file of prices per model; empty: responses carry no cost", group="Metering")
    usage_stream: str = option("", "URL", "gets every usage row: redis://HOST/0?stream=NAME or kafka://HOST:9092/TOPIC")
    usage_stream_file: str = option("", "FILE", "file of that URL, if it has a password")
    usage_stream_options: str = option("", "FILE", "TOML file of librdkafka's options; docs/metering.md")

    push_key: str = option(
        "", "FILE", "P-256 private key (PEM) that pushes are signed with; empty: none are sent", group="Push"
    )
    push_contact: str = option("", "ADDRESS", "who push services may write to: mailto:NAME@HOST or https://...")
    push_networks: tuple[str, ...] = option((), "NETWORK,...", "private networks that pushes may go to: 10.1.0.0/16")
    push_apns_key: str = option("", "FILE", "Apple's key (.p8) for pushes to apps on its devices; docs/push.md")
    push_apns_key_id: str = option("", "ID", "what Apple names that key by: ten letters and digits")
    push_apns_team: str = option("", "ID", "the developer team that it is of: ten letters and digits")
    push_apns_app: str = option("", "BUNDLE", "the app's bundle id: com.example.chat")
    push_apns_url: str = option("", "URL", "another server in the place of Apple's; empty: Apple's")
    push_fcm_account: str = option("", "FILE", "Google's service account (JSON) for pushes to apps by Firebase")
    push_fcm_url: str = option("", "URL", "another server in the place of Firebase's; empty: Google's")

    input_keywords: tuple[str, ...] = option(
        (), "PHRASE,...", "phrases that a message must not contain", group="Moderation"
    )
    output_keywords: tuple[str, ...] = option((), "PHRASE,...", "phrases that an answer is withheld from")
    policy: str = option("", "FILE", "TOML or JSON file of filters per tenant; read again when it changes or on SIGHUP")

    directory: str = option(
        "", "URL", "of the cluster: redis://, rediss://, redis+sentinel:// or redis+cluster://", group="Directory"
    )
    directory_file: str = option("", "FILE", "file of that URL, if it has a password")
    name: str = option("", "NAME", "of this gateway or replica in its cluster; empty: one of its own making")

    peer_host: str = option("127.0.0.1", "ADDRESS", "address that a replica's peer link listens on", group="Peers")
    peer_port: int = option(0, "PORT", "its port; 0 picks a free one", ge=0, le=65535)
    peer_address: str = option("", "HOST:PORT", "where gateways and replicas reach that link; empty: where it listens")
    peer_token: str = option("", "TOKEN", "shared secret of gateways and replicas, the same on all")
    peer_token_file: str = option("", "FILE", "file that holds it")
    peer_insecure: bool = option(False, None, "peer links off loopback with the token alone, in plain text")
    peer_authority: str = option("", "FILE", "PEM file of the cluster's authority: peer links use mutual TLS")
    peer_certificate: str = option("", "FILE", "PEM file of this process's certificate under it")
    peer_key: str = option("", "FILE", "PEM file of the certificate's key")
    peer_server_name: str = option("", "NAME", "name in replicas' certificates; empty: their address")

    metrics_host: str = option(
        "127.0.0.1", "ADDRESS", "address of the port for metrics, which asks for no key", group="Telemetry"
    )
    metrics_port: int = option(-1, "PORT", "that port; 0 picks a free one, -1 has none", ge=-1, le=65535)
    otlp: str = option("", "URL", "OpenTelemetry collector for traces: http://HOST:4318")
    otlp_file: str = option("", "FILE", "file of that URL, if it has a password")
    loop_stall_ms: int = option(250, "MS", "the event loop standing still for longer is logged; 0: not watched", ge=0)

    api_key: str = option("", "KEY", "API key for --url", group="Running server")
    api_key_file: str = option("", "FILE", "file that holds it")

    log_level: Literal["debug", "info", "warning", "error"] = option(
        "info", None, "least level that is logged", group="Logging"
    )
    log_format: Literal["auto", "json", "console"] = option("auto", None, "auto: text on a terminal, else JSON lines")


class BadSetting(Exception):
    """Raised for a setting that does not exist or has a value that is not allowed. The message says what is."""


SECRETS: Final = ("peer_token", "api_key", "oidc_client_secret", "engine_key")
RENEWED: Final = ("key_service_token",)  # secrets whose file is read at each use, not at the start
ADDRESSES: Final = ("journal", "directory", "kv_redis", "usage_stream", "otlp")  # secret if with a password
FIELDS: Final = {each.name: each for each in fields(Settings)}
TYPES: Final = get_type_hints(Settings)
GROUPS: Final[dict[str, str]] = {}  # of each setting
for _name, _field in FIELDS.items():
    GROUPS[_name] = _field.metadata["group"] or next(reversed(GROUPS.values()))


def read_settings(flags: Mapping[str, Any], environment: Mapping[str, str], config: str | None) -> Settings:
    """Merges flags, variables and the file into this process's settings. Raises BadSetting, also for a secret on the
    command line, where every user of the machine can read it."""
    for name in (*SECRETS, *RENEWED, *ADDRESSES):
        if (value := flags.get(name)) and (name not in ADDRESSES or _password(value)):
            flag = f"--{name.replace('_', '-')}"
            raise BadSetting(
                f"{flag}: no secret belongs on the command line, where every user of this machine reads it; put it in a"
                f" file ({flag}-file FILE), in {PREFIX}{name.upper()} or in the file of --config, and change it now"
            )
    values: dict[str, Any] = {}
    shown: dict[str, str] = {}  # of each value: how it stands where it was written
    if config is not None:
        where = f"{CONFIG} = {config!r}" if environment.get(CONFIG) == config else f"--config {config}"
        try:
            values = parse_toml(Path(config).read_text(encoding="utf-8-sig"))
        except UnicodeDecodeError as error:
            raise BadSetting(f"{where}: it is not UTF-8; save it as UTF-8") from error
        except OSError as error:
            raise BadSetting(f"{where}: {error.strerror}; name a TOML file of settings, or none") from error
        except tomllib.TOMLDecodeError as error:
            raise BadSetting(f"{where}: {error}") from error
        for name in values:
            if name not in FIELDS:
                raise BadSetting(f"{name} (in {config}) is not a setting{_nearest(name)}")
            shown[name] = f"{name} = {values[name]!r} (in {config})"
    for variable, value in environment.items():
        if variable.startswith(PREFIX) and variable != CONFIG and not variable.startswith(NOT_SETTINGS):
            name = variable.removeprefix(PREFIX).lower()
            if name not in FIELDS:
                raise BadSetting(
                    f"{variable} is not a setting{_nearest(name, PREFIX)}; unset it if it is not for Sessile"
                )
            is_secret = bool(value) and name in (*SECRETS, *RENEWED, *ADDRESSES)
            values[name] = bare_secret(value, variable) if is_secret else value
            shown[name] = variable if is_secret else f"{variable} = {value!r}"
    values.update(flags)
    shown.update({name: f"{name} = {value!r}" for name, value in flags.items()})
    for name in (*SECRETS, *ADDRESSES):
        if path := values.get(f"{name}_file"):
            if values.get(name):
                raise BadSetting(f"{name} and {name}_file: give one of the two")
            values[name], shown[name] = _secret_in(f"{name}_file", path), f"{name}_file = {path!r}"
    for name in ADDRESSES:
        _check_address(name, str(values.get(name, "")))
    return Settings(**{name: _converted(name, value, shown[name]) for name, value in values.items()})


def exposed_files(settings: Settings, config: str | None) -> list[str]:
    """Returns the files with secrets that other users of this machine may read."""
    named = [getattr(settings, f"{name}_file") for name in (*SECRETS, *RENEWED, *ADDRESSES)]
    paths = [Path(path) for path in (*named, config) if path]
    secrets = [secret.encode() for secret in secrets_in(settings)]
    return [
        str(path)
        for path in paths
        if path.is_file()
        and path.stat().st_mode & 0o077
        and (str(path) == settings.key_service_token_file or any(each in path.read_bytes() for each in secrets))
    ]


def _secret_in(name: str, path: str) -> str:
    try:
        secret = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadSetting(f"{name} = {path!r}: it is not UTF-8; save it as UTF-8") from error
    except OSError as error:
        raise BadSetting(f"{name} = {path!r}: {reason(error)}") from error
    return bare_secret(secret, f"{name} = {path!r}")


def bare_secret(secret: str, where: str) -> str:
    """Returns a secret without the byte order mark and the line end that editors and mounted secrets add. Raises
    BadSetting, without showing the secret, if nothing is left or there is a control character in it."""
    bare = secret.removeprefix("\ufeff").strip()
    if not bare:
        raise BadSetting(f"{where}: there is nothing in it")
    if not bare.isprintable():
        raise BadSetting(f"{where}: a secret is one line without control characters")
    return bare


def _check_address(name: str, address: str) -> None:
    """Raises BadSetting, without showing it, for a URL whose password could be read as another part."""
    if name == "directory" or address.startswith("kafka://") or "://" not in address or "@" not in address:
        return  # these are checked where they are used
    doubtful = True
    with suppress(ValueError):
        parts = urlsplit(address)
        beyond = parts.path + ("" if "password=" in parts.query else parts.query)
        doubtful = bool(parts.fragment) or "@" in beyond or parts.netloc.count("@") > 1
    if doubtful:
        raise BadSetting(f"{name}: in names, passwords and paths '/' is written %2F, '?' %3F, '#' %23 and '@' %40")


def _password(address: str) -> str:
    """Returns the password in a URL; empty if there is none."""
    named = re.search(r"[?&]password=([^&]*)", address)
    return unquote(named[1] if named else address.rpartition("@")[0].partition("://")[2].partition(":")[2])


def _nearest(name: str, prefix: str = "") -> str:
    near = difflib.get_close_matches(name, FIELDS, n=1)
    return f"; the nearest is {prefix}{near[0].upper() if prefix else near[0]}" if near else ""


def _converted(name: str, value: Any, shown: str) -> Any:
    kind, given = TYPES[name], value
    if isinstance(value, str) and get_origin(kind) is tuple:
        given = [part.strip() for part in value.split(",") if part.strip()]
    try:
        return msgspec.convert(given, Annotated[kind, FIELDS[name].metadata["bounds"]], strict=False)
    except msgspec.ValidationError as error:
        raise BadSetting(f"{shown}: expected {allowed(name)}") from error


def allowed(name: str) -> str:
    """Returns what a setting accepts, for people: `a whole number, at least 0, at most 65535`."""
    kind, bounds = TYPES[name], FIELDS[name].metadata["bounds"]
    if get_origin(kind) is Literal:
        return " | ".join(get_args(kind))
    if kind is bool:
        return "true | false"
    words = {"ge": "at least", "gt": "above", "le": "at most", "min_length": "length at least"}
    limits = [f"{text} {getattr(bounds, each)}" for each, text in words.items() if getattr(bounds, each) is not None]
    return ", ".join([{int: "a whole number", float: "a number", str: "text"}.get(kind, "a list"), *limits])


def secrets_in(settings: Settings) -> list[str]:
    """Returns what no log may show: the settings that are secrets, and passwords in addresses."""
    passwords = [_password(getattr(settings, name)) for name in ADDRESSES]
    return [secret for secret in (*(getattr(settings, name) for name in (*SECRETS, *RENEWED)), *passwords) if secret]


class FiledKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `[[keys]]` table of the keys file. Unknown fields are errors: a misspelt `scopes` would else make a key with
    more rights than intended."""

    id: Annotated[str, Meta(pattern=r"^[^/\x00-\x1f\x7f]{1,128}$(?!\n)")]  # `Principal.id` puts a slash behind it
    tenant: str
    sha256: Annotated[str, Meta(pattern=r"^[0-9A-Fa-f]{64}$(?!\n)")]
    role: Authority = "user"
    user: str | None = None
    scopes: tuple[Scope, ...] = DEFAULT_SCOPES

    @property
    def principal(self) -> Principal:
        """The principal of the key. Raises BadInput for a key that cannot be."""
        user = user_of_key(self.id, ApiKeyRequest(tenant=self.tenant, role=self.role, user=self.user), self.scopes)
        return Principal(tenant=TenantId(self.tenant), key_id=self.id, user=user, role=self.role, scopes=self.scopes)


def read_keys(path: str) -> dict[str, Principal]:
    """Reads the keys file, which has `[[keys]]` tables of `FiledKey` and nothing else. Raises BadSetting."""
    where = f"keys = {path!r}"
    try:
        tables = parse_toml(Path(path).read_text())
    except (OSError, ValueError) as error:  # bytes that are no UTF-8 too
        raise BadSetting(f"{where}: {reason(error)}") from error
    if unknown := sorted(tables.keys() - {"keys"}):
        raise BadSetting(f"{where}: {unknown[0]!r} is not known here; keys are [[keys]] tables")
    if not tables.get("keys"):
        raise BadSetting(f"{where}: there is no key in this file; a key is a [[keys]] table (docs/keys.md)")
    keys: dict[str, Principal] = {}
    names: set[str] = set()
    for number, table in enumerate(tables.get("keys", []), 1):
        try:
            key = msgspec.convert(table, FiledKey)
            principal = key.principal
        except (msgspec.ValidationError, BadInput) as error:
            raise BadSetting(f"{where}: key {number}: {error}") from error
        if key.sha256.lower() in keys or key.id in names:
            raise BadSetting(f"{where}: key {number} stands there twice")
        names.add(key.id)
        keys[key.sha256.lower()] = principal
    return keys
