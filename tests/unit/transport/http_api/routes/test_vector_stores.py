"""Pages of stores and files, and what of a request filters judge; the doors: `tests/integration/openai`."""

from __future__ import annotations

import pytest

from sessions.model.errors import BadInput
from sessions.model.types import TenantId, UnixMs
from sessions.retrieval.vector_stores import DocumentId, StoreFile, StoreId
from transport.http_api.routes.vector_stores import _page, _said, _shown_file

ROWS = ("c", "b", "a")  # the newest first


def test_pages_go_on_behind_their_last_row_in_either_order() -> None:
    assert _page(ROWS, str, None, "desc", 2) == ["c", "b", "a"] and _page(ROWS, str, None, "asc", 1) == ["a", "b"]
    assert _page(ROWS, str, "c", "desc", 5) == ["b", "a"] and _page(ROWS, str, "c", "asc", 5) == []
    with pytest.raises(BadInput, match="after"):
        _page(ROWS, str, "x", "desc", 1)


def test_names_and_values_are_judged() -> None:
    assert _said("n", {"a": "b", "c": True}) == ["n", "a b", "c True"] and _said(None, None) == [""]


def test_only_a_file_that_failed_has_an_error() -> None:
    file = StoreFile(
        id=DocumentId("f"),
        store=StoreId("vs"),
        tenant=TenantId("t"),
        filename="f.md",
        created_at=UnixMs(5_000),
        status="failed",
        error="There is no text in it.",
    )
    shown = _shown_file(file)
    assert shown.last_error is not None and shown.last_error.message == "There is no text in it."
    assert shown.created_at == 5 and shown.chunking_strategy["static"]["max_chunk_size_tokens"] == 200
