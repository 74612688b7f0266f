"""Reads and checks moderation policies: what a tenant filters, how strictly, and what is done about it.

A TOML or JSON file holds named policies and which tenant has which; `default` is for all others. It is checked as
a whole before any of it holds: unknown names, actions that a mode cannot carry out, kinds that do not exist are
refused with their place. A policy's `version` is the hash of its content, in every verdict and audit row.

    [policies.default]
    mode = "window"                                  # strict | window | async
    [policies.default.input]
    phrases = { deny = ["project nightjar"], action = "block" }
    toxicity = { threshold = 0.8, action = "block" }
    [policies.default.output]
    secrets = { action = "block" }
    pii = { kinds = ["email"], action = "redact" }
    [tenants]
    acme = "careful"                                 # another name under `policies`

Does not know how patterns and classifiers work.
"""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from inference.moderation.patterns import NAMED, PII_KINDS, SECRET_KINDS
from sessions.model.errors import BadInput
from sessions.setting_files import parse_toml

FILE_BYTES_MAX: Final = 4_000_000
Action = Literal["block", "redact", "flag", "retract"]
Phrase = Annotated[str, Meta(min_length=1, max_length=256)]
Score = Annotated[float, Meta(ge=0, le=1)]


TEXT: Final = "{text}"
GUARD_TEMPLATE: Final = """\
Is the text between the lines safe to show to the public? Unsafe is what is hateful, sexual, violent or criminal.
----
{text}
----
Answer with one word: safe or unsafe."""


class BadPolicy(BadInput):
    """Raised if the policy file is invalid; the message says what is wrong, and where."""

    def __init__(self, why: str) -> None:
        super().__init__("bad_policy", why)


class PolicyRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rule of a policy. `review`: whether a person reviews its findings; None: only those whose action is `flag`."""

    action: Action = "block"
    review: bool | None = None


class PhraseRule(PolicyRule, frozen=True, kw_only=True):
    """A rule on phrases: `deny` is forbidden, unless it is part of a longer phrase in `allow`. With `words`, a phrase
    counts only if no letter or digit stands right beside it."""

    deny: Annotated[tuple[Phrase, ...], Meta(max_length=5_000)] = ()
    allow: Annotated[tuple[Phrase, ...], Meta(max_length=5_000)] = ()
    words: bool = False


class KindsRule(PolicyRule, frozen=True, kw_only=True):
    """A rule on kinds of data, such as card numbers. If `kinds` is empty, it is on all kinds that patterns can find."""

    kinds: tuple[str, ...] = ()


class ScoreRule(PolicyRule, frozen=True, kw_only=True):
    threshold: Score = 0.5


class GuardRule(ScoreRule, frozen=True, kw_only=True):
    """A rule that has texts judged by the guard `name`, which is defined in the file's `guards`."""

    name: str = "default"


class ImageRule(ScoreRule, frozen=True, kw_only=True):
    """A rule on images. With `guard`, it is on those that the guard of this name judges unsafe; without, on all."""

    action: Literal["block", "flag"] = "block"
    guard: str = ""


class GuardConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model that judges whether a text is safe (`inference.moderation.guard`). Either `url` or `model_path`."""

    url: str = ""  # an OpenAI-compatible base URL, http://host:8000/v1
    model_path: str = ""  # a GGUF
    model: Annotated[str, Meta(min_length=1, max_length=128)] = "guard"  # its name at the URL
    key_file: str = ""  # holds the URL's API key
    template: Annotated[str, Meta(max_length=32_768)] = GUARD_TEMPLATE
    safe: Annotated[str, Meta(pattern=r"^[a-z]{1,32}$")] = "safe"
    unsafe: Annotated[str, Meta(pattern=r"^[a-z]{1,32}$")] = "unsafe"
    kinds: Annotated[dict[str, str], Meta(max_length=64)] = {}  # its words behind `unsafe`: S1 = "violence"
    logprobs: bool = True  # request probabilities from the URL
    at_once: Annotated[int, Meta(ge=1, le=64)] = 4
    waiting: Annotated[int, Meta(ge=0, le=4096)] = 256
    context: Annotated[int, Meta(ge=256, le=131_072)] = 2048  # tokens for one text, of a GGUF
    threads: Annotated[int, Meta(ge=1, le=256)] = 1


class PolicySide(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rules for messages, or those for answers."""

    phrases: PhraseRule | None = None
    pii: KindsRule | None = None
    secrets: KindsRule | None = None
    toxicity: ScoreRule | None = None
    guard: GuardRule | None = None
    images: ImageRule | None = None  # for messages only

    @property
    def rules(self) -> dict[str, PolicyRule]:
        return {name: rule for name in self.__struct_fields__ if (rule := getattr(self, name)) is not None}

    @property
    def models(self) -> tuple[str, ...]:
        """The classifiers that this side uses."""
        named = self.pii is not None and any(kind in NAMED for kind in self.pii.kinds)
        scored = [name for name in ("toxicity", "guard") if getattr(self, name) is not None]
        return (*scored, *(("entities",) if named else ()))


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    mode: Literal["strict", "window", "async"] = "window"
    window: Annotated[int, Meta(ge=16, le=8192)] = 256  # code points that a classifier of answers sees at once, at most
    overlap: Annotated[int, Meta(ge=0, le=2048)] = 96  # code points of the window before
    review_text: bool = False  # reviewers get the text of a finding, with a little around it; no log does
    deadline_ms: Annotated[int, Meta(ge=1, le=60_000)] = 1_000  # for a classifier; then it is late
    input_message: Annotated[str, Meta(min_length=1, max_length=1000)] = (
        "This message was refused by this service's rules."
    )
    output_message: Annotated[str, Meta(min_length=1, max_length=1000)] = "The rest of this answer was withheld."
    input: PolicySide = PolicySide()
    output: PolicySide = PolicySide()

    @property
    def version(self) -> str:
        return hashlib.sha256(msgspec.json.encode(self, order="sorted")).hexdigest()[:16]


