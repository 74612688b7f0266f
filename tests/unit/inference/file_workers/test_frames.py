"""Frames between the server and its document workers."""

from __future__ import annotations

import io

import pytest

from inference.file_workers.frames import (
    DocumentRequest,
    FileReply,
    ImageRequest,
    decode_reply,
    fault_reply,
    read_request,
)
from inference.worker_process import encode_frame
from sessions.model.errors import BadInput
from sessions.model.knowledge.documents import DocumentText
from sessions.model.knowledge.images import DecodedImage, too_complex_image


def test_requests_and_replies_come_as_they_went() -> None:
    request = DocumentRequest(b"\0\xff", "ü.pdf", "application/pdf")
    for sent in (request, ImageRequest(b"\0", 9)):
        assert read_request(io.BytesIO(encode_frame(sent))) == sent
    document = DocumentText("a/b", "text", True)
    image = DecodedImage("image/png", b"\0", 3, 4)
    for reply in (FileReply(document=document), FileReply(image=image), fault_reply(too_complex_image("large"))):
        assert decode_reply(encode_frame(reply)[4:]) == reply
    with pytest.raises(ValueError, match=r"."):
        fault_reply(BadInput("invalid_request", "x"))
