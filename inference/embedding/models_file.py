"""Reads the file of embedding models: servers that speak OpenAI's API, by the names that requests use.

    networks = ["10.1.0.0/16"]                # private networks that they may be in
    packaged = true                           # all-minilm-l6-v2 too, where it is installed

    [models.bge-m3]
    url = "https://embeddings.example.com/v1"     # /embeddings is below it
    model = "BAAI/bge-m3"                     # its name there; else the same
    dimensions = 1024
    tokens_max = 8192
    resizes = false                           # it takes `dimensions`
    timeout_s = 30
    concurrency = 4
    headers.authorization = {file = "/run/secrets/embeddings", prefix = "Bearer "}

Pure, but for reading the file. One that is malformed is refused as a whole.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from inference.embedding.packaged import MODEL
from inference.tools.secrets import HeaderName, Secret, check_headers
from sessions.public_addresses import AddressRules
from sessions.retrieval.embedding import EmbeddingModel
from sessions.setting_files import parse_toml

ModelName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_./:-]{0,127}$(?!\n)")]


class EndpointModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model behind an external server."""

    url: Annotated[str, Meta(min_length=1, max_length=2_048)]
    dimensions: Annotated[int, Meta(ge=1, le=8_192)]
    model: str = ""
    tokens_max: Annotated[int, Meta(ge=16, le=1_000_000)] = 8_192
    resizes: bool = False
    timeout_s: Annotated[float, Meta(gt=0, le=300)] = 30.0
    concurrency: Annotated[int, Meta(ge=1, le=256)] = 4
    headers: dict[HeaderName, Secret] = {}

    def __post_init__(self) -> None:
        check_headers(self.headers)

    def about(self, name: str) -> EmbeddingModel:
        return EmbeddingModel(name=name, dimensions=self.dimensions, tokens_max=self.tokens_max, resizes=self.resizes)


class EmbeddingFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole file of embedding models. The first of its models is the default, else the packaged one."""

    networks: tuple[str, ...] = ()
    packaged: bool = True
    models: dict[ModelName, EndpointModel] = {}

    def __post_init__(self) -> None:
        rules = AddressRules(self.networks)
        for name, model in self.models.items():
            if name == MODEL.name:
                raise ValueError(f"models.{name}: that is the packaged model's name")
            if not rules.permits_url(model.url):
                raise ValueError(f"models.{name}.url: HTTPS to a public address, or one of `networks`")


def read_embedding_file(path: Path) -> EmbeddingFile:
    """Reads the file. Raises ValueError where it is malformed, OSError where it cannot be read. Blocking."""
    try:
        return msgspec.convert(parse_toml(path.read_text()), EmbeddingFile)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error
