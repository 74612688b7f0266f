"""What can be set, with its limits, and how flags, variables and a file become one `Settings`.

Sources in rising order: the TOML file, `SESSILE_*` variables, flags. Pure but for reading the file that is named: the
environment comes as an argument, because nothing but `app.py` reads it. A value that is not allowed is refused with its
name and with what is allowed. What a setting does is not known here.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_type_hints
from urllib.parse import unquote

import msgspec
from msgspec import Meta

from sessions.model.types import Principal

MODEL_PATH: Final = ".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf"


def setting(about: str, **limits: Any) -> Meta:
    return Meta(description=about, **limits)


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be set, with its limits. Field names are the flags', the variables' and the file's."""

    host: Annotated[str, setting("address to listen on; without keys only a loopback address")] = "127.0.0.1"
    port: Annotated[int, setting("port for WebSocket and HTTP; 0 picks a free one", ge=0, le=65535)] = 8080
    grpc_port: Annotated[int, setting("port for gRPC; 0 picks a free one, -1 has none", ge=-1, le=65535)] = -1
    metrics_host: Annotated[str, setting("address of the port for metrics, which asks for no key")] = "127.0.0.1"
    metrics_port: Annotated[int, setting("that port; 0 picks a free one, -1 has none", ge=-1, le=65535)] = -1
    data: Annotated[str, setting("folder for the journal and spilled KV", min_length=1)] = "data"
    journal: Annotated[
        str, setting("sqlite (in the data folder), postgresql://..., or memory, which forgets everything")
    ] = "sqlite"
    directory: Annotated[str, setting("of a cluster: redis://, rediss://, redis+sentinel:// or redis+cluster://")] = ""
    name: Annotated[str, setting("of this gateway or replica in its cluster; empty: one of its own making")] = ""
    peer_host: Annotated[str, setting("address that a replica's peer link listens on")] = "127.0.0.1"
    peer_port: Annotated[int, setting("its port; 0 picks a free one", ge=0, le=65535)] = 0
    peer_address: Annotated[str, setting("host:port at which others reach that link; empty: where it listens")] = ""
    peer_token: Annotated[str, setting("what gateways and replicas show each other; the same on all")] = ""
    peer_authority: Annotated[str, setting("PEM file of the cluster's authority: peer links use mutual TLS")] = ""
    peer_certificate: Annotated[str, setting("PEM file of this process's certificate under it")] = ""
    peer_key: Annotated[str, setting("PEM file of the certificate's key")] = ""
    peer_server_name: Annotated[str, setting("name in replicas' certificates; empty: their address")] = ""
    engine: Annotated[
        Literal["llama", "vllm", "sim"], setting("what generates: llama.cpp, vLLM, or simulated text for tests")
    ] = "llama"
    model: Annotated[str, setting("path of a GGUF file; for vLLM of a model folder")] = MODEL_PATH
    brownout_model: Annotated[
        str, setting("GGUF file of a smaller model of its family, for brownout (docs/limits.md); empty: none")
    ] = ""
    brownout_slots: Annotated[int, setting("its answers at the same time; 0: half of --slots", ge=0, le=4096)] = 0
    chat_template: Annotated[str, setting("the model's own chat template, or chatml")] = "model"
    threads: Annotated[int, setting("engine threads in all; 0: one less than the cores", ge=0, le=1024)] = 0
    slots: Annotated[int, setting("answers that run at the same time", ge=1, le=4096)] = 4
    context: Annotated[int, setting("context window per session in tokens; 0: the model's", ge=0)] = 0
    kv_host_mb: Annotated[
        int, setting("bound of spilled KV in memory, MB; 0: 1074 (1 GiB), for vLLM 4295 (4 GiB)", ge=0)
    ] = 0
    kv_staging: Annotated[
        str, setting("folder for that, in plain text; empty: /dev/shm, and no spill where there is none")
    ] = ""
    kv_disk_mb: Annotated[int, setting("bound of the folder for spilled KV, MB; 0: none on disk", ge=0)] = 2048
    kv_redis: Annotated[
        str, setting("Redis or Valkey for small KV snapshots, redis://, rediss:// or unix://; empty: none")
    ] = ""
    kv_redis_mb: Annotated[int, setting("bound of KV in there, MB, of all replicas together", ge=1)] = 256
    master_key: Annotated[
        str, setting("file that wraps the keys of stored KV, mode 0600; empty: master.key in the data folder")
    ] = ""
    idle_s: Annotated[float, setting("a session leaves memory after idling for so long", gt=0)] = 600.0
    actors: Annotated[int, setting("sessions in memory at most", ge=1)] = 20_000
    tool_deadline_s: Annotated[float, setting("how long a turn waits for its tools", gt=0)] = 600.0
    orphan_policy: Annotated[
        Literal["continue", "pause", "cancel"], setting("what an answer does when nobody reads it any more")
    ] = "continue"
    orphan_after_s: Annotated[float, setting("how long nobody must have read for that", ge=0)] = 30.0
    rollup_ms: Annotated[float, setting("deltas are rolled up for so long", ge=0, le=1000)] = 25.0
    otlp: Annotated[str, setting("OpenTelemetry collector for traces, http://host:4318; empty: none")] = ""
    prices: Annotated[str, setting("TOML file of prices per model; empty: responses carry no cost")] = ""
    usage_stream: Annotated[
        str,
        setting(
            "what gets every usage row: redis://host/0?stream=NAME (Valkey) or kafka://host:9092/TOPIC; empty: none"
        ),
    ] = ""
    usage_stream_options: Annotated[
        str, setting("TOML file of librdkafka's options for kafka://, such as TLS and SASL (docs/metering.md)")
    ] = ""
    content_bytes: Annotated[int, setting("size of one message at most", ge=1)] = 1_000_000
    retention_days: Annotated[float, setting("deleted sessions are purged after so many days", ge=0)] = 30.0
    audit_days: Annotated[
        float, setting("rows of the audit log are trimmed after so many days, at least 1; 0: they stay", ge=0)
    ] = 0.0
    retention: Annotated[
        str,
        setting("TOML file of how long things are kept per tenant (docs/audit.md); empty: as the two settings above"),
    ] = ""
    drain_s: Annotated[float, setting("how long open answers may go on after SIGTERM", ge=0)] = 10.0
    limits: Annotated[str, setting("TOML file of limits per tenant and user (docs/limits.md); empty: none")] = ""
    auth: Annotated[
        Literal["auto", "keys"],
        setting("keys: every door demands one of `app.py keys`; auto: if --keys or --issuers is given, else open"),
    ] = "auto"
    keys: Annotated[str, setting("TOML file of API keys, beside those of `app.py keys`")] = ""
    issuers: Annotated[str, setting("TOML file of issuers whose tokens (JWT) are let in")] = ""
    api_key: Annotated[str, setting("what commands show a server at --url; better as the variable than as a flag")] = ""
    tls_certificate: Annotated[str, setting("PEM file of the public doors' certificate chain: HTTPS and gRPC")] = ""
    tls_key: Annotated[str, setting("PEM file of its key; give both or none")] = ""
    origins: Annotated[
        tuple[str, ...], setting("browser origins that may connect, beside the server's own; comma-separated")
    ] = ()
    input_keywords: Annotated[tuple[str, ...], setting("phrases that a message must not contain")] = ()
    output_keywords: Annotated[tuple[str, ...], setting("phrases that an answer is withheld from")] = ()
    policy: Annotated[
        str, setting("TOML or JSON file of what is filtered, per tenant; read again when it changes or on SIGHUP")
    ] = ""
    audit_key: Annotated[
        str, setting("file of 64 hex digits that the audit log is sealed with (docs/audit.md); the same everywhere")
    ] = ""
    vllm_args: Annotated[str, setting('vLLM\'s own settings as JSON: {"tensor_parallel_size": 2}')] = ""
    vllm_adapter: Annotated[str, setting("folder of a LoRA adapter (PEFT) that vLLM applies to every answer")] = ""
    sim_tokens_per_s: Annotated[float, setting("simulated engine: decode rate of a stream", gt=0)] = 50.0
    sim_prefill_per_s: Annotated[float, setting("simulated engine: prefill rate", gt=0)] = 20_000.0
    sim_answer_tokens: Annotated[int, setting("simulated engine: mean length of an answer", ge=0)] = 64
    sim_brownout_speed: Annotated[
        float, setting("simulated engine: how many times as fast the smaller model is", gt=0)
    ] = 4.0
    log_level: Annotated[Literal["debug", "info", "warning", "error"], setting("least level that is logged")] = "info"
    log_format: Annotated[Literal["json", "console"], setting("json lines, or text for people")] = "json"


