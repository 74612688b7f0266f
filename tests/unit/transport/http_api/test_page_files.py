from __future__ import annotations

import base64
import gzip
import hashlib
import re
from pathlib import Path

import pytest
from fastapi import FastAPI

from sessions.model.errors import NotFound
from tests.support.doors.transport import gateway_over, http_client, memory_sessions
from transport.http import compression
from transport.http_api import app, page_files
from transport.http_api.page_files import PageFiles


def sha384(text: str) -> str:
    return "sha384-" + base64.b64encode(hashlib.sha384(text.encode()).digest()).decode()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "index.html").write_text(
        '<link rel="icon" href="i.svg"><link rel="stylesheet" href="s.css"><script type="module" src="a.js"></script>'
    )
    (tmp_path / "s.css").write_text("p {}")
    (tmp_path / "a.js").write_text('import {\n  x,\n} from "./b.js";\n/** @typedef {import("./d.js").T} T */\n')
    (tmp_path / "b.js").write_text('import "./c.js";\nexport * from "./a.js";\n')
    (tmp_path / "c.js").write_text("")
    (tmp_path / "d.js").write_text("")
    return tmp_path


def test_a_page_gets_the_hash_of_its_parts_and_of_what_they_import(folder: Path) -> None:
    html = PageFiles(folder).get("").body.decode()
    assert f'href="s.css" integrity="{sha384("p {}")}">' in html
    assert f'src="a.js" integrity="{sha384((folder / "a.js").read_text())}"></script>' in html
    assert re.findall(r'modulepreload" href="(.)\.js" integrity="sha384-[^"]{64}"', html) == ["b", "c"]
    assert html.index("modulepreload") < html.index("<script")
    assert '<link rel="icon" href="i.svg">' in html


def test_a_page_without_one_of_its_parts_is_not_sent(folder: Path) -> None:
    (folder / "b.js").unlink()
    with pytest.raises(NotFound, match=r"/b\.js"):
        PageFiles(folder).get("")
    assert PageFiles(folder).get("s.css").media_type == "text/css; charset=utf-8"


async def test_a_file_is_kept_and_compressed_once_however_its_path_is_spelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed: list[int] = []

    def counted(body: bytes) -> bytes:
        packed.append(len(body))
        return gzip.compress(body)

    for module in (compression, page_files, app):
        monkeypatch.setattr(module, "gzipped", counted)
    monkeypatch.setattr(FastAPI, "openapi", lambda app: {"openapi": "3.1.0", "info": "x" * 2000})  # soon made
    script = "// " + "words " * 1000
    (tmp_path / "a.js").write_text(script)
    (tmp_path / "index.html").write_text('<script src="a.js"></script>' + " " * 2000)
    async with http_client(gateway_over(await memory_sessions()), web=tmp_path) as client:
        for _ in range(2):
            for path in ("/a.js", "/.%2Fa.js", "/.%2F.%2Fa.js", "/.%2F%2Fa.js"):
                answer = await client.get(path)
                assert (answer.text, answer.headers["content-encoding"]) == (script, "gzip")
                assert (answer.headers["vary"], answer.headers["etag"][:2]) == ("accept-encoding", "W/")
            assert "integrity" in (await client.get("/")).text
            assert "openapi" in (await client.get("/openapi.json")).json()
        plain = await client.get("/a.js", headers={"accept-encoding": "identity"})
        assert plain.text == script and "content-encoding" not in plain.headers
    assert len(packed) == len(set(packed)) > 2
