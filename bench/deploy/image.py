"""Measures a built image and runs it: size, start, rights, writable files, SIGTERM, SBOM.

    make image VARIANT=cpu
    python -m bench.deploy.image --variant cpu --model .cache/models/SmolLM2-135M-Instruct.Q4_1.gguf

`make image` builds it without a daemon; `crun` runs it, not as root and without rights, on a read-only root. Bars for
`cpu`: <= 400 MB, ready <= 5 s, 0 files writable, 0 capabilities. The variant `gateway` has no engine, and runs `serve`
with the simulated one here.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import tempfile
import time
from pathlib import Path
from statistics import median

from bench.support import Option, is_faultless, report, run_bench
from deploy.image.slim import size
from tests.support.kubernetes.containers import Mount, built_image
from tests.support.kubernetes.image_run import inside_of, privileged_files, running_image

MODEL = "/models/model.gguf"


async def main(given: argparse.Namespace) -> bool:
    layout = Path(given.layout).resolve()
    model = Path(given.model).resolve()
    mounts: tuple[Mount, ...] = ()
    arguments = ["serve", "--engine", "sim"]
    if given.variant == "cpu":
        arguments, mounts = ["serve", "--model", MODEL], (Mount(model, MODEL),)
    ready: list[float] = []
    ended: list[float] = []
    computed: list[float] = []
    folder = Path(tempfile.mkdtemp(prefix="ski-"))
    folder.chmod(0o755)
    image = built_image(layout, given.variant, folder / "image")
    for _ in range(given.starts):
        async with running_image(image, *arguments, mounts=mounts) as running:
            ready.append(await running.ready())
            computed.append(await running.cpu_s())
            rights, (seen, writable) = await running.rights(), await running.writable()
            healthy = [await running.health("alive"), await running.health("ready")]
            components, inside = await running.sbom(), inside_of(running.image)
            loose, megabytes = privileged_files(running.image.root), size(running.image.root) / 1e6
            begun = time.perf_counter()
            await running.container.signal(signal.SIGTERM)
            status = await running.container.wait()
            ended.append(time.perf_counter() - begun)
    shutil.rmtree(folder)
    packed = sum(path.stat().st_size for path in layout.rglob("*") if path.is_file()) / 1e6
    unnamed = sorted(f"{name} {version}" for name, version in inside.items() if components.get(name) != version)
    report(
        f"image_{given.variant}",
        {
            "megabytes": megabytes,
            "megabytes_of_the_layout": packed,
            "ready_s_p50": median(ready),
            "ready_s_max": max(ready),
            "ready_cpu_s": max(computed),
            "uid": rights.uid,
            "capabilities": len(rights.capabilities),
            "files": seen,
            "files_writable": len(writable),
            "files_loose": len(loose),
            "components": len(components),
            "not_in_sbom": len(unnamed),
            "sigterm_s": max(ended),
            "sigterm_status": status,
        },
    )
    faults = [f"writable: {each}" for each in (*writable, *loose)] + [f"not in the SBOM: {each}" for each in unnamed]
    faults += [f"held: {each}" for each in rights.capabilities]
    faults += ["it may gain privileges"] * rights.new_privileges + [f"health {healthy}"] * any(healthy)
    faults += [f"ended with {status}"] * bool(status)
    if given.variant == "cpu":
        faults += [f"{megabytes:.0f} MB"] * (megabytes > 400) + [f"ready in {max(ready):.1f} s"] * (max(ready) > 5)
    return is_faultless(faults)


if __name__ == "__main__":
    run_bench(
        main,
        __doc__,
        variant=Option("cpu", choices=("cpu", "gateway")),
        layout="dist/image/oci",
        model=".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf",
        starts=3,
    )
