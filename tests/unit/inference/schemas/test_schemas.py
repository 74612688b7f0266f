"""Schemas and values are judged in a process with bounds."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import msgspec
import pytest

from inference.schemas import worker as worker_module
from inference.schemas.checker import WAITING_MAX, SchemaWorkers
from inference.schemas.frames import SchemaRequest
from inference.schemas.worker import VALIDATORS_MAX, SchemaWorker
from sessions.metrics import Metrics
from sessions.model.errors import Overloaded
from sessions.model.json_schema import SchemaFault
from sessions.model.schema_bounds import SchemaSize

# -- checker
NODE = {"$ref": "#/$defs/n"}
# Within the bounds, and 2 ** depth of a value to check.
DOUBLING: dict[str, Any] = {
    "$defs": {"n": {"anyOf": [{"properties": {"p": NODE}, "required": [name]} for name in "xy"]}},
    "$ref": "#/$defs/n",
}


def deep(levels: int) -> str:
    return '{"p":' * levels + "1" + "}" * levels


def pids(workers: SchemaWorkers) -> list[int]:
    return [each.process.pid for each in workers.pool.workers if each.process is not None]


async def test_schemas_and_values_are_judged_in_a_process() -> None:
    async with SchemaWorkers(workers=1) as workers:
        schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
        assert isinstance(await workers.judge(schema), SchemaSize)
        assert isinstance(await workers.judge({"type": "bogus"}), SchemaFault)
        fault = await workers.judge({"minItems": 10**9})
        assert isinstance(fault, SchemaFault) and fault.pointer == "/minItems"
        assert await workers.value_problem(schema, '{"a": 1}') is None
        assert "a: " in str(await workers.value_problem(schema, '{"a": "x"}'))
        [pid] = pids(workers)
        await workers.judge(schema)  # known: nobody is asked
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_what_takes_too_long_ends_the_worker_and_the_next_is_served() -> None:
    metrics = Metrics()
    async with SchemaWorkers(metrics, workers=1, cpu_ms=50) as workers:
        assert "cannot be checked" in str(await workers.value_problem(DOUBLING, deep(60)))
        assert await workers.value_problem({"type": "object"}, "{}") is None
    assert metrics.schema_workers.values == {("limit",): 1, ("killed",): 0}


async def test_memory_that_earlier_schemas_hold_is_no_fault_of_the_next() -> None:
    def schema(number: int) -> dict[str, Any]:
        pattern = f"^(\\w{{10}}[\\p{{L}}\\s]{{20}}x{number}){{3}}$"
        return {"properties": {f"p{each}": {"type": "string", "pattern": pattern} for each in range(18)}}

    metrics = Metrics()
    async with SchemaWorkers(metrics, workers=1) as workers:
        for number in range(64):
            assert isinstance(await workers.judge(schema(number)), SchemaSize)
            if metrics.schema_workers.values["limit",]:
                break
        else:
            raise AssertionError("the schemas are too small to fill a worker")


async def test_not_more_than_so_many_wait() -> None:
    async with SchemaWorkers(workers=1) as workers:
        calls = [asyncio.create_task(workers.judge({"const": number})) for number in range(WAITING_MAX + 2)]
        judged = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(isinstance(each, Overloaded) for each in judged) >= 1
        assert all(isinstance(each, SchemaSize | Overloaded) for each in judged)


# -- worker
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
    """An exception like the one that pyo3 makes of a panic in Rust."""


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
