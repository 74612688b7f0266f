"""`/v1/vector_stores`: stores of documents that are searched by meaning and by words, as OpenAI has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal, NamedTuple

import msgspec
from fastapi import APIRouter, Depends, Query, Request

from sessions.model.errors import BadInput, NotFound, Unavailable
from sessions.model.types import Principal
from sessions.retrieval.chunking import Chunking
from sessions.retrieval.embedding import EmbeddingModel
from sessions.retrieval.filters import check_attributes, parse_filter
from sessions.retrieval.search import Ranker
from sessions.retrieval.services import VectorStores
from sessions.retrieval.vector_stores import (
    DocumentId,
    FileStatus,
    ListSlice,
    PassageIndex,
    StoreFile,
    StoreId,
    VectorStore,
    file_not_found,
    may_see_store,
    store_not_found,
)
from transport.http.paging import page_of
from transport.http_api.context import gateway_of, principal_of
from transport.http_api.strict_json import StrictRoute
from transport.openai.response_models import ERRORS, ListPage
from transport.openai.unknown_parameters import leave_out
from transport.retrieval import vector_store_models as vm
from transport.retrieval.metering import embedder_of, record_use, screen
from transport.retrieval.store_documents import (
    StoreDocument,
    batch_document_of,
    batch_documents,
    check_files,
    document_of,
    documents_of_ids,
)

PAGE_MAX: Final = 100
_RANKERS: Final[dict[str, Ranker]] = {"default-2024-11-15": "auto"}

routes = APIRouter(tags=["vector stores"], route_class=StrictRoute)


# -- what requests name -----------------------------------------------------------------------------------------------


def _services(request: Request) -> VectorStores:
    retrieval = gateway_of(request).retrieval
    services = None if retrieval is None else retrieval.vector_stores
    if services is None:
        message = "This server has no vector stores: see docs/retrieval.md."
        raise Unavailable("no_vector_stores", message, retryable=False)
    return services


async def _index(request: Request) -> PassageIndex:
    return _services(request).passages


async def _store(principal: Principal, index: PassageIndex, store_id: str) -> VectorStore:
    """Returns a vector store that the principal may see. Raises NotFound."""
    store = await index.store(principal.tenant, StoreId(store_id))
    if store is None or not may_see_store(principal, store):
        raise store_not_found(store_id)
    return store


Index = Annotated[PassageIndex, Depends(_index)]


async def _store_to_read(request: Request, index: Index, store_id: str) -> VectorStore:
    return await _store(principal_of(request, "read"), index, store_id)


async def _store_to_change(request: Request, index: Index, store_id: str) -> VectorStore:
    return await _store(principal_of(request, "chat"), index, store_id)


ReadStore = Annotated[VectorStore, Depends(_store_to_read)]
ChangedStore = Annotated[VectorStore, Depends(_store_to_change)]


async def _file(index: PassageIndex, store: VectorStore, file_id: str) -> StoreFile:
    """Returns a document of a vector store. Raises NotFound."""
    file = await index.file(store.tenant, store.id, DocumentId(file_id))
    if file is None:
        raise file_not_found(file_id)
    return file


class StorePage(NamedTuple):
    """The page of a list that a request asks for."""

    after: str | None
    limit: int
    newest_first: bool

    @property
    def part(self) -> ListSlice:
        """The part of the list that the page shows, and one entry more, which tells whether there are others."""
        return ListSlice(after=self.after, limit=self.limit + 1, newest_first=self.newest_first)


async def _page(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = 20,
    after: str | None = None,
    order: Literal["asc", "desc"] = "desc",
    before: str | None = None,
) -> StorePage:
    leave_out(request, () if before is None else ("before",))
    return StorePage(after, limit, order == "desc")


PageParam = Annotated[StorePage, Depends(_page)]
StatusParam = Annotated[FileStatus | None, Query(alias="filter")]


# -- stores -----------------------------------------------------------------------------------------------------------


@routes.post("/v1/vector_stores", responses=ERRORS)
async def create_store(request: Request, index: Index, body: vm.NewVectorStore) -> vm.VectorStoreObject:
    """Makes a vector store. Its embedding model cannot be changed later."""
    gateway, principal = gateway_of(request), principal_of(request, "chat")
    model = embedder_of(gateway).model(body.embedding_model)
    await screen(gateway, principal, _said(body.name, body.metadata), param="name")
    store = VectorStore(
        id=StoreId(f"vs_{gateway.new_id()}"),
        tenant=principal.tenant,
        user=principal.user,
        model=model.name,
        dimensions=model.dimensions,
        created_at=gateway.now_ms(),
        name=body.name or "",
        metadata=body.metadata or {},
    )
    documents = documents_of_ids(body.file_ids or (), body.chunking_strategy)
    _chunking(model, body.chunking_strategy)
    await check_files(gateway, principal, documents)
    await index.create(store)
    try:
        for document in documents:
            await _added(request, store, document, await batch_document_of(gateway, principal, document), "")
    except BaseException:  # nobody was told its id
        await index.delete(store.tenant, store.id)
        raise
    return await _shown(index, store)


@routes.get("/v1/vector_stores", responses=ERRORS)
async def list_stores(request: Request, index: Index, page: PageParam) -> ListPage[vm.VectorStoreObject]:
    """Lists the caller's vector stores, newest first unless `order` says otherwise."""
    principal = principal_of(request, "read")
    if page.after is not None:
        after = await index.store(principal.tenant, StoreId(page.after))
        if after is None or not may_see_store(principal, after):
            raise _unknown_after()
    stores = await index.stores(principal.tenant, principal.user, anybody=principal.role != "user", part=page.part)
    shown = {store.id: await _shown(index, store) for store in stores[: page.limit]}
    return ListPage[vm.VectorStoreObject](
        **page_of(stores, page.limit, show=lambda each: shown[each.id], cursor=lambda each: each.id)
    )


