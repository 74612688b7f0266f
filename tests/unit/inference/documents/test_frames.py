"""Frames between the server and its document workers."""

from __future__ import annotations

import io

import pytest

from inference.documents.frames import DocumentReply, DocumentRequest, decode_reply, read_request
from inference.worker_process import encode_frame
from sessions.model.knowledge.documents import DocumentSection, DocumentText


def test_requests_and_replies_come_as_they_went() -> None:
    request = DocumentRequest(b"\0\xff", "ü.pdf", "application/pdf")
    assert read_request(io.BytesIO(encode_frame(request))) == request
    reply = DocumentReply(document=DocumentText("a/b", "text", (DocumentSection("page", 0, 1, "t"),), True))
    assert decode_reply(encode_frame(reply)[4:]) == reply


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x92\xc0", b"\x92\x01\x02"])
def test_what_is_no_reply_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_reply(data)
