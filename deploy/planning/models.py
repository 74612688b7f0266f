"""The model to plan for: a `config.json`, its folder, or one of the names in `models.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from deploy.planning.model_shape import BadModel, ModelShape, read_shape

FILE: Final = Path(__file__).with_name("models.json")
BYTES_MAX: Final = 4 * 2**20


def known_models() -> dict[str, dict[str, Any]]:
    """Keys of the published config.json files, as far as they are planned with."""
    return dict[str, dict[str, Any]](json.loads(FILE.read_text()))


def find_shape(reference: str) -> ModelShape:
    """Raises BadModel."""
    known = known_models()
    if (config := known.get(reference.lower())) is not None:
        return read_shape(config, str(config["name"]))
    path = Path(reference)
    if path.is_dir():
        path /= "config.json"
    if not path.is_file():
        raise BadModel(
            f"model = {reference!r}: no config.json is there, and no model of this name is known; expected a path,"
            f" or one of {', '.join(known)}"
        )
    try:
        if path.stat().st_size > BYTES_MAX:
            raise BadModel(f"{path}: more than {BYTES_MAX // 2**20} MiB: a config.json of a model has a few kilobytes")
        config = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise BadModel(f"{path}: {error}") from error
    if not isinstance(config, dict):
        raise BadModel(f"{path}: expected an object with the keys of a model's config.json")
    return read_shape(config, path.parent.name or str(path))