@routes.get("/v1/vector_stores/{store_id}", responses=ERRORS)
async def get_store(index: Index, store: ReadStore) -> vm.VectorStoreObject:
    """Returns one vector store."""
    return await _shown(index, store)


@routes.post("/v1/vector_stores/{store_id}", responses=ERRORS)
async def change_store(
    request: Request, index: Index, store: ChangedStore, body: vm.VectorStoreChange
) -> vm.VectorStoreObject:
    """Changes a vector store's name and metadata."""
    said = _said(body.name, body.metadata)
    await screen(gateway_of(request), principal_of(request), said, param="name")
    changed = msgspec.structs.replace(
        store,
        name=store.name if body.name is None else body.name,
        metadata=store.metadata if body.metadata is None else body.metadata,
    )
    await index.change(changed)
    return await _shown(index, changed)


@routes.delete("/v1/vector_stores/{store_id}", responses=ERRORS)
async def delete_store(index: Index, store: ChangedStore) -> vm.DeletedStoreObject:
    """Deletes a vector store with everything in it; no search finds any of it any more."""
    done = await index.delete(store.tenant, store.id)
    return vm.DeletedStoreObject(id=store.id, object="vector_store.deleted", deleted=done)


@routes.post("/v1/vector_stores/{store_id}/search", responses=ERRORS)
async def search_store(request: Request, store: ChangedStore, body: vm.StoreSearch) -> vm.SearchResults:
    """Searches a vector store for passages that answer a query. Each has its place in its document."""
    gateway, principal = gateway_of(request), principal_of(request)
    only = None if body.filters is None else parse_filter(body.filters)
    queries = [body.query] if isinstance(body.query, str) else body.query
    await screen(gateway, principal, queries, param="query")
    ranking = body.ranking_options or vm.RankingOptions()
    ranker: Ranker = _RANKERS.get(ranking.ranker, ranking.ranker)  # type: ignore[arg-type]
    search = _services(request).search.search
    result = await search([store], " ".join(queries), only=only, limit=body.max_num_results, ranker=ranker)
    if result.tokens:
        await record_use(gateway, principal, store.model, result.tokens)
    data = [
        vm.SearchResult(
            file_id=each.file,
            filename=each.filename,
            score=min(max(each.score, 0.0), 1.0),
            attributes=each.attributes,
            content=[vm.TextContent(text=each.text)],
            span=vm.SpanObject(start=each.start, end=each.end),
        )
        for each in result.passages
        if each.score >= ranking.score_threshold
    ]
    return vm.SearchResults(search_query=queries, data=data, skipped=list(result.reasons))


# -- files ------------------------------------------------------------------------------------------------------------


@routes.post("/v1/vector_stores/{store_id}/files", responses=ERRORS)
async def add_file(request: Request, store: ChangedStore, body: vm.NewStoreFile) -> vm.StoreFileObject:
    """Adds a document. It is processed in the background; searches find it once its status is `completed`. An uploaded
    file that the store already has stays as it is, with the attributes of the newest request."""
    document = await document_of(gateway_of(request), principal_of(request), body)
    return _shown_file(await _added(request, store, body, document, ""))


@routes.get("/v1/vector_stores/{store_id}/files", responses=ERRORS)
async def list_files(
    index: Index, store: ReadStore, page: PageParam, status: StatusParam = None
) -> ListPage[vm.StoreFileObject]:
    """Lists the documents of a vector store, newest first unless `order` says otherwise; with `filter` only those of
    this status."""
    return await _file_page(index, store, "", page, status)


@routes.get("/v1/vector_stores/{store_id}/files/{file_id}", responses=ERRORS)
async def get_file(index: Index, store: ReadStore, file_id: str) -> vm.StoreFileObject:
    """Returns one document of a vector store, without its text."""
    return _shown_file(await _file(index, store, file_id))


