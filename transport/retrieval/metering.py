"""What texts pass on their way to an embedding model: the tenant's filters and limits before, a usage row after.

Filters judge all texts of a request as one. A text that they refuse is refused here; what they would redact in a
message is left, because a vector shows nobody words. The row's tokens are the model's, or a count of characters where
a server of somebody else's does not say.
"""

from __future__ import annotations

from collections.abc import Sequence

from sessions.billing.metering import UsageStore
from sessions.billing.prices import PriceBook
from sessions.clock import Clock
from sessions.model.errors import BadInput, Unavailable
from sessions.model.inspection import Refused, RefusedText
from sessions.model.types import EMBEDDINGS, Principal, SessionKey
from sessions.retrieval.embedding import Embedder
from sessions.retrieval.reading_in import Record
from sessions.retrieval.vector_stores import VectorStore
from transport.gateway import Gateway
from transport.model_catalog import card
from transport.openai.unlogged_use import record_unlogged_use, usage_row

BETWEEN = "\n\n"
EMBEDDING_IDS = "embd"  # what ids of usage rows begin with


def embedder_of(gateway: Gateway) -> Embedder:
    """Returns the embedding models of this process. Raises Unavailable if it has none."""
    if gateway.retrieval is None:
        raise Unavailable("no_embeddings", "This process has no embedding models.", retryable=False)
    return gateway.retrieval.embedder


async def screen(gateway: Gateway, principal: Principal, texts: Sequence[str], *, param: str) -> None:
    """Checks texts with the filters for messages, and counts a request and its tokens in the principal's limits. Raises
    Limited, and BadInput about `param` if a filter refuses the texts."""
    judged = await gateway.inspect(principal, card(gateway.models, None).id, RefusedText(BETWEEN.join(texts)))
    assert isinstance(judged, Refused)
    if judged.message is not None:
        raise BadInput("content_filter", judged.message, param=param)


async def record_use(gateway: Gateway, principal: Principal, model: str, tokens: int) -> None:
    """Records the usage of an embedding request. Raises Unavailable if that cannot be stored; then the result must not
    be given out."""
    await record_unlogged_use(gateway, principal, model, tokens, place=EMBEDDINGS, prefix=EMBEDDING_IDS)


def recorder(usage: UsageStore, prices: PriceBook, clock: Clock) -> Record:
    """Returns the function that records the tokens of documents in vector stores, as usage of the store's user without
    a key."""

    async def record(store: VectorStore, tokens: int) -> None:
        principal = Principal(tenant=store.tenant, key_id="vector_stores", user=store.user, role="service")
        row = usage_row(principal, store.model, tokens, prices, clock, prefix=EMBEDDING_IDS)
        await usage.record(SessionKey(store.tenant, EMBEDDINGS), row)

    return record
