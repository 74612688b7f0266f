"""A child for each document: what it has come to is told, however it ended."""

from __future__ import annotations

import os
import signal

import pytest

from inference.file_workers import worker as module
from inference.file_workers.frames import DocumentRequest, FileReply, FileRequest, ImageRequest
from inference.file_workers.sandbox import SandboxLimits
from inference.file_workers.worker import ForkingWorker, load_libraries
from sessions.model.knowledge.documents import DocumentText
from sessions.model.knowledge.images import DecodedImage
from testbed.documents.made import a_docx, a_pdf
from testbed.images.made import a_pattern, encoded

WORKER = ForkingWorker(SandboxLimits(memory_mib=128, cpu_s=2), 60)


@pytest.fixture(scope="module", autouse=True)
def _libraries() -> None:
    load_libraries()


def read(content: bytes, name: str = "") -> FileReply:
    return WORKER.read(DocumentRequest(content, name, ""))


def code_of(reply: FileReply) -> str:
    assert reply.fault is not None
    return reply.fault.code


def test_documents_are_read_in_the_sandbox() -> None:
    for content in (a_pdf(["hello"]), a_docx(["hello"]), b"hello\n", b"<html>hello"):
        document = read(content).document
        assert document is not None and document.text == "hello\n"


@pytest.mark.parametrize(
    ("attempt", "code"),
    [
        (lambda: os._exit(3), "file_unreadable"),
        (lambda: bytearray(1 << 30), "file_too_complex"),
        (lambda: [0 for _ in iter(int, 1)], "file_too_complex"),
        (lambda: os.abort(), "file_unreadable"),
        (lambda: 1 / 0, "file_unreadable"),
        (lambda: os.write(3, b"\xc1" * 9) and os._exit(0), "file_unreadable"),
        (lambda: os.write(3, b"") or os._exit(0), "file_unreadable"),
    ],
)
def test_however_a_child_ends(monkeypatch: pytest.MonkeyPatch, attempt: object, code: str) -> None:
    assert callable(attempt)

    def answer(request: FileRequest) -> FileReply:
        try:
            attempt()
        except ZeroDivisionError as exc:
            raise SystemExit(1) from exc
        raise AssertionError("not reached")

    monkeypatch.setattr(module, "answer", answer)
    assert code_of(read(b"x")) == code
    assert code_of(WORKER.read(ImageRequest(b"x", 9))) == code.replace("file_", "image_")


def test_a_child_that_waits_for_ever_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(request: FileRequest) -> FileReply:
        signal.pause()
        while True:
            __import__("time").sleep(9)

    monkeypatch.setattr(module, "answer", answer)
    reply = ForkingWorker(SandboxLimits(memory_mib=128, cpu_s=9), 0.3).read(DocumentRequest(b"", "", ""))
    assert code_of(reply) == "file_too_complex"


def test_a_reply_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REPLY_BYTES_MAX", 2048)
    monkeypatch.setattr(module, "answer", lambda request: FileReply(document=DocumentText("", "x" * 9000)))
    assert code_of(read(b"x")) == "file_too_complex"


def test_images_are_decoded_in_the_sandbox() -> None:
    for format in ("PNG", "JPEG", "WEBP", "GIF"):
        image = WORKER.read(ImageRequest(encoded(a_pattern(), format), 1568)).image
        assert image is not None and (image.width, image.height) == (40, 30)


@pytest.mark.parametrize(
    "reply",
    [
        FileReply(document=DocumentText("text/plain", "x")),
        FileReply(image=DecodedImage("image/png", bytes(500_000), 1, 1)),
        FileReply(image=DecodedImage("text/html", b"<script>", 1, 1)),  # type: ignore[arg-type]
        FileReply(),
    ],
)
def test_a_child_answers_what_was_requested_or_nothing(monkeypatch: pytest.MonkeyPatch, reply: FileReply) -> None:
    monkeypatch.setattr(module, "answer", lambda request: reply)
    assert code_of(WORKER.read(ImageRequest(b"x", 9))) == "image_unreadable"
