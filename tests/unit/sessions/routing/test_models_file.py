"""What names mean, for whom, and which files are refused."""

from __future__ import annotations

import msgspec
import pytest

from sessions.model.errors import Forbidden
from sessions.model.types import TenantId
from sessions.routing.models_file import NO_POOLS, ModelChoice, read_models

FILE = """
default = "auto"
[models.large]
quality = 2
[models.small]
quality = 1
[aliases]
auto = ["large", "small"]
best = "large"
[tenants.thrifty]
allow = ["small"]
[tenants.pinned]
pin = "large"
wish = 0.2
[tenants.by_alias]
allow = ["auto"]
"""
ANYBODY, THRIFTY = TenantId("anybody"), TenantId("thrifty")


def test_an_alias_means_its_models_the_worse_first() -> None:
    pools = read_models(FILE)
    assert pools.choice(ANYBODY, "auto") == pools.choice(ANYBODY, None) == ModelChoice("auto", ("small", "large"))
    assert pools.choice(ANYBODY, "best") == ModelChoice("best", ("large",))
    assert pools.choice(ANYBODY, "small") == ModelChoice("", ("small",))
    assert pools.choice(ANYBODY, "unlisted") is None, "served perhaps, and nothing is known of it here"


def test_without_a_file_nothing_is_decided() -> None:
    assert NO_POOLS.choice(ANYBODY, "auto") is None and NO_POOLS.visible(ANYBODY, "auto")


def test_an_allow_list_narrows_aliases_and_refuses_the_rest_in_a_sentence() -> None:
    pools = read_models(FILE)
    assert pools.choice(THRIFTY, "auto") == ModelChoice("auto", ("small",))
    for name in ("large", "best", "unlisted"):
        with pytest.raises(Forbidden, match=f"You may not use the model '{name}'. Those that you may: small.") as info:
            pools.choice(THRIFTY, name)
        assert info.value.code == "model_not_allowed" and not pools.visible(THRIFTY, name)
    assert pools.choice(TenantId("by_alias"), "auto") == ModelChoice("auto", ("small", "large"))


def test_a_pin_is_what_aliases_of_several_mean() -> None:
    pools = read_models(FILE)
    pinned = TenantId("pinned")
    assert pools.choice(pinned, "auto") == ModelChoice("auto", ("large",))
    assert (pools.wish(pinned), pools.wish(ANYBODY)) == (0.2, 0.0)


def test_a_version_is_of_what_a_file_says_and_not_of_how() -> None:
    again = read_models("# the same\n" + FILE)
    assert again.version == read_models(FILE).version != read_models(FILE.replace("0.2", "0.3")).version


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('[aliases]\nauto = ["small"]', r"there is no \[models.small\]"),
        ("[models.a]\nquality = 1\n[models.b]\nquality = 1\n[aliases]\nauto = ['a', 'b']", "a quality of its own"),
        ("[models.a]\nquality = 1\n[aliases]\na = 'a'", "there is a model of this name"),
        ("default = 'x'", "there is no model or alias 'x'"),
        ("[models.a]\nquality = 1\n[tenants.t]\nallow = ['a']", "needs a `default`"),
        ("default = 'a'\n[models.a]\nquality = 1\n[tenants.t]\nallow = ['b']", "there is no model or alias 'b'"),
        ("[tenants.t]\npin = 'b'", r"there is no \[models.b\]"),
        ("[models.'a=b']\nquality = 1", "matching regex"),
        ("[models.a]\nquality = 1\nsize = 2", "unknown field"),
        ("[routing]\nhard = 2", "<= 1"),
    ],
)
def test_a_wrong_file_is_refused_with_what_is_wrong(text: str, why: str) -> None:
    with pytest.raises((ValueError, msgspec.ValidationError), match=why):
        read_models(text)
