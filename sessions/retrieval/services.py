"""The parts of retrieval in a process: the index, the search over it, and the reader of documents."""

from __future__ import annotations

from typing import NamedTuple

from sessions.retrieval.embedding import Embedder
from sessions.retrieval.reading_in import DocumentReader
from sessions.retrieval.search import PassageSearch
from sessions.retrieval.vector_stores import PassageIndex


class VectorStores(NamedTuple):
    passages: PassageIndex
    search: PassageSearch
    reader: DocumentReader


class Retrieval(NamedTuple):
    """The embedding models and vector stores of a process. `vector_stores` is None if it has no stores."""

    embedder: Embedder
    vector_stores: VectorStores | None = None
