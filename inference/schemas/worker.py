"""Judges JSON schemas, and values by them, in a process that may be ended at any time.

    python -m inference.schemas.worker CPU_MS MEMORY_MIB     # speaks `frames` on its standard streams

Each request may take CPU_MS of processor time, kept by the kernel: a timer whose signal ends the process, whatever code
runs. Memory may grow by MEMORY_MIB over what the process begins with; what asks for more fails, or ends the process.
Its server sees the end and starts the next. It reads no settings, opens no file and keeps no text.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections import OrderedDict
from typing import Final

import jsonschema_rs
import msgspec

from inference.schemas.frames import SchemaReply, SchemaRequest, read_request
from inference.worker_process import encode_frame
from sessions.model.json_schema import SchemaFault, judge_schema, value_problem
from sessions.model.schema_bounds import SchemaSize

VALIDATORS_MAX: Final = 64
_JUDGED = tuple[SchemaSize, jsonschema_rs.Validator] | SchemaFault


class SchemaWorker:
    """Answers requests; keeps the latest schemas compiled."""

    def __init__(self) -> None:
        self._judged: OrderedDict[bytes, _JUDGED] = OrderedDict()

    def answer(self, request: SchemaRequest) -> SchemaReply:
        """Judges a schema, and a value against it if there is one. Raises MemoryError."""
        try:
            judged = self._judge(request.schema)
            if isinstance(judged, SchemaFault):
                return SchemaReply(fault=judged)
            size, validator = judged
            if request.value is None:
                return SchemaReply(size=size)
            return SchemaReply(size=size, problem=value_problem(validator, msgspec.json.decode(request.value)))
        except MemoryError:
            raise  # of this process, with all that it keeps: `main` ends it
        except RecursionError:
            return SchemaReply(fault=SchemaFault("It takes too much memory to check"))
        except BaseException as error:  # noqa: BLE001 - a library's bug, or panic, refuses this schema alone
            return SchemaReply(fault=SchemaFault(f"It cannot be checked ({type(error).__name__})"))

    def _judge(self, schema: bytes) -> _JUDGED:
        judged = self._judged.get(schema)
        if judged is None:
            judged = judge_schema(msgspec.json.decode(schema))
            self._judged[schema] = judged
            if len(self._judged) > VALIDATORS_MAX:
                self._judged.popitem(last=False)
        else:
            self._judged.move_to_end(schema)
        return judged


def limit_memory(mib: int) -> None:
    """Lets this process grow by at most this much from now on. Does nothing except on Linux."""
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            pages = int(statm.read().split()[0])
    except OSError:
        return
    most = pages * resource.getpagesize() + (mib << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def main() -> None:
    cpu_s, memory_mib = int(sys.argv[1]) / 1000, int(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's; this process ends with its pipe
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # whatever a library prints is no answer
    worker = SchemaWorker()
    worker.answer(SchemaRequest(b'{"pattern": "a", "format": "date"}', '"a"'))  # what is made at the first use
    limit_memory(memory_mib)
    answers.write(encode_frame(SchemaReply()))  # ready
    try:
        while (request := read_request(sys.stdin.buffer)) is not None:
            signal.setitimer(signal.ITIMER_PROF, cpu_s)
            reply = encode_frame(worker.answer(request))
            signal.setitimer(signal.ITIMER_PROF, 0)
            answers.write(reply)
    except MemoryError:
        os.abort()  # as libraries do that find no memory


if __name__ == "__main__":
    main()
