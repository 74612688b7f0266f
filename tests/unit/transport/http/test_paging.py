"""Pages of lists."""

from __future__ import annotations

from transport.http.paging import page_of


def test_one_row_more_than_the_limit_is_another_page() -> None:
    page = page_of([1, 2, 3], 2, show=str, cursor=lambda row: row * 10, tenant="acme")
    assert page == {"object": "list", "tenant": "acme", "data": ["1", "2"], "has_more": True, "last_id": 20}
    assert page_of([], 2, show=str, cursor=str) == {"object": "list", "data": [], "has_more": False, "last_id": None}
