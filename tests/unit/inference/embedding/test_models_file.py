"""The file of embedding models, and what it may not say."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.embedding.models_file import read_embedding_file

GOOD = """
networks = ["10.0.0.0/8"]
[models.bge-m3]
url = "http://10.1.2.3:8000/v1"
model = "BAAI/bge-m3"
dimensions = 1024
ranks = true
headers.authorization = {env = "BGE", prefix = "Bearer "}
"""


def test_a_file_names_models(tmp_path: Path) -> None:
    path = tmp_path / "embeddings.toml"
    path.write_text(GOOD)
    file = read_embedding_file(path)
    about = file.models["bge-m3"].about("bge-m3")
    assert (about.name, about.dimensions, about.ranks, about.resizes, file.packaged) == (
        "bge-m3",
        1024,
        True,
        False,
        True,
    )


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