class BadSetting(Exception):
    """A setting has a value that is not allowed; the message names it and says what is."""


def read_settings(flags: dict[str, str], environment: dict[str, str], config: str | None) -> Settings:
    """Merges the sources. Raises BadSetting."""
    values: dict[str, Any] = {}
    if config is not None:
        try:
            values.update(tomllib.loads(Path(config).read_text()))
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise BadSetting(f"--config {config}: {error}") from error
    known = set(Settings.__struct_fields__)
    for name, value in environment.items():
        field = name.removeprefix("SESSILE_").lower()
        if name.startswith("SESSILE_") and field in known:
            values[field] = value
    values.update(flags)
    hints = get_type_hints(Settings, include_extras=True)
    for name, value in values.items():
        if name not in known:
            raise BadSetting(f"{name} (in the configuration file) is not a setting; see --help for those that are")
        if isinstance(value, str) and name in ("origins", "input_keywords", "output_keywords"):
            given: Any = [part.strip() for part in value.split(",") if part.strip()]
        else:
            given = value
        try:
            values[name] = msgspec.convert(given, hints[name], strict=False)
        except msgspec.ValidationError as error:
            raise BadSetting(f"{name} = {value!r}: {error}. Allowed: {allowed(hints[name])}") from error
    return Settings(**values)


