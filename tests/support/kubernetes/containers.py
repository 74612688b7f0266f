"""Runs containers with `crun`, as a kubelet's runtime does: an image, a user, mounts, a network namespace, no rights.

An image is a root file system with its configuration: one that `deploy/image/build.py` made, unpacked; or, for tests
that need no build, this machine's own system with this checkout at /opt/sessile. No resources are limited and no
seccomp profile is set: the runtime is told neither.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from deploy.image.dockerfile import copied, image_config

ROOT: Final = Path(__file__).resolve().parents[3]
PATIENCE_S: Final = 60.0
OPT: Final = "/opt/sessile"
SYSTEM: Final = ("/usr", "/etc/ssl", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives")

RUNTIME: Final = (
    # Where both versions of cgroups are mounted, Debian's crun refuses to look at either.
    ("unshare", "--mount", "/bin/sh", "-c", 'mount -t tmpfs none /sys/fs/cgroup && exec crun "$@"', "crun")
    if Path("/sys/fs/cgroup/unified").exists()
    else ("crun",)
)


class Mount(NamedTuple):
    source: Path
    target: str
    writable: bool = False


class Image(NamedTuple):
    """A root file system, and how its process is run."""

    root: Path
    entrypoint: list[str]
    cmd: list[str]
    env: dict[str, str]
    workdir: str
    user: str
    mounts: tuple[Mount, ...] = ()


class ContainerSpec(NamedTuple):
    """What a container is to run, in Kubernetes' words."""

    name: str
    command: list[str]
    env: dict[str, str]
    mounts: tuple[Mount, ...]
    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    read_only: bool = True
    workdir: str = ""


def built_image(layout: Path, variant: str, folder: Path) -> Image:
    """Unpacks an image of an OCI layout into a folder that is not there yet."""
    subprocess.run(["umoci", "unpack", "--image", f"{layout}:{variant}", str(folder)], check=True, capture_output=True)
    process = json.loads((folder / "config.json").read_text())["process"]
    config = image_config()
    env = dict(pair.split("=", 1) for pair in process["env"])
    user = f"{process['user']['uid']}:{process['user']['gid']}"
    return Image(folder / "rootfs", config.entrypoint, config.cmd, env, process["cwd"], user)


def host_image(folder: Path) -> Image:
    """This machine's system and this checkout, in place of a built image. `tini` is left out where it is not there."""
    for name in ("dev", "proc", "sys", "run", "data", "tmp", "etc", "opt"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (folder / name).symlink_to(f"usr/{name}")
    (folder / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nsessile:x:10001:10001::/tmp:/bin/sh\n")
    (folder / "etc/nsswitch.conf").write_text("hosts: files dns\n")
    for name in ("hosts", "hostname", "resolv.conf"):
        (folder / "etc" / name).touch()
    config = image_config()
    shown = [Mount(Path(path), path) for path in SYSTEM if Path(path).exists()]
    if not sys.base_prefix.startswith("/usr/"):
        shown.append(Mount(Path(sys.base_prefix), sys.base_prefix))
    shown += [Mount(ROOT / source, f"{OPT}/{source}") for source in copied() if not source.startswith("requirements")]
    shown.append(Mount(Path(sys.prefix).resolve(), f"{OPT}/.venv"))
    entrypoint = config.entrypoint if Path(config.entrypoint[0]).exists() else config.entrypoint[2:]
    return Image(folder, entrypoint, config.cmd, config.env, config.workdir, config.user, tuple(shown))


def runtime_config(image: Image, spec: ContainerSpec, *, hostname: str, network: Path | None) -> dict[str, Any]:
    """The container in the words of the OCI runtime specification."""
    shared = {each.target for each in spec.mounts}
    mounts: list[dict[str, Any]] = [
        {"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "noexec", "nodev"]},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=64k"]},
        {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "noexec", "nodev", "ro"]},
    ]
    if "/dev/shm" not in shared:
        options = ["nosuid", "noexec", "nodev", "mode=1777", "size=64m"]
        mounts.append({"destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": options})
    for each in (*image.mounts, *spec.mounts):
        options = ["rbind", "rw" if each.writable else "ro", "nosuid", "nodev"]
        mounts.append({"destination": each.target, "type": "bind", "source": str(each.source), "options": options})
    namespaces: list[dict[str, str]] = [{"type": kind} for kind in ("pid", "mount", "ipc", "uts")]
    if network is not None:
        namespaces.append({"type": "network", "path": str(network)})
    files = min(65_536, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    user = {"uid": spec.uid, "gid": spec.gid, "additionalGids": list(spec.groups)}
    none: dict[str, list[str]] = {each: [] for each in ("bounding", "effective", "permitted", "inheritable", "ambient")}
    return {
        "ociVersion": "1.0.2",
        "hostname": hostname,
        "root": {"path": str(image.root), "readonly": spec.read_only},
        "process": {
            "args": spec.command,
            "env": [f"{name}={value}" for name, value in spec.env.items()],
            "cwd": spec.workdir or image.workdir,
            "user": user,
            "capabilities": none,
            "noNewPrivileges": True,
            "rlimits": [{"type": "RLIMIT_NOFILE", "hard": files, "soft": files}],
        },
        "mounts": mounts,
        "linux": {
            "namespaces": namespaces,
            "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"],
            "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
        },
    }


