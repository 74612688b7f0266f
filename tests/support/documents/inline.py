"""Documents read in this process, for tests of what is behind and before that."""

from __future__ import annotations

from inference.documents.formats import read_document
from sessions.model.knowledge.documents import DocumentText


class InlineDocuments:
    """The TextExtractor port, without a sandbox."""

    def __init__(self) -> None:
        self.read = 0

    async def extract(self, content: bytes, *, filename: str = "", media_type: str = "") -> DocumentText:
        self.read += 1
        return read_document(content, filename, media_type)