class Policies(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    policies: dict[str, Policy]
    guards: dict[str, GuardConfig] = {}
    tenants: dict[str, str] = {}

    def of(self, tenant: str) -> Policy:
        return self.policies[self.tenants.get(tenant, "default")]

    @property
    def guarded(self) -> frozenset[str]:
        """The guards that some policy uses."""
        sides = [side for policy in self.policies.values() for side in (policy.input, policy.output)]
        names = {side.guard.name for side in sides if side.guard is not None}
        return frozenset(names | {side.images.guard for side in sides if side.images is not None and side.images.guard})

    @property
    def models(self) -> frozenset[str]:
        """Every classifier that some policy uses."""
        return frozenset(
            name for policy in self.policies.values() for name in (*policy.input.models, *policy.output.models)
        )


def parse_policies(text: str, *, json: bool = False) -> Policies:
    """Decodes and checks a file's text. Raises BadPolicy."""
    try:
        given: Any = msgspec.json.decode(text) if json else parse_toml(text)
        policies = msgspec.convert(given, Policies)
    except (msgspec.DecodeError, msgspec.ValidationError, tomllib.TOMLDecodeError, RecursionError) as error:
        gone = " (it left: use `guard`, as docs/moderation.md shows)" if "`prompt_injection`" in str(error) else ""
        raise BadPolicy(f"{error}{gone}") from error
    if "default" not in policies.policies:
        raise BadPolicy("there is no policy named `default`")
    for tenant, name in policies.tenants.items():
        if name not in policies.policies:
            raise BadPolicy(f"tenants.{tenant}: there is no policy named {name!r}")
    for name, guard in policies.guards.items():
        _check_guard(guard, f"guards.{name}")
    for name, policy in policies.policies.items():
        for side in ("input", "output"):
            _check_side(policy, side, getattr(policy, side), f"policies.{name}.{side}")
            rule = getattr(policy, side).guard
            if rule is not None and rule.name not in policies.guards:
                raise BadPolicy(f"policies.{name}.{side}.guard: there is no guard named {rule.name!r}")
        _check_images(policy, policies.guards, f"policies.{name}")
    return policies


def read_policies(path: str) -> Policies:
    """Reads a policy file. Raises BadPolicy, naming the file."""
    try:
        body = Path(path).read_bytes()
        if len(body) > FILE_BYTES_MAX:
            raise BadPolicy(f"it is larger than {FILE_BYTES_MAX} bytes")
        return parse_policies(body.decode(), json=path.endswith(".json"))
    except BadPolicy as error:
        raise BadPolicy(f"{path}: {error.public_message}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise BadPolicy(f"{path}: {error}") from error


def _check_side(policy: Policy, side: str, given: PolicySide, place: str) -> None:
    for name, rule in given.rules.items():
        if rule.action == "retract" and (side == "input" or policy.mode != "async"):
            raise BadPolicy(
                f"{place}.{name}: `retract` is for answers in mode `async`; in {policy.mode!r} use block or redact"
            )
        if rule.action == "redact" and isinstance(rule, ScoreRule):
            raise BadPolicy(
                f"{place}.{name}: a classifier judges a passage and names no span; use block, flag or retract"
            )
    _check_kinds(given.pii, PII_KINDS, f"{place}.pii")
    _check_kinds(given.secrets, SECRET_KINDS, f"{place}.secrets")
    if side == "output" and "entities" in given.models:
        raise BadPolicy(f"{place}.pii: {' and '.join(NAMED)} can be found in messages only, not in answers")
    if given.phrases is not None and not given.phrases.deny:
        raise BadPolicy(f"{place}.phrases: `deny` is empty")


def _check_images(policy: Policy, guards: dict[str, GuardConfig], place: str) -> None:
    if policy.output.images is not None:
        raise BadPolicy(f"{place}.output.images: only messages have images")
    rule = policy.input.images
    if rule is None or not rule.guard:
        return
    if rule.guard not in guards:
        raise BadPolicy(f"{place}.input.images: there is no guard named {rule.guard!r}")
    if not guards[rule.guard].url:
        raise BadPolicy(f"{place}.input.images: guard {rule.guard!r} is a GGUF, which sees no images; give it a `url`")
    if guards[rule.guard].template == GUARD_TEMPLATE:  # of an image it would judge an empty text
        raise BadPolicy(f"{place}.input.images: guard {rule.guard!r} needs a `template` that asks about an image")


def _check_kinds(rule: KindsRule | None, known: tuple[str, ...], place: str) -> None:
    for kind in rule.kinds if rule is not None else ():
        if kind not in known:
            raise BadPolicy(f"{place}.kinds: no kind {kind!r}; there are {', '.join(known)}")


def _check_guard(guard: GuardConfig, place: str) -> None:
    if bool(guard.url) == bool(guard.model_path):
        raise BadPolicy(f"{place}: give `url` or `model_path`, one of the two")
    if guard.url:
        try:
            parts = urlsplit(guard.url)
            good = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1) and not parts.query
        except ValueError:
            good = False
        if not good or not guard.url.isascii() or any(letter.isspace() for letter in guard.url):
            raise BadPolicy(f"{place}.url: {guard.url!r} is not http(s)://host:port/path")
        if parts.username is not None:
            raise BadPolicy(f"{place}.url: a key belongs into the file that `key_file` names")
    if guard.template.count(TEXT) != 1:
        raise BadPolicy(f"{place}.template: {TEXT} must stand in it once")
    if guard.safe[0] == guard.unsafe[0]:
        raise BadPolicy(f"{place}: {guard.safe!r} and {guard.unsafe!r} must not begin with the same letter")
