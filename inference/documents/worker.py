"""Reads documents, each in a process of its own that may end at any time.

    python -m inference.documents.worker CPU_S WALL_S MEMORY_MIB     # speaks `frames` on its standard streams

The worker itself reads no document: it has the libraries loaded, and forks. The child enters the sandbox before it
looks at its document, writes one reply into a pipe and ends; so nothing of a document is left for the next one,
whatever it did to the code that read it. What the child wrote is decoded here once more before it is passed on.

It reads no settings and keeps no text.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from typing import Final

import msgspec

from inference.documents.frames import (
    REPLY_BYTES_MAX,
    DocumentFault,
    DocumentReply,
    DocumentRequest,
    FaultCode,
    decode_reply,
    read_request,
)
from inference.documents.sandbox import SandboxLimits, end_with_parent, enter_sandbox
from inference.worker_process import encode_frame
from sessions.model.errors import BadInput

_PIPE_READ: Final = 1 << 18
_FAULTS: Final[tuple[FaultCode, ...]] = ("file_type_unsupported", "file_unreadable", "file_too_complex")
_LIMITS_MESSAGE: Final = "This file cannot be read within the limits of this server: it takes too {}."
_TOO_LONG: Final = DocumentReply(fault=DocumentFault("file_too_complex", _LIMITS_MESSAGE.format("long")))
_TOO_MUCH: Final = DocumentReply(fault=DocumentFault("file_too_complex", _LIMITS_MESSAGE.format("much memory")))
_TOO_DEEP: Final = DocumentReply(
    fault=DocumentFault("file_too_complex", "This file cannot be read: it is nested too deep.")
)
_BROKE: Final = DocumentReply(fault=DocumentFault("file_unreadable", "This file cannot be read: it is damaged."))

_encode = msgspec.msgpack.Encoder().encode


def load_libraries() -> None:
    """Imports all libraries for reading once, before the first fork. A missing one is reported when it is needed."""
    from inference.documents import formats, html_pages, markdown_text

    del formats, html_pages, markdown_text
    for name in ("pdf", "office"):
        try:
            __import__(f"inference.documents.{name}")
        except ImportError:
            continue
    try:
        import charset_normalizer  # noqa: F401 - for its children
    except ImportError:
        return


def answer(request: DocumentRequest) -> DocumentReply:
    """Reads a document, in the child process. Raises MemoryError."""
    from inference.documents.formats import read_document

    try:
        return DocumentReply(document=read_document(request.content, request.filename, request.media_type))
    except BadInput as error:
        for code in _FAULTS:
            if error.code == code:
                return DocumentReply(fault=DocumentFault(code, error.public_message))
        raise
    except MemoryError:
        raise
    except RecursionError:
        return _TOO_DEEP
    except Exception:  # noqa: BLE001 - a library's bug refuses this document alone
        return _BROKE


class DocumentWorker:
    """Reads each document in a forked child process."""

    def __init__(self, limits: SandboxLimits, wall_s: float) -> None:
        self._limits = limits
        self._wall_s = wall_s

    def read(self, request: DocumentRequest) -> DocumentReply:
        """Reads a document in a child process. Raises OSError where none can be started."""
        out, into = os.pipe()
        child = os.fork()
        if child == 0:
            self._child(request, into)
        os.close(into)
        data, ended = b"", False
        try:
            data, ended = _drain(out)
        finally:
            os.close(out)
            if not ended:
                os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
        return _judged(data, ended=ended, code=os.waitstatus_to_exitcode(status))

    def _child(self, request: DocumentRequest, into: int) -> None:
        """Answers the request in the child process, writes the reply to the file descriptor `into`, and ends the
        process."""
        status = 1
        try:
            end_with_parent()
            nothing = os.open(os.devnull, os.O_RDWR)
            for standard in (0, 1, 2):
                os.dup2(nothing, standard)
            into = os.dup2(into, 3, inheritable=False)
            os.closerange(4, 1024)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process
            signal.setitimer(signal.ITIMER_REAL, self._wall_s)
            enter_sandbox(self._limits)
            data = _encode(answer(request))
            view = memoryview(data)
            while view:
                view = view[os.write(into, view) :]
            status = 0
        except MemoryError:
            status = 2
        finally:
            os._exit(status)


def _drain(out: int) -> tuple[bytes, bool]:
    """Returns the bytes that the child has written, and whether there are no more of them than allowed. A child that
    runs on after its time is up is killed by the server, together with this process."""
    pieces: list[bytes] = []
    size = 0
    while True:
        piece = os.read(out, _PIPE_READ)
        if not piece:
            return b"".join(pieces), True
        size += len(piece)
        if size > REPLY_BYTES_MAX - 1024:
            return b"", False
        pieces.append(piece)


def _judged(data: bytes, *, ended: bool, code: int) -> DocumentReply:
    """Returns the reply of a child: what it wrote if it ended well, else a fault."""
    if not ended or code in (-signal.SIGXCPU, -signal.SIGALRM, -signal.SIGKILL):
        return _TOO_LONG
    if code == 2:
        return _TOO_MUCH
    if code != 0:
        return _BROKE
    try:
        reply = decode_reply(data)
    except ValueError:
        return _BROKE
    return reply if reply.document is not None or reply.fault is not None else _BROKE


def main() -> None:
    cpu_s, wall_s, memory_mib = (int(text) for text in sys.argv[1:4])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's; this process ends with its pipe
    end_with_parent()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # a library of a library: no threads before a fork
    answers = os.dup(1)
    os.dup2(2, 1)  # whatever a library prints is no answer
    load_libraries()
    worker = DocumentWorker(SandboxLimits(memory_mib=memory_mib, cpu_s=cpu_s), wall_s)
    _write(answers, DocumentReply())  # ready
    while (request := read_request(sys.stdin.buffer)) is not None:
        _write(answers, worker.read(request))


def _write(answers: int, reply: DocumentReply) -> None:
    view = memoryview(encode_frame(reply))
    while view:
        view = view[os.write(answers, view) :]


if __name__ == "__main__":
    main()
