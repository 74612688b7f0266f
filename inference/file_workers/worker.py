"""Reads files, each in a process of its own that may end at any time.

    python -m inference.file_workers.worker CPU_S WALL_S MEMORY_MIB     # speaks `frames` on its standard streams

The worker itself reads no file: it has the libraries loaded, and forks. The child enters the sandbox before it looks at
its file, writes one reply into a pipe and ends; so nothing of a file is left for the next one, whatever it did to the
code that read it. What the child wrote is decoded here once more before it is passed on.

It reads no settings and keeps no result.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from contextlib import suppress
from importlib import import_module
from typing import Final

import msgspec

from inference.documents.formats import READERS, read_document
from inference.file_workers.frames import (
    REPLY_BYTES_MAX,
    DocumentRequest,
    FileReply,
    FileRequest,
    ImageRequest,
    decode_reply,
    fault_reply,
    read_request,
)
from inference.file_workers.sandbox import SandboxLimits, end_with_parent, enter_sandbox
from inference.worker_process import encode_frame
from sessions.model.errors import BadInput
from sessions.model.knowledge.documents import too_complex_file, unreadable_file
from sessions.model.knowledge.images import DECODED_BYTES_MAX, too_complex_image, unreadable_image, unsupported_image

_PIPE_READ: Final = 1 << 18
_TOO_COMPLEX: Final = {DocumentRequest: too_complex_file, ImageRequest: too_complex_image}
_UNREADABLE: Final = {DocumentRequest: unreadable_file, ImageRequest: unreadable_image}

_encode = msgspec.msgpack.Encoder().encode


def load_libraries() -> None:
    """Imports all libraries for reading once, before the first fork. A missing one is reported when it is needed."""
    readers = {f"inference.documents.{module}" for module, _ in READERS.values()}
    for name in (*readers, "inference.images.decoding", "charset_normalizer"):
        with suppress(ImportError):
            import_module(name)


def answer(request: FileRequest) -> FileReply:
    """Reads a file, in the child process. Raises MemoryError."""
    try:
        if isinstance(request, ImageRequest):
            return _read_image(request)
        return FileReply(document=read_document(request.content, request.filename, request.media_type))
    except BadInput as error:
        return fault_reply(error)
    except MemoryError:
        raise
    except RecursionError:
        return _too_complex(request, "it is nested too deep")
    except Exception:  # noqa: BLE001 - a library's bug refuses this file alone
        return _broken(request)


def _read_image(request: ImageRequest) -> FileReply:
    try:
        from inference.images.decoding import decode_image
    except ImportError as exc:
        raise unsupported_image("this server has no Pillow for it (its operator: make setup-files)") from exc
    return FileReply(image=decode_image(request.content, request.edge_max, request.bytes_max))


def _too_complex(request: FileRequest, what: str) -> FileReply:
    return fault_reply(_TOO_COMPLEX[type(request)](what))


def _broken(request: FileRequest) -> FileReply:
    return fault_reply(_UNREADABLE[type(request)]("it is damaged"))


class ForkingWorker:
    """Reads each file in a forked child process."""

    def __init__(self, limits: SandboxLimits, wall_s: float) -> None:
        self._limits = limits
        self._wall_s = wall_s

    def read(self, request: FileRequest) -> FileReply:
        """Reads a file in a child process. Raises OSError where none can be started."""
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
        return _judged(request, data, ended=ended, code=os.waitstatus_to_exitcode(status))

    def _child(self, request: FileRequest, into: int) -> None:
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


def _judged(request: FileRequest, data: bytes, *, ended: bool, code: int) -> FileReply:
    """Returns the reply of a child: what it wrote if it ended well, else a fault."""
    if not ended or code in (-signal.SIGXCPU, -signal.SIGALRM, -signal.SIGKILL):
        return _too_complex(request, "it takes too long")
    if code == 2:
        return _too_complex(request, "it takes too much memory")
    if code != 0:
        return _broken(request)
    try:
        reply = decode_reply(data)
    except ValueError:
        return _broken(request)
    return reply if _is_answer(request, reply) else _broken(request)


def _is_answer(request: FileRequest, reply: FileReply) -> bool:
    """Returns whether a reply has what was requested, or a fault."""
    if reply.fault is not None:
        return True
    if isinstance(request, DocumentRequest):
        return reply.document is not None
    return reply.image is not None and len(reply.image.data) <= DECODED_BYTES_MAX


def main() -> None:
    cpu_s, wall_s, memory_mib = (int(text) for text in sys.argv[1:4])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's; this process ends with its pipe
    end_with_parent()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # a library of a library: no threads before a fork
    answers = os.dup(1)
    os.dup2(2, 1)  # whatever a library prints is no answer
    load_libraries()
    worker = ForkingWorker(SandboxLimits(memory_mib=memory_mib, cpu_s=cpu_s), wall_s)
    _write(answers, FileReply())  # ready
    while (request := read_request(sys.stdin.buffer)) is not None:
        _write(answers, worker.read(request))


def _write(answers: int, reply: FileReply) -> None:
    view = memoryview(encode_frame(reply))
    while view:
        view = view[os.write(answers, view) :]


if __name__ == "__main__":
    main()
