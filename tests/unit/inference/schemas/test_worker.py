from __future__ import annotations

import msgspec
import pytest

from inference.schemas import worker as worker_module
from inference.schemas.frames import SchemaRequest
from inference.schemas.worker import VALIDATORS_MAX, SchemaWorker


@pytest.mark.parametrize(
    ("schema", "value", "fault", "problem"),
    [
        (b'{"type":"object"}', None, False, False),
        (b'{"type":"object"}', "{}", False, False),
        (b'{"type":"object"}', "[]", False, True),
        (b'{"type":"bogus"}', None, True, False),
        (b'{"maxItems":1e9}', "[]", True, False),
        (b"no json", None, True, False),
        (b"{}", "no json", True, False),
    ],
)
def test_every_request_is_answered(schema: bytes, value: str | None, fault: bool, problem: bool) -> None:
    reply = SchemaWorker().answer(SchemaRequest(schema, value))
    assert (reply.fault is not None, reply.problem is not None) == (fault, problem)
    assert (reply.size is not None) is not fault


class Panic(BaseException):
    """What pyo3 makes of a panic in Rust."""


def test_a_panic_refuses_the_schema_and_lack_of_memory_ends_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[BaseException] = [Panic(), MemoryError()]

    def judge(_: object) -> None:
        raise raised.pop(0)

    monkeypatch.setattr(worker_module, "judge_schema", judge)
    worker = SchemaWorker()
    assert "Panic" in str(worker.answer(SchemaRequest(b"{}")).fault)
    with pytest.raises(MemoryError):
        worker.answer(SchemaRequest(b"{}"))


def test_the_latest_schemas_stay_compiled() -> None:
    worker = SchemaWorker()
    for number in range(VALIDATORS_MAX + 5):
        worker.answer(SchemaRequest(msgspec.json.encode({"const": number})))
    assert len(worker._judged) == VALIDATORS_MAX
