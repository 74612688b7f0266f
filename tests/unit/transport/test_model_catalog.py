"""The models that a gateway of a cluster tells: those of its view, and for a while those that were in it."""

from __future__ import annotations

import msgspec
import pytest

from sessions.model.errors import NotFound, Unavailable
from sessions.model.generation import EngineInfo
from sessions.model.types import ReplicaId
from sessions.ports import Member, View
from sessions.routing.models_file import NO_POOLS, read_models
from transport.model_catalog import ModelCard, ModelCatalog, PooledModels, PoolFacts, card, card_of

INFO = EngineInfo(
    model="small",
    build="b",
    model_fingerprint="w",
    context_window=8192,
    slots=4,
    sampling=frozenset({"temperature", "logprobs"}),
    tool_format="hermes",
)


def member(name: str, engine: EngineInfo | None = INFO, model: str = "small") -> Member:
    return Member(replica=ReplicaId(name), incarnation="i", address="", model=model, fingerprint="f", engine=engine)


class Cluster:
    """A view and a clock that the test moves."""

    def __init__(self, *members: Member) -> None:
        self.now = 0.0
        self.view = View(1, members)
        self.catalog = ModelCatalog(lambda: self.view, clock=lambda: self.now, created=7, keep_s=100.0)

    def names(self, *members: Member) -> list[str]:
        self.view = View(self.view.version + 1, members)
        return [each.id for each in self.catalog()]


def test_a_replica_that_does_not_say_what_it_can_leaves_it_open() -> None:
    (found,) = Cluster(member("r1"), member("r2", None)).catalog()
    assert (found.context_window, found.sampling) == (None, None)


def test_a_model_whose_replicas_are_gone_stays_for_a_while() -> None:
    cluster = Cluster(member("r1"), member("r2", model="large"))
    assert cluster.names(member("r1"), member("r2", model="large")) == ["large", "small"]
    cluster.now = 99.0
    assert set(cluster.names(member("r1"))) == {"large", "small"}
    cluster.now = 101.0
    assert cluster.names(member("r1")) == ["small"]


def test_nothing_served_yet_is_to_be_retried_and_an_unknown_name_is_not() -> None:
    with pytest.raises(Unavailable, match="No replica has joined yet") as refused:
        card(Cluster().catalog, "small")
    assert refused.value.retryable
    with pytest.raises(NotFound, match=r"'smal' does not exist here; served: small\. Did you mean 'small'"):
        card(Cluster(member("r1")).catalog, "smal")
    assert card(Cluster(member("r1")).catalog, "SMALL").id == "small"
    assert card(Cluster(member("r1")).catalog, None).id == "small"


def test_a_model_is_requested_by_each_of_its_names_and_answers_by_the_first() -> None:
    named = msgspec.structs.replace(INFO, aliases=("gpt-4o", "tiny"))
    cluster = Cluster(member("a", named), member("b"))
    assert card(cluster.catalog, "tiny").id == card(cluster.catalog, "small").id == "small"
    (only,) = cluster.catalog()
    assert only.names == ("small", "gpt-4o", "tiny") and only.public("tiny")["id"] == "tiny"
    with pytest.raises(NotFound):
        card(cluster.catalog, "gpt")
    own = card_of(named, notice="This is a toy.")
    assert own.aliases == named.aliases and own.public("tiny")["notice"] == "This is a toy."


def test_the_models_file_adds_its_aliases_and_what_it_says_of_pools() -> None:
    models = "[models.a]\nquality = 1\nwindow = 2048\ntools = false\n[models.b]\nquality = 2\n"
    pools = read_models(f"default = 'auto'\n{models}[aliases]\nauto = ['a', 'b']\nnone = 'b'\n")
    cards = [ModelCard(id="a", context_window=4_096, tools=True), ModelCard(id="c")]
    pooled = PooledModels(lambda: cards, lambda: pools, lambda name: 3)
    auto, own, other = pooled()
    assert (auto.id, own.id, other.id) == ("auto", "a", "c"), "the default first; b is not served, nor its alias"
    assert own.pool == PoolFacts(replicas=3, quality=1) and (own.context_window, own.tools) == (2_048, False)
    assert auto.pool == PoolFacts(replicas=3, models=("a",)) and other.pool is None
    assert own.public()["pool"] == {"replicas": 3, "quality": 1, "size_b": None, "vision": False, "models": ()}
    assert PooledModels(lambda: cards, lambda: NO_POOLS, lambda name: 3)() == cards


def test_an_alias_sees_images_if_one_of_its_models_does() -> None:
    models = "[models.a]\nquality = 1\n[models.b]\nquality = 2\n"
    pools = read_models(f"{models}[aliases]\nauto = ['a', 'b']\nblind = ['a']\n")
    cards = [ModelCard(id="a"), ModelCard(id="b", images=True)]
    seeing = {each.id for each in PooledModels(lambda: cards, lambda: pools, lambda name: 1)() if each.images}
    assert seeing == {"b", "auto"}
