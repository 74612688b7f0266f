"""The file of embedding models, and what it may not say."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.embedding.models_file import read_embedding_file


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ('[models.x]\nurl = "https://a.example/v1"', "dimensions"),
        ('[models.x]\nurl = "http://a.example/v1"\ndimensions = 3', "networks"),
        ('[models.x]\nurl = "https://127.0.0.1/v1"\ndimensions = 3', "networks"),
        ('[models.all-minilm-l6-v2]\nurl = "https://a.example/v1"\ndimensions = 3', "packaged"),
        ('[models.x]\nurl = "https://a.example/v1"\ndimensions = 3\nspeed = 1', "speed"),
        ("models = ", "Invalid value"),
    ],
)
def test_a_file_that_is_wrong_is_refused_as_a_whole(tmp_path: Path, wrong: str, said: str) -> None:
    path = tmp_path / "embeddings.toml"
    path.write_text(wrong)
    with pytest.raises(ValueError, match=said):
        read_embedding_file(path)
