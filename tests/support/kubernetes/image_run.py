"""Runs a built image by itself with `crun`, as docs/deployment.md says: no rights, a read-only root, /data and /tmp."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from deploy.image.dockerfile import image_config
from tests.support.kubernetes.containers import Container, ContainerSpec, Image, Mount, runtime_config
from tests.support.kubernetes.network import Network
from tests.support.kubernetes.probes import http_status

PATIENCE_S: Final = 60.0
METRICS: Final = 9464
# Run inside, as its user: everything that it may write to, besides what is mounted there.
WRITABLE: Final = """
import os
mounted = {line.split()[4] for line in open("/proc/self/mountinfo")} - {"/"}
found, seen = [], 0
for folder, folders, files in os.walk("/"):
    folders[:] = [each for each in folders if os.path.join(folder, each) not in mounted]
    for each in [folder, *(os.path.join(folder, name) for name in files)]:
        seen += 1
        if not os.path.islink(each) and each not in mounted and os.access(each, os.W_OK):
            found.append(each)
print(seen, *found[:20], sep="\\n")
"""


class Rights(NamedTuple):
    """What the first process may do, by the kernel's word."""

    uid: int
    capabilities: frozenset[str]  # those sets that are not empty
    new_privileges: bool


class RunningImage:
    def __init__(self, image: Image, container: Container, network: Network, address: str, folder: Path) -> None:
        self.image = image
        self.container = container
        self._network = network
        self._address = address
        self.folder = folder

    async def ready(self, limit_s: float = PATIENCE_S) -> float:
        """Waits until it is; returns how long that took, to 20 ms."""
        begun = time.perf_counter()
        while await self.status("/readyz") != 200:
            if time.perf_counter() - begun > limit_s:
                raise AssertionError(f"not ready within {limit_s} s:\n{self.container.log.read_text()[-3_000:]}")
        return time.perf_counter() - begun

    async def status(self, path: str, port: int = METRICS) -> int:
        return await http_status(self._network.socket, self._address, port, path, 2.0)

    async def health(self, question: str) -> int:
        """The status of HEALTHCHECK's command, inside."""
        command = [*image_config().health[:-1], question]
        status, _ = await self.container.execute(*command)
        return status

    async def writable(self) -> tuple[int, list[str]]:
        """(files and folders of its root file system, those that its user may write to)."""
        status, output = await self.container.execute("/opt/sessile/.venv/bin/python", "-c", WRITABLE)
        assert status == 0, output
        seen, *found = output.split("\n")
        return int(seen), [each for each in found if each]

    async def rights(self) -> Rights:
        """Of its first process and of the program itself."""
        fields = [_status_of(pid) for pid in _with_children(await self.container.pid())]
        held = {
            f"{name} {each[name]}" for each in fields for name in each if name.startswith("Cap") and int(each[name], 16)
        }
        uids = {int(each["Uid"].split()[0]) for each in fields}
        assert len(uids) == 1, uids
        return Rights(uids.pop(), frozenset(held), any(each["NoNewPrivs"] != "1" for each in fields))

    async def cpu_s(self) -> float:
        """What its processes have computed so far: the start on a machine of its own takes no longer on one core."""
        ticks = 0
        for pid in _with_children(await self.container.pid()):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
        return ticks / os.sysconf("SC_CLK_TCK")

    async def sbom(self) -> dict[str, str]:
        """Components and their versions, read inside."""
        status, output = await self.container.execute("/bin/cat", "/opt/sessile/sbom.cdx.json")
        assert status == 0, output
        found: list[dict[str, Any]] = json.loads(output)["components"]
        return {unquote(each["purl"].partition("@")[0]): each["version"] for each in found}


def _with_children(pid: int) -> list[int]:
    found = [pid]
    for each in found:
        for task in Path(f"/proc/{each}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def _status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def inside_of(image: Image) -> dict[str, str]:
    """What the root file system has: Python's releases and Debian's packages."""
    found = {}
    for record in (image.root / "opt/sessile/.venv/lib/python3.11/site-packages").glob("*.dist-info/METADATA"):
        name = record.parent.name.partition("-")[0].lower().replace("_", "-").replace(".", "-")
        found[f"pkg:pypi/{name}"] = record.parent.name.removesuffix(".dist-info").partition("-")[2]
    for record in (image.root / "var/lib/dpkg/status.d").iterdir():
        fields = dict(line.partition(": ")[::2] for line in record.read_text().splitlines() if ": " in line)
        found[f"pkg:deb/debian/{fields['Package']}"] = fields["Version"]
    return found


def privileged_files(root: Path) -> list[str]:
    """Files that give rights to who runs them, or that others than root may change."""
    found = []
    for path in root.rglob("*"):
        if path.is_symlink():
            continue
        status = path.lstat()
        open_to_all = status.st_mode & 0o022 or status.st_uid != 0
        if (open_to_all and path != root / "data") or (path.is_file() and status.st_mode & 0o6000):
            found.append(str(path.relative_to(root)))
    return found


@asynccontextmanager
async def running_image(
    image: Image, *arguments: str, env: Mapping[str, str] | None = None, mounts: tuple[Mount, ...] = ()
) -> AsyncIterator[RunningImage]:
    """`arguments` take the place of CMD."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ski-")))
        folder.chmod(0o755)
        network = Network()
        network.start()
        stack.callback(network.stop)
        leaf, address = network.add("image")
        own = []
        for name in ("data", "tmp"):
            (folder / name).mkdir()
            os.chown(folder / name, 10001, 10001)
            own.append(Mount(folder / name, f"/{name}", writable=True))
        user, _, group = image.user.partition(":")
        command = [*image.entrypoint, *(arguments or image.cmd)]
        known = {"SESSILE_METRICS_HOST": "0.0.0.0", **(env or {})}
        spec = ContainerSpec("sessile", command, image.env | known, (*own, *mounts), int(user), int(group))
        container = Container(f"ski{os.getpid()}", folder / "bundle", folder / "log")
        await container.start(runtime_config(image, spec, hostname="sessile", network=leaf))
        stack.push_async_callback(container.kill)
        yield RunningImage(image, container, network, address, folder)
