"""Writes the settings into the chart's values.schema.json, so that Helm refuses a misspelt one before anything runs.

    python deploy/chart_schema.py

What the chart sets itself, and what is secret, is left out: secrets come from a Secret that the values name.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # as a script its own folder alone is there

from transport.cli.commands import COMMANDS
from transport.cli.settings import ADDRESSES, FIELDS, GROUPS, RENEWED, SECRETS, TYPES

SCHEMA: Final = Path(__file__).resolve().parent / "helm" / "sessile" / "values.schema.json"
ROLES: Final = ("gateway", "replica")
CHARTS: Final = frozenset(
    {
        *("host", "port", "grpc_port", "tls_certificate", "tls_key", "auth", "keys", "name", "data", "log_format"),
        *("metrics_host", "metrics_port", "peer_host", "peer_port", "peer_address", "peer_insecure", "peer_authority"),
        *("peer_certificate", "peer_key", "peer_server_name", "master_key", "audit_key"),
        *("engine", "model", "model_folder", "slots", "kv_disk_mb", "kv_host_mb", "kv_staging"),
    }
)
"""What the chart sets itself, from values of its own."""

KEPT_SECRET: Final = frozenset(
    name for each in (*SECRETS, *RENEWED, *ADDRESSES) for name in (each, f"{each}_file") if name in FIELDS
)


def settings_of(role: str) -> dict[str, Any]:
    """The schema of the settings that a command shows."""
    shown = COMMANDS[role].settings
    names = [name for name in FIELDS if name in shown or GROUPS[name] in shown]
    properties = {name: schema_of(name) for name in names if name not in CHARTS | KEPT_SECRET}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def schema_of(name: str) -> dict[str, Any]:
    """What one setting may be."""
    kind, bounds = TYPES[name], FIELDS[name].metadata["bounds"]
    about = {"description": FIELDS[name].metadata["about"]}
    if get_origin(kind) is Literal:
        return about | {"enum": list(get_args(kind))}
    if get_origin(kind) is tuple:
        return about | {"type": "array", "items": {"type": "string"}}
    if name == "vllm_args":
        return about | {"type": ["object", "string"]}
    words = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "min_length": "minLength"}
    limits = {word: getattr(bounds, each) for each, word in words.items() if getattr(bounds, each) is not None}
    return about | {"type": {int: "integer", float: "number", bool: "boolean"}.get(kind, "string")} | limits


def schema_text() -> str:
    """The file as it must be."""
    schema = json.loads(SCHEMA.read_text())
    for role in ROLES:
        schema["$defs"][f"{role}Settings"] = settings_of(role)
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    SCHEMA.write_text(schema_text())
