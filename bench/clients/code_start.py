"""How long code of the model waits before its first line runs, in a sandbox of its own.

    python -m bench.clients.code_start --starts 60

A start is from a call of the tool until its code reads the clock, which all processes share. The first call, which
starts the process that all sandboxes are forked from, is not counted. Between two calls the sandbox before has time to
end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time

import structlog

from bench.support import is_faultless, report, run_bench, spread
from inference.tools.code.code_tools import CodeTools
from inference.tools.tools_file import CodeTool
from sessions.model.types import CallId, ResponseId, SessionId, SessionKey, TenantId
from sessions.server_tools import ToolRequest

CODE = "import time\nprint(time.clock_gettime(time.CLOCK_MONOTONIC))"
REQUEST = ToolRequest(
    key=SessionKey(TenantId("bench"), SessionId("bench")),
    response_id=ResponseId("r"),
    call_id=CallId("c"),
    name="code",
    arguments=json.dumps({"code": CODE}),
    execution_id="call",
)


async def main(options: argparse.Namespace) -> bool:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    tools, waited, faults = CodeTools(), list[float](), list[str]()
    try:
        for number in range(options.starts + 1):
            await asyncio.sleep(0.2)
            began = time.monotonic()
            result = await tools.call(REQUEST, CodeTool())
            if result.outcome != "done":
                faults.append(f"start {number}: {result.outcome}: {result.output}")
            elif number:
                waited.append((float(result.output) - began) * 1000)
    finally:
        await tools.aclose()
    report("code_start", {**spread("ms_{}", waited, "p50 p95"), "starts": len(waited), "faults": len(faults)})
    return is_faultless(faults)


if __name__ == "__main__":
    run_bench(main, __doc__, starts=60)
