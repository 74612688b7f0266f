"""What every test may ask for: where the model and the browser are, how Hypothesis runs here, what is inherited.

Both fixtures fail rather than skip where their thing is missing: `make test` puts it there, and a suite that
skips in silence proves nothing.
"""

from __future__ import annotations

import functools
import gc
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import httpx._transports.default as httpx_transport
import httpx2._transports.default as httpx2_transport
import pytest
import structlog
from hypothesis import settings

from testbed.at_end import end_all
from tests.support.effort import EXPLORES

ROOT = Path(__file__).resolve().parent.parent
collect_ignore = ["sdks", "clients"]  # in environments of their own: `make test-sdks`, `make test-clients`

# As the server has it, before anything imports gRPC: tests fork while servers of other tests take calls.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

# Servers that tests start serve the small model, whatever else is on this machine.
os.environ["SESSILE_MODEL"] = "smollm2-135m"

# The machine is shared, so the time that one example takes says nothing. A failure prints how to replay it. `make test`
# tries the same few examples each time; `make test-all` draws new ones, and more of them.
settings.register_profile("sessile", deadline=None, print_blob=True, derandomize=True, database=None, max_examples=20)
settings.register_profile("exploring", deadline=None, print_blob=True)
settings.load_profile("exploring" if EXPLORES else "sessile")

# A traceback with all locals, which structlog draws where it finds rich, takes long enough to upset tests of timing.
structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
    ]
)


def _share_contexts(transport: ModuleType) -> None:
    """Makes clients that differ in nothing share a TLS context: each read the authorities anew, for 30 ms."""
    transport.create_ssl_context = functools.cache(transport.create_ssl_context)  # type: ignore[attr-defined]


for _transport in (httpx_transport, httpx2_transport):
    _share_contexts(_transport)


def pytest_configure(config: pytest.Config) -> None:
    # A script's `make test &` and `nohup` ignore signals, and every process that a test starts would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.umask(0o022)


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Bytes are numbered: made anew in each process (a mask, a time in an archive), their names would differ there."""
    return argname if isinstance(val, bytes) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow files come first, so that no worker is still busy with one when the others have ended; a file's tests stay
    together, because its servers serve all of them, unless they name a group of their own."""
    slow = {item.path for item in items if any(item.get_closest_marker(name) for name in ("slow", "model", "cluster"))}
    items.sort(key=lambda item: item.path not in slow)
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.relative_to(ROOT).as_posix()))


def pytest_collection_finish() -> None:
    """Takes the modules and thousands of items out of the collector's sight, which would look at all of them again and
    again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def model_path() -> Path:
    """The small chat model's GGUF."""
    path = ROOT / ".cache" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if not path.is_file():
        pytest.fail("the small chat model is missing: run `make model`")
    return path


@pytest.fixture(scope="session")
def smaller_model_path(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A smaller model with the same tokenizer: half of its layers."""
    from deploy.cut_model import cut

    return cut(model_path, tmp_path_factory.mktemp("models") / "SmolLM2-cut.gguf", 15)


@pytest.fixture(scope="session")
def chromium_path() -> Path:
    """A Chromium: SESSILE_TEST_CHROMIUM, or the one on PATH."""
    found = os.environ.get("SESSILE_TEST_CHROMIUM") or shutil.which("chromium")
    if found is None:
        pytest.fail("no Chromium: run `make browser`, or set SESSILE_TEST_CHROMIUM to its path")
    return Path(found)


@pytest.fixture(scope="session", autouse=True)
def shared_servers() -> Iterator[None]:
    """PostgreSQL and Valkey servers serve all tests of a worker; they end with the tests."""
    yield
    end_all()


@pytest.fixture(scope="session", autouse=True)
def vllm_cores() -> Iterator[None]:
    """vLLM's processes outlive the engines that used them; they end with the tests."""
    yield
    world = sys.modules.get("tests.support.engines.vllm_world")
    if world is not None:
        world.VllmWorld.cores.close()
