"""The files of the web page."""

from __future__ import annotations

from pathlib import Path

import pytest

from sessions.model.errors import NotFound
from transport.http.routes.page import PageFiles


def test_files_below_the_folder_and_nothing_else(tmp_path: Path) -> None:
    web = tmp_path / "web"
    web.mkdir()
    (web / "index.html").write_text("<p>")
    (web / ".hidden").write_text("x")
    (tmp_path / "secret").write_text("x")
    files = PageFiles(web)
    assert files.get("").body == b"<p>" and files.get("index.html").media_type == "text/html; charset=utf-8"
    for name in (".hidden", "../secret", "nothing", "\0", "x" * 5000, "."):
        with pytest.raises(NotFound):
            files.get(name)


def test_a_file_is_kept_until_it_changes(tmp_path: Path) -> None:
    page = tmp_path / "a.js"
    page.write_text("1")
    files = PageFiles(tmp_path)
    first = files.get("a.js")
    assert files.get("a.js") is first and "javascript" in first.media_type
    page.write_text("22")
    assert files.get("a.js").etag != first.etag