class Container:
    """One container: run once, until it ends. What it prints goes to a file."""

    def __init__(self, id: str, folder: Path, log: Path) -> None:
        self.id = id
        self.log = log
        self._folder = folder
        self._state = folder.parent / "crun"
        self._process: Process | None = None
        self._own: dict[str, Any] = {}
        self._number = 0

    async def start(self, config: Mapping[str, Any]) -> None:
        """Returns when the runtime has been started, which is a little before the process is."""
        self._folder.mkdir(parents=True)
        self._own = config["process"]
        (self._folder / "config.json").write_text(json.dumps(config))
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._crun("run", "--bundle", str(self._folder), self.id), stdin=DEVNULL, stdout=log, stderr=log
            )

    async def wait(self) -> int:
        assert self._process is not None
        return await self._process.wait()

    async def signal(self, number: signal.Signals) -> None:
        """A signal to its first process. One that has ended is no error."""
        await self._run("kill", self.id, str(int(number)))

    async def kill(self) -> None:
        """SIGKILL; returns when it has ended. Idempotent."""
        while self._process is not None and self._process.returncode is None:
            await self.signal(signal.SIGKILL)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.5):  # the runtime may not have made it yet
                    await self._process.wait()
        await self._run("delete", "--force", self.id)
        shutil.rmtree(self._folder, ignore_errors=True)

    async def execute(self, *command: str, limit_s: float = PATIENCE_S) -> tuple[int, str]:
        """Runs a command inside, as its user and with its environment; (exit status, output). TimeoutError."""
        self._number += 1
        own = self._folder / f"process-{self._number}.json"  # crun would run it as root
        own.write_text(json.dumps(self._own | {"args": command}))
        process = await asyncio.create_subprocess_exec(
            *self._crun("exec", "--process", str(own), self.id),
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(limit_s):
                output, _ = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            raise
        assert process.returncode is not None
        return process.returncode, output.decode()

    async def pid(self) -> int:
        """Of its first process, as this machine sees it."""
        _, text = await self._run("state", self.id)
        return int(json.loads(text)["pid"])

    def _crun(self, *arguments: str) -> Sequence[str]:
        return (*RUNTIME, "--cgroup-manager=disabled", "--root", str(self._state), *arguments)

    async def _run(self, *arguments: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            *self._crun(*arguments), stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL, env=dict(os.environ)
        )
        output, _ = await process.communicate()
        return process.returncode or 0, output.decode()