def secrets_in(settings: Settings) -> list[str]:
    """What no log may say: secrets among the settings, and passwords in addresses."""
    addresses = (settings.journal, settings.directory, settings.kv_redis, settings.usage_stream, settings.otlp)
    passwords = [unquote(url.rpartition("@")[0].rpartition(":")[2]) for url in addresses if "@" in url]
    return [secret for secret in (settings.api_key, settings.peer_token, *passwords) if secret]


def allowed(hint: Any) -> str:
    """What a setting takes, for people."""
    base, meta = hint.__origin__, hint.__metadata__[0]
    if hasattr(base, "__args__") and getattr(base, "__origin__", None) is Literal:
        return " | ".join(base.__args__)
    limits = {"ge": "at least", "gt": "above", "le": "at most", "min_length": "length at least"}
    bounds = [f"{words} {getattr(meta, name)}" for name, words in limits.items() if getattr(meta, name) is not None]
    name = getattr(base, "__name__", str(base))
    return ", ".join([{"int": "a whole number", "float": "a number", "str": "text"}.get(name, "a list"), *bounds])


def read_keys(path: str) -> dict[str, Principal]:
    """The keys file: `[[keys]]` tables with `id`, `tenant`, `sha256` and, if wanted, `user` and `role`."""
    try:
        tables = tomllib.loads(Path(path).read_text()).get("keys", [])
        keys: dict[str, Principal] = {}
        for number, table in enumerate(tables, 1):
            digest = table.pop("sha256", "")
            if not isinstance(digest, str) or not re.fullmatch(r"[0-9A-Fa-f]{64}", digest):
                raise BadSetting(f"keys = {path!r}: key {number} needs `sha256`, 64 hex digits")
            table["key_id"] = table.pop("id", "")
            if digest.lower() in keys:
                raise BadSetting(f"keys = {path!r}: key {number} stands there twice")
            keys[digest.lower()] = msgspec.convert(table, Principal)
    except (OSError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise BadSetting(f"keys = {path!r}: {error}") from error
    return keys
