"""The embedding models of the settings: the packaged one alone, those of a file, and a file that is wrong."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

from inference.embedding import opening
from inference.embedding.packaged import MODEL
from sessions.metrics import Gauge, Metrics
from sessions.model.errors import BadInput, Unavailable

FILE = '[models.%s]\nurl = "https://a.example/v1"\ndimensions = 3\n'


async def test_the_packaged_model_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Metrics()
    async with opening.open_embedder(SimpleNamespace(embeddings=""), metrics, {}) as embedder:
        assert [each.name for each in embedder.models()] == [MODEL.name]
    gauge = metrics.families["embedding_batches_waiting"]
    assert isinstance(gauge, Gauge) and gauge.read() == {("quick",): 0.0, ("bulk",): 0.0}
    monkeypatch.setattr(opening, "installed", lambda: False)
    async with opening.open_embedder(SimpleNamespace(embeddings=""), Metrics(), {}) as embedder:
        with pytest.raises(Unavailable):
            embedder.model(None)


async def test_a_file_is_read_again_and_a_wrong_one_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "embeddings.toml"
    path.write_text(FILE % "first")
    async with opening.open_embedder(SimpleNamespace(embeddings=str(path)), Metrics(), {}) as embedder:
        assert embedder.model(None).name == "first"
        path.write_text("nonsense")
        path.write_text(FILE % "second" + "# longer\n")
        async with asyncio.timeout(60):
            while embedder.model(None).name != "second":
                await asyncio.wait((asyncio.ensure_future(asyncio.Event().wait()),), timeout=0.05)


async def test_a_file_that_is_wrong_from_the_start_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="embeddings"):
        async with opening.open_embedder(SimpleNamespace(embeddings=str(tmp_path / "none")), Metrics(), {}):
            raise AssertionError("it started")
