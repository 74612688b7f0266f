"""What requests and answers of `/v1/embeddings` and `/v1/rerank` look like: OpenAI's, and the one that Cohere, Jina,
vLLM and llama.cpp share."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from sessions.retrieval.embedding import CHARACTERS_MAX, DOCUMENTS_MAX, INPUTS_MAX
from transport.openai.request_models import RequestModel
from transport.openai.response_models import ResponseModel

Model = Annotated[str, StringConstraints(min_length=1, max_length=256)]
InputText = Annotated[str, StringConstraints(min_length=1, max_length=CHARACTERS_MAX)]
TokenId = Annotated[int, Field(ge=0, lt=2**31, strict=True)]
TokenList = Annotated[list[TokenId], Field(min_length=1, max_length=32_768)]


class EmbeddingsRequest(RequestModel):
    model: Model | None = None
    input: (
        InputText
        | Annotated[list[InputText], Field(min_length=1, max_length=INPUTS_MAX)]
        | TokenList
        | Annotated[list[TokenList], Field(min_length=1, max_length=INPUTS_MAX)]
    )
    encoding_format: Literal["float", "base64"] | None = "float"
    dimensions: Annotated[int, Field(ge=1, le=8_192)] | None = None
    user: Annotated[str, StringConstraints(max_length=256)] | None = None


class EmbeddingObject(ResponseModel):
    """The vector of one input: `embedding` is a list of numbers, or base64 of them as 32-bit little-endian floats."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(ResponseModel):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(ResponseModel):
    object: Literal["list"]
    data: list[EmbeddingObject]
    model: str
    usage: EmbeddingUsage


class RerankText(RequestModel):
    text: InputText


class RerankRequest(RequestModel):
    model: Model | None = None
    query: Annotated[str, StringConstraints(min_length=1, max_length=8_192)]
    documents: Annotated[list[InputText | RerankText], Field(min_length=1, max_length=DOCUMENTS_MAX)]
    top_n: Annotated[int, Field(ge=1)] | None = None
    return_documents: bool | None = False


class RerankDocument(ResponseModel):
    text: str


class RerankResult(ResponseModel):
    """A document's rank. `relevance_score` is 1 if every word of the query is in the document as it is."""

    index: int
    relevance_score: float
    document: RerankDocument | None = None


class Reranked(ResponseModel):
    """The ranked documents, the best first."""

    id: str
    object: Literal["list"]
    model: str
    results: list[RerankResult]
    usage: EmbeddingUsage