@routes.get("/v1/vector_stores/{store_id}/files/{file_id}/content", responses=ERRORS)
async def get_content(index: Index, store: ReadStore, file_id: str) -> vm.FileContent:
    """Returns a document's text, in which the places of its passages are counted."""
    text = await index.text(store.tenant, store.id, DocumentId(file_id))
    if text is None:
        raise file_not_found(file_id)
    return vm.FileContent(data=[vm.TextContent(text=text)])


@routes.post("/v1/vector_stores/{store_id}/files/{file_id}", responses=ERRORS)
async def change_file(
    request: Request, index: Index, store: ChangedStore, file_id: str, body: vm.StoreFileChange
) -> vm.StoreFileObject:
    """Changes a document's attributes, by which searches can be filtered."""
    attributes = check_attributes(body.attributes)
    await screen(gateway_of(request), principal_of(request), _said(None, attributes), param="attributes")
    if not await index.set_attributes(store.tenant, store.id, DocumentId(file_id), attributes):
        raise file_not_found(file_id)
    return _shown_file(await _file(index, store, file_id))


@routes.delete("/v1/vector_stores/{store_id}/files/{file_id}", responses=ERRORS)
async def remove_file(index: Index, store: ChangedStore, file_id: str) -> vm.DeletedStoreObject:
    """Removes a document, with its text and chunks, from a vector store."""
    if not await index.remove_file(store.tenant, store.id, DocumentId(file_id)):
        raise file_not_found(file_id)
    return vm.DeletedStoreObject(id=file_id, object="vector_store.file.deleted", deleted=True)


# -- batches ----------------------------------------------------------------------------------------------------------


@routes.post("/v1/vector_stores/{store_id}/file_batches", responses=ERRORS)
async def create_batch(
    request: Request, index: Index, store: ChangedStore, body: vm.NewFileBatch
) -> vm.FileBatchObject:
    """Adds many documents at once, or none of them: where one is refused, those before it are removed again."""
    gateway, principal = gateway_of(request), principal_of(request)
    documents = batch_documents(body)
    await check_files(gateway, principal, documents)
    batch, new = f"vsfb_{gateway.new_id()}", list[DocumentId]()
    try:
        for document in documents:
            there = document.file_id and await index.file(store.tenant, store.id, DocumentId(document.file_id))
            read = await batch_document_of(gateway, principal, document)
            file = await _added(request, store, document, read, batch)
            if not there:
                new.append(file.id)
    except BaseException:  # nobody was told the batch's id
        for file_id in new:
            await index.remove_file(store.tenant, store.id, file_id)
        raise
    return await _shown_batch(index, store, batch)


@routes.get("/v1/vector_stores/{store_id}/file_batches/{batch_id}", responses=ERRORS)
async def get_batch(index: Index, store: ReadStore, batch_id: str) -> vm.FileBatchObject:
    """Shows how many documents of a batch are processed."""
    return await _shown_batch(index, store, batch_id)


@routes.post("/v1/vector_stores/{store_id}/file_batches/{batch_id}/cancel", responses=ERRORS)
async def cancel_batch(index: Index, store: ChangedStore, batch_id: str) -> vm.FileBatchObject:
    """Cancels a batch: documents that were not processed yet are left out."""
    await index.cancel_batch(store.tenant, store.id, batch_id)
    return await _shown_batch(index, store, batch_id)


@routes.get("/v1/vector_stores/{store_id}/file_batches/{batch_id}/files", responses=ERRORS)
async def list_batch(
    index: Index, store: ReadStore, batch_id: str, page: PageParam, status: StatusParam = None
) -> ListPage[vm.StoreFileObject]:
    """Lists the documents of a batch, newest first unless `order` says otherwise; with `filter` only those of this
    status."""
    await _shown_batch(index, store, batch_id)
    return await _file_page(index, store, batch_id, page, status)


# -- what they share --------------------------------------------------------------------------------------------------


async def _added(
    request: Request, store: VectorStore, body: vm.NewStoreFile, document: StoreDocument, batch: str
) -> StoreFile:
    gateway, principal, services = gateway_of(request), principal_of(request), _services(request)
    attributes = check_attributes(body.attributes or {})
    chunking = _chunking(embedder_of(gateway).model(store.model), body.chunking_strategy)
    param = "text" if body.file_id is None else "file_id"
    await screen(gateway, principal, (document.filename, document.text, *_said(None, attributes)), param=param)
    file = StoreFile(
        id=document.id,
        store=store.id,
        tenant=store.tenant,
        filename=document.filename,
        created_at=gateway.now_ms(),
        status="failed" if document.error else "in_progress",
        error=document.error,
        attributes=attributes,
        chunking=chunking,
        batch=batch,
        size=len(document.text.encode()),
    )
    if body.file_id is not None:
        return await _added_upload(request, store, file, document.text)
    await services.passages.add_file(file, document.text)
    services.reader.wake()
    return file


