"""The folder of models: what was pulled from a hub stands in it whole, each selection of files in a folder of its own.

    FOLDER/hub/ORG/REPO/COMMIT/SELECTION/...     the files, and `pulled.json`, which says what they are
    FOLDER/.partial/...                          what a pull has so far; nothing loads from there

A selection is put in place by one rename after all of its files were checked. Removing goes the other way round: it
is renamed away first. So what is listed can be loaded, whenever a process was killed.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from inference.models.reference import HubModel, Kind
from sessions.model.errors import BadInput

MANIFEST: Final = "pulled.json"


class PulledModel(msgspec.Struct, frozen=True, kw_only=True):
    """A complete model in the library's folder."""

    repo: str
    revision: str  # the branch or tag that it was pulled by
    commit: str
    kind: Kind
    files: tuple[str, ...]  # the one to load first
    size_bytes: int
    licence: str = ""
    place: str = ""  # the folder that it stands in; not known to the manifest itself

    @property
    def folder(self) -> Path:
        return Path(self.place)

    @property
    def path(self) -> Path:
        """The file or folder that an engine loads."""
        return self.folder / self.files[0] if self.kind == "gguf" else self.folder

    @property
    def name(self) -> str:
        """The public name of the model where none is configured."""
        return Path(self.files[0]).stem if self.kind == "gguf" else self.repo.rpartition("/")[2]

    @property
    def reference(self) -> str:
        return str(HubModel(self.repo, self.revision, self.files[0] if self.kind == "gguf" else ""))


class ModelLibrary:
    """The models below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.partial = folder / ".partial"

    def models(self) -> list[PulledModel]:
        """Returns the complete models, sorted by name; of one name the one pulled last comes first."""
        return sorted(self._read(), key=lambda model: (model.repo, model.files, -_pulled_at(model)))

    def find(self, model: HubModel, kind: Kind) -> PulledModel | None:
        """Returns the model that a reference means, as it was pulled last; None where it was not pulled."""
        return next((pulled for pulled in self.matching(model) if pulled.kind == kind), None)

    def matching(self, model: HubModel) -> list[PulledModel]:
        mark = model.file.lower()
        return [
            each
            for each in self.models()
            if each.repo == model.repo
            and (model.revision == each.revision or each.commit.startswith(model.revision))
            and (not mark or (each.kind == "gguf" and (model.file in each.files or mark in each.files[0].lower())))
        ]

    def place(self, repo: str, commit: str, selection: str) -> Path:
        """Returns the folder for a selection of a repository's files."""
        return self.folder / "hub" / repo / commit[:12] / selection

    def put(self, scratch: Path, pulled: PulledModel, selection: str) -> PulledModel:
        """Moves checked files to their folder, in one step."""
        (scratch / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(pulled), indent=1))
        place = self.place(pulled.repo, pulled.commit, selection)
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.exists():
            self._take_away(place)
        scratch.rename(place)
        return msgspec.structs.replace(pulled, place=str(place))

    def remove(self, model: HubModel) -> list[PulledModel]:
        """Removes the models that a reference means, and the leftovers of a broken-off pull. Raises BadInput where
        there are none."""
        found = self.matching(model)
        leftovers = sorted(self.partial.glob(f"{model.repo.replace('/', '--')}--*"))
        if not found and not leftovers:
            raise BadInput(
                "model_not_pulled", f"{model} is not in {self.folder}; `models list` shows what is.", param="model"
            )
        for each in found:
            self._take_away(each.folder)
            for parent in list(each.folder.parents)[:3]:
                if parent != self.folder / "hub" and not any(parent.iterdir()):
                    parent.rmdir()
        for path in leftovers:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        return found

    def _take_away(self, place: Path) -> None:
        self.partial.mkdir(parents=True, exist_ok=True)
        doomed = self.partial / f"removed-{place.parent.name}-{place.name}"
        shutil.rmtree(doomed, ignore_errors=True)
        place.rename(doomed)
        shutil.rmtree(doomed)

    def _read(self) -> Iterator[PulledModel]:
        for manifest in self.folder.glob(f"hub/*/*/*/*/{MANIFEST}"):
            try:
                pulled = msgspec.json.decode(manifest.read_bytes(), type=PulledModel)
            except (OSError, msgspec.DecodeError):
                continue  # of another version, or just being removed: as good as not there
            if pulled.files and all((manifest.parent / name).is_file() for name in pulled.files):
                yield msgspec.structs.replace(pulled, place=str(manifest.parent))


def _pulled_at(model: PulledModel) -> float:
    return (model.folder / MANIFEST).stat().st_mtime
