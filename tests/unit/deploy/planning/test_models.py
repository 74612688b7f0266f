"""A model by its file, its folder or its name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deploy.planning.model_shape import BadModel
from deploy.planning.models import find_shape, known_models


def test_a_file_its_folder_and_its_name_are_the_same_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(known_models()["llama-3.1-8b"]))
    by_file, by_folder = find_shape(str(tmp_path / "config.json")), find_shape(str(tmp_path))
    assert by_file == by_folder
    assert by_file.total_params == find_shape("Llama-3.1-8B").total_params


@pytest.mark.parametrize("text", ["{", "[]", "\ufffd", "[" * 100_000, " " * (5 * 2**20)])
def test_a_file_that_is_no_config_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(BadModel, match=r"config\.json"):
        find_shape(str(tmp_path))
