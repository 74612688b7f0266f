"""The folder of models: what is listed can be loaded; removing takes away what a reference means, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from inference.models.library import MANIFEST, ModelLibrary, PulledModel
from inference.models.reference import HubModel
from sessions.model.errors import BadInput


def put(
    library: ModelLibrary, file: str = "m-Q8_0.gguf", commit: str = "c" * 40, revision: str = "main"
) -> PulledModel:
    scratch = library.partial / f"a--b--{commit[:12]}--{file}"
    scratch.mkdir(parents=True)
    (scratch / file).write_bytes(commit.encode())
    pulled = PulledModel(repo="a/b", revision="main", commit=commit, kind="gguf", files=(file,), size_bytes=40)
    return library.put(scratch, pulled, file)


def test_a_reference_names_the_version_pulled_last_and_an_older_one_by_its_commit(tmp_path: Path) -> None:
    library = ModelLibrary(tmp_path)
    old, new = put(library, commit="1" * 40), put(library, commit="2" * 40)
    os.utime(old.folder / MANIFEST, (1, 1))
    assert library.find(HubModel("a/b"), "gguf") == new
    assert library.find(HubModel("a/b", "1" * 12), "gguf") == old
    assert library.find(HubModel("a/b", file="Q8_0"), "gguf") == new
    assert library.find(HubModel("a/b", file="Q4_0"), "gguf") is None
    assert library.find(HubModel("a/b"), "folder") is None
    assert new.path.read_bytes() == b"2" * 40 and new.reference == "hf:a/b:m-Q8_0.gguf"


def test_putting_it_again_replaces_it(tmp_path: Path) -> None:
    library = ModelLibrary(tmp_path)
    put(library)
    again = put(library)
    assert library.models() == [again] and list(library.partial.iterdir()) == []


def test_what_is_not_whole_is_not_listed(tmp_path: Path) -> None:
    library = ModelLibrary(tmp_path)
    pulled = put(library)
    pulled.path.unlink()
    assert library.models() == []
    other = put(library, "n.gguf")
    (other.folder / MANIFEST).write_bytes(msgspec.json.encode({"repo": "a/b"}))
    assert library.models() == []


def test_removing_takes_what_was_left_too_and_spares_the_rest(tmp_path: Path) -> None:
    library = ModelLibrary(tmp_path)
    small, large = put(library, "m-Q4_0.gguf"), put(library, "m-Q8_0.gguf")
    (library.partial / "a--b--999--m.gguf").mkdir()
    assert library.remove(HubModel("a/b", file="Q4_0")) == [small]
    assert library.models() == [large] and list(library.partial.iterdir()) == []
    assert library.remove(HubModel("a/b")) == [large]
    assert list((tmp_path / "hub").iterdir()) == [], "no empty folder is left"
    with pytest.raises(BadInput, match="models list"):
        library.remove(HubModel("a/b"))
