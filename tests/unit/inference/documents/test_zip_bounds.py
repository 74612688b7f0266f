"""Containers are judged by their directory."""

from __future__ import annotations

import io
import warnings
import zipfile

import pytest

from inference.documents.zip_bounds import PARTS_MAX, check_zip
from sessions.model.errors import BadInput, TooLarge


def a_zip(parts: dict[str, bytes], *, twice: str = "") -> bytes:
    out = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        warnings.simplefilter("ignore")
        for name, content in parts.items():
            archive.writestr(name, content)
        if twice:
            archive.writestr(twice, b"other")
    return out.getvalue()


@pytest.mark.parametrize("parts", [{"a": bytes(5 << 20)}, {f"{n}": b"" for n in range(PARTS_MAX + 1)}])
def test_what_becomes_too_large(parts: dict[str, bytes]) -> None:
    with pytest.raises(TooLarge):
        check_zip(a_zip(parts))


@pytest.mark.parametrize("content", [b"PK\3\4", b"", a_zip({"a": b"x"})[:-9], a_zip({"a": b"x"}, twice="a")])
def test_damaged_ones(content: bytes) -> None:
    with pytest.raises(BadInput) as refused:
        check_zip(content)
    assert refused.value.code == "file_unreadable"


def test_a_locked_one() -> None:
    content = bytearray(a_zip({"a": b"x"}))
    place = content.index(b"PK\1\2")
    content[place + 8] |= 1
    with pytest.raises(BadInput, match="password"):
        check_zip(bytes(content))
