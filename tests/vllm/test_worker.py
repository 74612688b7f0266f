"""Groups of one process have no socket and gloo's results; a group of more is refused."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch.distributed as dist

from inference.vllm.worker import groups_of_one
from testbed.server_process import ROOT

pytestmark = pytest.mark.vllm

PROBE = """
import contextlib, os, sys
import torch, torch.distributed as dist
from inference.vllm.worker import groups_of_one

alone = sys.argv[1] == "alone"
with groups_of_one() if alone else contextlib.nullcontext():
    dist.init_process_group(backend="gloo", store=dist.HashStore(), rank=0, world_size=1)
    group = dist.new_group([0], backend="gloo")
given = torch.arange(4.0)
for run in (
    lambda out: dist.all_gather_into_tensor(out, given.clone(), group=group),
    lambda out: dist.reduce_scatter_tensor(out, given.clone(), group=group),
    lambda out: dist.scatter(out, [given.clone()], src=0, group=group),
    lambda out: dist.all_to_all_single(out, given.clone(), group=group),
    lambda out: dist.all_reduce(out.copy_(given), group=group),
    lambda out: dist.broadcast(out.copy_(given), 0, group=group),
):
    out = torch.zeros(4)
    run(out)
    assert out.equal(given), out
objects = [None]
dist.all_gather_object(objects, "x", group=group)
dist.barrier(group=group)
assert objects == ["x"]
fds = [fd for fd in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{fd}")]
print(sum(os.readlink(f"/proc/self/fd/{fd}").startswith("socket:") for fd in fds))
"""


def sockets_of(mode: str) -> int:
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-c", PROBE, mode]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=120)
    return int(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_a_group_of_one_has_no_socket_and_gloos_results() -> None:
    assert sockets_of("alone") == 0
    assert sockets_of("gloo") == 2, "one a group: the count above proves something"


def test_a_group_of_more_is_refused() -> None:
    """The backend gives wrong results for it."""
    with groups_of_one():
        with pytest.raises(ValueError, match="a group of 2 needs a transport"):
            dist.init_process_group(backend="gloo", store=dist.HashStore(), rank=0, world_size=2)
        with pytest.raises(ValueError, match="a group of 3 needs a transport"):
            dist.new_group([0, 1, 2], backend="gloo")
    assert not dist.is_initialized()
