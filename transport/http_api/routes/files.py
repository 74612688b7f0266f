"""`/v1/files`: OpenAI's Files API.

A content goes out as bytes to be saved, whatever they are: no browser shows them, and no page of this address can run
them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from sessions.model.errors import BadInput
from sessions.model.knowledge.files import PURPOSES, UNKNOWN_TYPE, FilePurpose, StoredFile
from sessions.retrieval.vector_stores import DocumentId
from transport.files.multipart import UploadForm
from transport.gateway import Gateway
from transport.http_api.context import gateway_of, principal_of
from transport.http_api.strict_json import StrictRoute
from transport.openai.response_models import ERRORS, Answers, ResponseModel

PAGE_MAX: Final = 1_000
EXPIRES_S: Final = (3_600, 2_592_000)  # as OpenAI has it: an hour to 30 days
_FIELDS: Final = frozenset({"purpose", "expires_after[anchor]", "expires_after[seconds]"})
_CONTENT_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; sandbox",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "private, no-store",
}
_FORM: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "purpose": {"type": "string", "enum": list(PURPOSES)},
                        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
                        "expires_after[seconds]": {
                            "type": "integer",
                            "minimum": EXPIRES_S[0],
                            "maximum": EXPIRES_S[1],
                        },
                    },
                }
            }
        },
    }
}
_BYTES: Final[Answers] = {
    **ERRORS,
    200: {"content": {UNKNOWN_TYPE: {"schema": {"type": "string", "format": "binary"}}}, "description": "The bytes"},
}


class FileObject(ResponseModel):
    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: FilePurpose
    status: Literal["processed"] = "processed"
    status_details: None = None


class FileList(ResponseModel):
    object: Literal["list"] = "list"
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileDeleted(ResponseModel):
    id: str
    object: Literal["file"] = "file"
    deleted: bool


routes = APIRouter(tags=["files"], route_class=StrictRoute)


@routes.post("/v1/files", responses=ERRORS, openapi_extra=_FORM)
async def upload(request: Request) -> FileObject:
    """Stores a file from a form with `file` and `purpose`. It is encrypted while it is received."""
    principal, gateway = principal_of(request, "chat"), gateway_of(request)
    gateway.check_draining()
    form = UploadForm(request.headers.get("content-type", ""))
    async with gateway.files.upload(principal) as incoming:
        await form.read(request.stream(), incoming.feed)
        purpose, expires_s = _checked(form)
        assert form.file is not None
        file = await incoming.finish(
            filename=form.file.filename, media_type=form.file.media_type, purpose=purpose, expires_s=expires_s
        )
    return shown(file)


@routes.get("/v1/files", responses=ERRORS)
async def files(
    request: Request,
    purpose: FilePurpose | None = None,
    after: Annotated[str | None, Query(min_length=1, max_length=64)] = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
    order: Literal["asc", "desc"] = "desc",
) -> FileList:
    """Lists the caller's files, newest first unless `order` says otherwise. A page has at most 1,000."""
    page = min(limit, PAGE_MAX)
    stored = await gateway_of(request).files.files(
        principal_of(request, "read"), purpose=purpose, after=after, limit=page + 1, newest_first=order == "desc"
    )
    data = [shown(file) for file in stored[:page]]
    return FileList(
        data=data,
        first_id=data[0].id if data else None,
        last_id=data[-1].id if data else None,
        has_more=len(stored) > page,
    )


@routes.get("/v1/files/{file_id}", responses=ERRORS)
async def retrieve(request: Request, file_id: str) -> FileObject:
    return shown(await gateway_of(request).files.find(principal_of(request, "read"), file_id))


@routes.get("/v1/containers/{container_id}/files/{file_id}/content", response_class=StreamingResponse, responses=_BYTES)
async def content_of_container(request: Request, container_id: str, file_id: str) -> Response:
    """Returns the bytes of a file that code wrote, as OpenAI's clients ask for it. `container_id` is not looked at."""
    return await content(request, file_id)


@routes.get("/v1/files/{file_id}/content", response_class=StreamingResponse, responses=_BYTES)
async def content(request: Request, file_id: str) -> Response:
    """Returns a file's bytes, as an attachment to be saved."""
    door = gateway_of(request).files
    file = await door.find(principal_of(request, "read"), file_id)
    chunks = door.content(file)
    first = await anext(chunks, b"")  # what goes wrong with it is answered by the status
    headers = {
        **_CONTENT_HEADERS,
        "content-length": str(file.size),
        "content-disposition": f"attachment; filename*=UTF-8''{quote(file.filename, safe='')}",
    }
    return StreamingResponse(_resumed(first, chunks), media_type=UNKNOWN_TYPE, headers=headers)


@routes.delete("/v1/files/{file_id}", responses=ERRORS)
async def delete(request: Request, file_id: str) -> FileDeleted:
    """Deletes a file, and removes it from all vector stores. Its content cannot be read any more; messages that it was
    attached to keep their text."""
    gateway, principal = gateway_of(request), principal_of(request, "chat")
    file = await gateway.files.deletable(principal, file_id)
    await _remove_from_stores(gateway, file)
    await gateway.files.delete(principal, file_id)
    await _remove_from_stores(gateway, file)  # a request that read it meanwhile may have added it again
    return FileDeleted(id=file_id, deleted=True)


async def _remove_from_stores(gateway: Gateway, file: StoredFile) -> None:
    if gateway.retrieval is not None and gateway.retrieval.vector_stores is not None:
        await gateway.retrieval.vector_stores.passages.remove_document(file.tenant, DocumentId(file.id))


def shown(file: StoredFile) -> FileObject:
    return FileObject(
        id=file.id,
        bytes=file.size,
        created_at=file.created_at // 1000,
        expires_at=None if file.expires_at is None else file.expires_at // 1000,
        filename=file.filename,
        purpose=file.purpose,
    )


async def _resumed(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for chunk in rest:
        yield chunk


def _checked(form: UploadForm) -> tuple[FilePurpose, int | None]:
    """Returns a form's purpose, and the seconds after which the file expires, or None. Raises BadInput."""
    for name in form.fields:
        if name not in _FIELDS:
            raise BadInput("unknown_parameter", f"Unknown parameter: '{name[:64]}'.", param=name[:64])
    if form.file is None:
        raise BadInput("missing_required_parameter", "Missing required parameter: 'file'.", param="file")
    given = form.fields.get("purpose")
    if given is None:
        raise BadInput("missing_required_parameter", "Missing required parameter: 'purpose'.", param="purpose")
    purpose = next((each for each in PURPOSES if each == given), None)
    if purpose is None:
        raise BadInput("invalid_request", f"'purpose' is one of {', '.join(PURPOSES)}.", param="purpose")
    anchor, seconds = form.fields.get("expires_after[anchor]"), form.fields.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return purpose, None
    least, most = EXPIRES_S
    if anchor != "created_at" or seconds is None or not (seconds.isascii() and seconds.isdigit()):
        raise BadInput(
            "invalid_request", "'expires_after' has the anchor created_at, and seconds.", param="expires_after"
        )
    if len(seconds) > 9 or not least <= int(seconds) <= most:
        raise BadInput("invalid_request", f"A file expires after {least} to {most} seconds.", param="expires_after")
    return purpose, int(seconds)
