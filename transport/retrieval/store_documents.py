"""Documents that are put into vector stores: texts that come with the request, and uploaded files.

An uploaded file keeps its id in each store, so that it is in a store only once, and its deletion removes it from all. A
file of a batch that cannot be read becomes a failed document; one that does not exist, or is somebody else's, refuses
the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from sessions.model.errors import BadInput, NotFound, SessileError, TooLarge
from sessions.model.types import Principal
from sessions.retrieval.vector_stores import TEXT_CHARACTERS_MAX, DocumentId
from transport.gateway import Gateway
from transport.retrieval import vector_store_models as vm

FILENAME: Final = "document.txt"  # of a text without a name


class StoreDocument(NamedTuple):
    """The text of one document. With `error` it cannot be read."""

    id: DocumentId
    filename: str
    text: str
    error: str = ""


async def document_of(gateway: Gateway, principal: Principal, body: vm.NewStoreFile) -> StoreDocument:
    """Returns the document that a request gives. Raises BadInput, NotFound, and what reading a file raises."""
    if (body.text is None) == (body.file_id is None):
        raise BadInput("invalid_request", "A document is a `file_id` or a `text`, one of the two.", param="file_id")
    if body.file_id is None:
        return StoreDocument(DocumentId(f"file_{gateway.new_id()}"), body.filename or FILENAME, body.text or "")
    read = await gateway.files.text(principal, body.file_id)
    text = read.document.text
    if len(text) > TEXT_CHARACTERS_MAX:
        message = f"A document of a vector store has at most {TEXT_CHARACTERS_MAX} characters."
        raise TooLarge("file_too_large", message, param="file_id")
    return StoreDocument(DocumentId(body.file_id), body.filename or read.filename, text)


async def batch_document_of(gateway: Gateway, principal: Principal, body: vm.NewStoreFile) -> StoreDocument:
    """Returns a document of a batch: a failed one if its file cannot be read."""
    try:
        return await document_of(gateway, principal, body)
    except SessileError as error:
        if body.file_id is None or error.status >= 500 or isinstance(error, NotFound):
            raise
        return StoreDocument(DocumentId(body.file_id), body.filename or body.file_id, "", error.public_message)


async def check_files(gateway: Gateway, principal: Principal, documents: Sequence[vm.NewStoreFile]) -> None:
    """Raises NotFound if a file of the documents is not there for the principal."""
    for document in documents:
        if document.file_id is not None:
            await gateway.files.find(principal, document.file_id)


def batch_documents(body: vm.NewFileBatch) -> list[vm.NewStoreFile]:
    """Returns the documents of a batch. Raises BadInput unless it has either `files` or `file_ids`."""
    if (body.files is None) == (body.file_ids is None):
        raise BadInput("invalid_request", "A batch has `file_ids` or `files`, one of the two.", param="file_ids")
    if body.files is None:
        return documents_of_ids(body.file_ids or (), body.chunking_strategy, body.attributes)
    for name in ("attributes", "chunking_strategy"):
        if getattr(body, name) is not None:
            raise BadInput("invalid_request", f"Each of the `files` has its own `{name}`.", param=name)
    return body.files


def documents_of_ids(
    file_ids: Sequence[str],
    strategy: vm.AutoChunking | vm.StaticChunking | None,
    attributes: dict[str, str | bool | float] | None = None,
) -> list[vm.NewStoreFile]:
    """Returns the documents of uploaded files, each file once, all with the same chunking strategy and attributes."""
    return [
        vm.NewStoreFile(file_id=file_id, chunking_strategy=strategy, attributes=attributes)
        for file_id in dict.fromkeys(file_ids)
    ]
