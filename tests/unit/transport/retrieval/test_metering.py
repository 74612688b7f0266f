"""What texts pass before they are embedded, and the row that is kept of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from persistence.memory.store import MemoryStore
from sessions.billing.prices import PriceBook, read_prices
from sessions.model.errors import BadInput, Unavailable
from sessions.model.inspection import Refused, RefusedText
from sessions.model.types import EMBEDDINGS, LOCAL_PRINCIPAL, SessionKey, UnixMs
from transport.gateway import Gateway
from transport.model_catalog import ModelCard
from transport.retrieval.metering import embedder_of, record_use, screen


def gateway(**fields: Any) -> Gateway:
    return cast(Gateway, SimpleNamespace(**fields))


async def test_texts_are_judged_as_one_and_a_refusal_names_the_parameter() -> None:
    asked: list[Any] = []

    async def inspect(principal: Any, model: str, question: RefusedText) -> Refused:
        asked.append((model, question.text))
        return Refused("no such words" if "sesame" in question.text else None)

    made = gateway(models=lambda: (cast(ModelCard, SimpleNamespace(id="m", names=("m",))),), inspect=inspect)
    await screen(made, LOCAL_PRINCIPAL, ("a", "b"), param="input")
    assert asked == [("m", "a\n\nb")]
    with pytest.raises(BadInput, match="no such words") as refused:
        await screen(made, LOCAL_PRINCIPAL, ("open sesame",), param="input")
    assert (refused.value.code, refused.value.param) == ("content_filter", "input")


async def test_a_row_is_kept_with_what_it_costs() -> None:
    store = MemoryStore()
    await store.open()
    listed = '[[prices]]\nmodel = "m"\ninput = 2\noutput = 3\n'
    prices = PriceBook(read_prices(f'currency = "USD"\n{listed}'))
    made = gateway(store=store, prices=prices, now_ms=lambda: UnixMs(5), new_id=lambda: "1")
    await record_use(made, LOCAL_PRINCIPAL, "m", 1_000_000)
    await record_use(made, LOCAL_PRINCIPAL, "m", 1_000_000)
    (entry,) = await store.usage.of_session(SessionKey(LOCAL_PRINCIPAL.tenant, EMBEDDINGS))
    assert (entry.row.response_id, entry.row.usage.input_tokens, entry.row.currency) == ("embd_1", 1_000_000, "USD")
    assert entry.row.cost == 2 * 10**12


def test_a_process_without_models_says_so() -> None:
    with pytest.raises(Unavailable):
        embedder_of(gateway(retrieval=None))
