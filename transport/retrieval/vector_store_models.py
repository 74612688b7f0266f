"""The requests and answers of `/v1/vector_stores`: OpenAI's, with documents that are given as their text beside those
that are uploaded files, and the place of each passage."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field, StringConstraints

from sessions.retrieval.vector_stores import RESULTS_MAX, TEXT_CHARACTERS_MAX
from transport.openai.request_models import Metadata, RequestModel
from transport.openai.response_models import ResponseModel

StoreName = Annotated[str, StringConstraints(max_length=256)]
AttributeMap = Annotated[dict[str, str | bool | float], Field(max_length=16)]
FileIdText = Annotated[str, StringConstraints(min_length=1, max_length=64)]
BATCH_MAX: Final = 500
FileIds = Annotated[list[FileIdText], Field(max_length=BATCH_MAX)]
Query = Annotated[str, StringConstraints(min_length=1, max_length=8_192)]


class StaticChunks(RequestModel):
    max_chunk_size_tokens: Annotated[int, Field(ge=16, le=4_096)]
    chunk_overlap_tokens: Annotated[int, Field(ge=0, le=2_048)]


class StaticChunking(RequestModel):
    type: Literal["static"]
    static: StaticChunks


class AutoChunking(RequestModel):
    type: Literal["auto"]


class VectorStoreChange(RequestModel):
    name: StoreName | None = None
    metadata: Metadata | None = None


class NewVectorStore(VectorStoreChange):
    embedding_model: Annotated[str, StringConstraints(min_length=1, max_length=256)] | None = None
    file_ids: FileIds | None = None
    chunking_strategy: AutoChunking | StaticChunking | None = None


class NewStoreFile(RequestModel):
    """A new document: an uploaded file by its id, or a text."""

    file_id: FileIdText | None = None
    text: Annotated[str, StringConstraints(min_length=1, max_length=TEXT_CHARACTERS_MAX)] | None = None
    filename: Annotated[str, StringConstraints(min_length=1, max_length=255)] | None = None
    attributes: AttributeMap | None = None
    chunking_strategy: AutoChunking | StaticChunking | None = None


class NewFileBatch(RequestModel):
    """Many new documents. `attributes` and `chunking_strategy` are for those of `file_ids`."""

    files: Annotated[list[NewStoreFile], Field(min_length=1, max_length=BATCH_MAX)] | None = None
    file_ids: Annotated[list[FileIdText], Field(min_length=1, max_length=BATCH_MAX)] | None = None
    attributes: AttributeMap | None = None
    chunking_strategy: AutoChunking | StaticChunking | None = None


class StoreFileChange(RequestModel):
    attributes: AttributeMap


class RankingOptions(RequestModel):
    """How the passages found are ranked. `auto`: by meaning and by words, fused; `none`: by meaning alone; `words`: by
    words alone; `maxsim`: the best 20 of `auto` are ranked again by the meaning of single words."""

    ranker: Literal["auto", "none", "words", "maxsim", "default-2024-11-15"] = "auto"
    score_threshold: Annotated[float, Field(ge=0, le=1)] = 0.0


class StoreSearch(RequestModel):
    query: Query | Annotated[list[Query], Field(min_length=1, max_length=8)]
    filters: dict[str, Any] | None = None
    max_num_results: Annotated[int, Field(ge=1, le=RESULTS_MAX)] = 10
    ranking_options: RankingOptions | None = None
    rewrite_query: Literal[False] | None = False


class FileCountsObject(ResponseModel):
    in_progress: int
    completed: int
    failed: int
    cancelled: int
    total: int


class VectorStoreObject(ResponseModel):
    id: str
    object: Literal["vector_store"] = "vector_store"
    created_at: int
    name: str
    usage_bytes: int
    file_counts: FileCountsObject
    status: Literal["in_progress", "completed"]
    embedding_model: str
    metadata: dict[str, str]
    last_active_at: int | None = None
    expires_after: None = None
    expires_at: None = None


class FileError(ResponseModel):
    code: Literal["invalid_file"]
    message: str


class StoreFileObject(ResponseModel):
    id: str
    object: Literal["vector_store.file"] = "vector_store.file"
    created_at: int
    vector_store_id: str
    status: Literal["in_progress", "completed", "failed", "cancelled"]
    filename: str
    usage_bytes: int
    last_error: FileError | None
    attributes: dict[str, str | bool | float]
    chunking_strategy: dict[str, Any]


class FileBatchObject(ResponseModel):
    id: str
    object: Literal["vector_store.file_batch", "vector_store.files_batch"] = "vector_store.file_batch"
    created_at: int
    vector_store_id: str
    status: Literal["in_progress", "completed", "cancelled"]
    file_counts: FileCountsObject


class DeletedStoreObject(ResponseModel):
    id: str
    object: Literal["vector_store.deleted", "vector_store.file.deleted"]
    deleted: bool


class TextContent(ResponseModel):
    type: Literal["text"] = "text"
    text: str


class FileContent(ResponseModel):
    object: Literal["vector_store.file_content.page"] = "vector_store.file_content.page"
    data: list[TextContent]
    has_more: bool = False
    next_page: None = None


class SpanObject(ResponseModel):
    """The place of a passage in its file's text, in code points."""

    start: int
    end: int


class SearchResult(ResponseModel):
    file_id: str
    filename: str
    score: float
    attributes: dict[str, str | bool | float]
    content: list[TextContent]
    span: SpanObject


class SearchResults(ResponseModel):
    """The passages that a search found, the best first. `skipped` names the stages of the search that were left out,
    because they failed or took too long."""

    object: Literal["vector_store.search_results.page"] = "vector_store.search_results.page"
    search_query: list[str]
    data: list[SearchResult]
    has_more: bool = False
    next_page: None = None
    skipped: list[str]
