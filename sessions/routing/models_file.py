"""The models of a cluster, their aliases and who may use them: a file that gateways and replicas read.

    default = "auto"                 # of requests that name no model; absent: as without this file

    [models.small]                   # as its replicas serve it: together they are its pool
    quality = 1                      # rank: a larger one is better
    size_b = 0.135                   # billions of parameters
    prefill_per_s = 3000             # tokens of prompt that one of its replicas computes in a second
    # window = 8192                  # what is absent here is as its replicas announce it
    # tools = true
    # json = true

    [models.large]
    quality = 2
    size_b = 1.5
    prefill_per_s = 600

    [aliases]
    auto = ["small", "large"]        # several: each session's turns are routed among them
    best = "large"

    [routing]
    hard = 0.5                       # turns that score so much are for the next better model

    [tenants.acme]
    allow = ["small", "auto"]        # absent: all
    pin = "small"                    # what every alias of several means for it
    wish = -0.2                      # added to its scores: below 0 cheaper, above 0 better

Its version is the hash of what it says. Pure; a file that is malformed is refused as a whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from sessions.model.errors import Forbidden
from sessions.model.types import TenantId
from sessions.setting_files import parse_toml

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}$(?!\n)")]
Rate = Annotated[float, Meta(gt=0, le=10_000_000)]
Share = Annotated[float, Meta(ge=0, le=1)]

SEPARATOR: Final = "="  # between alias and model in a head: no name has it


class PoolModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model of the file. For a field that is None, what the model's replicas announce is used."""

    quality: Annotated[int, Meta(ge=0, le=1_000)]
    size_b: Annotated[float, Meta(gt=0, le=100_000)] | None = None
    prefill_per_s: Rate = 1_000.0
    restore_per_s: Rate = 50_000.0  # tokens whose KV comes back to the device in a second
    window: Annotated[int, Meta(ge=1, le=100_000_000)] | None = None
    tools: bool | None = None
    json: bool | None = None
    vision: bool = False


class RoutingRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rules by which a session changes its model."""

    hard: Share = 0.5
    margin: Annotated[float, Meta(ge=0, le=0.5)] = 0.1  # hysteresis around `hard`
    smoothing: Annotated[float, Meta(gt=0, le=1)] = 0.4  # weight of a new score in the session's level
    calm_turns: Annotated[int, Meta(ge=1, le=1_000)] = 3  # easy turns in a row before the session goes to a lower model
    worth_tokens: Annotated[float, Meta(ge=0, le=10_000_000)] = 60_000.0  # computed anew for a switch, at most
    kept_s: Annotated[float, Meta(ge=0, le=604_800)] = 600.0  # how long KV is expected at a model that was left
    full: Annotated[float, Meta(gt=0, le=1_000)] = 1.5  # load of a pool from which on sessions leave for a lower model
    free: Annotated[float, Meta(gt=0, le=1_000)] = 0.8  # load of a pool up to which sessions come to it


class TenantModels(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The models that one tenant may use, and its wish."""

    allow: tuple[Name, ...] | None = None
    pin: Name | None = None
    wish: Annotated[float, Meta(ge=-1, le=1)] = 0.0


class ModelsFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole models file. A tenant without a table may use everything."""

    default: Name | None = None
    models: dict[Name, PoolModel] = {}
    aliases: dict[Name, Name | Annotated[tuple[Name, ...], Meta(min_length=1, max_length=16)]] = {}
    routing: RoutingRules = RoutingRules()
    tenants: dict[str, TenantModels] = {}

    def __post_init__(self) -> None:
        for alias in self.aliases:
            if alias in self.models:
                raise ValueError(f"aliases.{alias}: there is a model of this name")
            members = self.members(alias)
            for name in members:
                if name not in self.models:
                    raise ValueError(f"aliases.{alias}: there is no [models.{name}]")
            if len({self.models[name].quality for name in members}) < len(members):
                raise ValueError(f"aliases.{alias}: give each of its models a quality of its own")
        if self.default is not None and self.default not in self.names:
            raise ValueError(f"default: there is no model or alias {self.default!r}")
        for tenant, table in self.tenants.items():
            if table.pin is not None and table.pin not in self.models:
                raise ValueError(f"tenants.{tenant}.pin: there is no [models.{table.pin}]")
            if table.allow is None:
                continue
            for name in table.allow:
                if name not in self.names:
                    raise ValueError(f"tenants.{tenant}.allow: there is no model or alias {name!r}")
            if self.default is None:
                raise ValueError(f"tenants.{tenant}.allow: needs a `default`, for requests that name no model")

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.models, *self.aliases)

    def members(self, alias: str) -> tuple[str, ...]:
        """Returns an alias's models."""
        members = self.aliases[alias]
        return (members,) if isinstance(members, str) else members


class ModelChoice(NamedTuple):
    """The models that a name means for a tenant, the worse before the better. `alias` is the name if it is an alias, ""
    if it is a model's."""

    alias: str
    models: tuple[str, ...]


class ModelPools(NamedTuple):
    """A models file and its version."""

    file: ModelsFile
    version: str

    def choice(self, tenant: TenantId, name: str | None) -> ModelChoice | None:
        """Returns what a name means for a tenant; None if the file does not know the name, or names no models. `name`
        None means the file's default. Raises Forbidden if the tenant may not use it."""
        file = self.file
        name = name or file.default
        if name is None or not file.models:
            return None
        table = file.tenants.get(tenant, EVERYTHING)
        if name in file.aliases:
            models = tuple(model for model in file.members(name) if self._allows(table, model, name))
            if table.pin is not None and len(file.members(name)) > 1:
                models = (table.pin,)
            if not models:
                raise self._refused(table, name)
            return ModelChoice(name, tuple(sorted(models, key=lambda each: file.models[each].quality)))
        if table.allow is not None and name not in table.allow:
            raise self._refused(table, name)
        return ModelChoice("", (name,)) if name in file.models else None

    def visible(self, tenant: TenantId, name: str) -> bool:
        """Returns whether a tenant may use a name. A name that the file does not know is refused only if the tenant has
        an allow list."""
        try:
            self.choice(tenant, name)
        except Forbidden:
            return False
        return True

    def wish(self, tenant: TenantId) -> float:
        return self.file.tenants.get(tenant, EVERYTHING).wish

    @staticmethod
    def _allows(table: TenantModels, model: str, alias: str) -> bool:
        return table.allow is None or model in table.allow or alias in table.allow

    @staticmethod
    def _refused(table: TenantModels, name: str) -> Forbidden:
        may = ", ".join(table.allow or ()) or "none"
        return Forbidden("model_not_allowed", f"You may not use the model {name!r}. Those that you may: {may}.")


EVERYTHING: Final = TenantModels()
NO_POOLS: Final = ModelPools(ModelsFile(), "")
PoolsNow = Callable[[], ModelPools]


def read_models(text: str) -> ModelPools:
    """Parses a models file. Raises ValueError or msgspec.ValidationError, which says what is wrong."""
    file = msgspec.convert(parse_toml(text), ModelsFile)
    packed = msgspec.json.encode(file, order="sorted")
    return ModelPools(file, hashlib.sha256(packed).hexdigest()[:12])


def head_model(alias: str, model: str) -> str:
    """Returns the text by which a session's head names its model. It includes the alias, if any, from which placement
    knows the alias's other models."""
    return f"{alias}{SEPARATOR}{model}" if alias else model


def split_head_model(text: str) -> tuple[str, str]:
    """Returns alias and model from the text in a session's head; the alias is "" if the model was named directly."""
    alias, separator, model = text.partition(SEPARATOR)
    return (alias, model) if separator else ("", text)