def _chunking(model: EmbeddingModel, strategy: vm.AutoChunking | vm.StaticChunking | None) -> Chunking:
    """Returns how documents are cut into chunks for a model. Raises BadInput for chunks that it does not take."""
    chunking = Chunking()
    if isinstance(strategy, vm.StaticChunking):
        chunking = Chunking(strategy.static.max_chunk_size_tokens, strategy.static.chunk_overlap_tokens)
    if chunking.tokens_max > model.tokens_max - 2 or chunking.overlap > chunking.tokens_max // 2:
        message = (
            f"Chunks of {model.name} have at most {model.tokens_max - 2} tokens, of which they share half at most."
        )
        raise BadInput("invalid_request", message, param="chunking_strategy")
    return chunking


async def _added_upload(request: Request, store: VectorStore, file: StoreFile, text: str) -> StoreFile:
    """Adds an uploaded file, and returns it as the store has it. One that is in the store already is read again only if
    it failed or was cancelled, or if a batch wants other chunks of it. Raises NotFound if it is deleted meanwhile."""
    index = _services(request).passages
    present = await index.file(store.tenant, store.id, file.id)
    replace = present is not None and (
        present.status in ("failed", "cancelled") or (file.batch != "" and present.chunking != file.chunking)
    )
    await index.add_file(file, text, replace=replace)
    if present is not None and file.attributes:
        await index.set_attributes(store.tenant, store.id, file.id, file.attributes)
    _services(request).reader.wake()
    try:
        await gateway_of(request).files.find(principal_of(request, "chat"), file.id)
    except NotFound:
        await index.remove_document(store.tenant, file.id)
        raise
    return await _file(index, store, file.id)


def _said(name: str | None, more: Mapping[str, str | float | bool] | None) -> list[str]:
    """Returns the texts of a name and attributes that filters judge."""
    return [name or "", *(f"{key} {value}" for key, value in (more or {}).items())]


def _unknown_after() -> BadInput:
    return BadInput("invalid_request", "There is nothing of the id in 'after'.", param="after")


async def _file_page(
    index: PassageIndex, store: VectorStore, batch: str, page: StorePage, status: FileStatus | None
) -> ListPage[vm.StoreFileObject]:
    """Returns a page of a store's documents, or of those of a batch. Raises BadInput for an unknown `after`."""
    if page.after is not None:
        file = await index.file(store.tenant, store.id, DocumentId(page.after))
        if file is None or (batch and file.batch != batch):
            raise _unknown_after()
    files = await index.files(store.tenant, store.id, batch=batch, status=status, part=page.part)
    return ListPage[vm.StoreFileObject](**page_of(files, page.limit, show=_shown_file, cursor=lambda each: each.id))


async def _shown(index: PassageIndex, store: VectorStore) -> vm.VectorStoreObject:
    counts = await index.counts(store.tenant, store.id)
    return vm.VectorStoreObject(
        id=store.id,
        created_at=store.created_at // 1000,
        name=store.name,
        usage_bytes=counts.size,
        file_counts=vm.FileCountsObject.model_validate(counts, from_attributes=True),
        status="in_progress" if counts.in_progress else "completed",
        embedding_model=store.model,
        metadata=store.metadata,
    )


def _shown_file(file: StoreFile) -> vm.StoreFileObject:
    how = {"max_chunk_size_tokens": file.chunking.tokens_max, "chunk_overlap_tokens": file.chunking.overlap}
    return vm.StoreFileObject(
        id=file.id,
        created_at=file.created_at // 1000,
        vector_store_id=file.store,
        status=file.status,
        filename=file.filename,
        usage_bytes=file.size,
        last_error=vm.FileError(code="invalid_file", message=file.error) if file.status == "failed" else None,
        attributes=file.attributes,
        chunking_strategy={"type": "static", "static": how},
    )


async def _shown_batch(index: PassageIndex, store: VectorStore, batch: str) -> vm.FileBatchObject:
    oldest = ListSlice(limit=1, newest_first=False)
    files = await index.files(store.tenant, store.id, batch=batch, part=oldest) if batch else []
    if not files:
        raise file_not_found(batch)
    counts = await index.counts(store.tenant, store.id, batch=batch)
    ended: Literal["completed", "cancelled"] = "cancelled" if counts.cancelled else "completed"
    return vm.FileBatchObject(
        id=batch,
        created_at=files[0].created_at // 1000,
        vector_store_id=store.id,
        status="in_progress" if counts.in_progress else ended,
        file_counts=vm.FileCountsObject.model_validate(counts, from_attributes=True),
    )
