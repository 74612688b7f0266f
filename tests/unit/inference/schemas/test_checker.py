from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

from inference.schemas.checker import WAITING_MAX, SchemaWorkers
from sessions.metrics import Metrics
from sessions.model.errors import Overloaded, Unavailable
from sessions.model.json_schema import SchemaFault
from sessions.model.schema_bounds import SchemaSize

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


async def test_a_worker_that_is_killed_says_nothing_of_the_schema() -> None:
    async with SchemaWorkers(workers=1) as workers:
        await workers.judge({})
        os.kill(pids(workers)[0], signal.SIGKILL)
        assert isinstance(await workers.judge({"type": "object"}), SchemaSize)


async def test_calls_end_when_callers_leave_and_when_the_pool_closes() -> None:
    async with SchemaWorkers(workers=1) as workers:
        calls = [asyncio.create_task(workers.judge({"const": number})) for number in range(8)]
        await asyncio.sleep(0)
        calls[0].cancel()
        calls[3].cancel()
        judged = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(isinstance(each, SchemaSize) for each in judged) == 6
    with pytest.raises(Unavailable):
        await workers.judge({"const": "later"})


async def test_calls_that_wait_when_the_pool_closes_fail_and_start_no_process() -> None:
    workers = SchemaWorkers(workers=1)
    await workers.judge({})
    calls = [asyncio.create_task(workers.judge({"const": number})) for number in range(4)]
    await asyncio.sleep(0)
    await workers.close()
    ended = await asyncio.gather(*calls, return_exceptions=True)
    assert [getattr(each, "code", each) for each in ended] == ["draining"] * 4
    assert not pids(workers)


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
