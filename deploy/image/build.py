"""Builds the image of Sessile without a daemon: Debian's part by `mmdebstrap`, the environment by `uv`, all by `umoci`.

    python -m deploy.image.build cpu [--out dist/image]
    python -m deploy.image.build gateway

Writes an OCI layout, `OUT/oci`, with the variant as its tag, which `skopeo copy oci:dist/image/oci:cpu docker://...`
pushes. What goes in and how it is run is the Dockerfile's: this reads its last stage and packages.txt. Run as root, on
Debian, with the packages mmdebstrap, umoci and binutils, from this checkout's environment (`make image`).
"""

from __future__ import annotations

import argparse
import compileall
import io
import json
import os
import py_compile
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from importlib.metadata import distributions
from pathlib import Path
from typing import Final

from deploy.image.dockerfile import copied, debian_packages, image_config
from deploy.image.slim import size, slim
from deploy.sbom import LICENCES, Pin, installed, licences, locked, normal, recorded, sbom
from deploy.setup_env import ROOT, ensure_uv, pip_config, pip_settings, uv_environment

SUITE: Final = "bookworm"
VARIANTS: Final = ("cpu", "gateway")
LOCKS: Final = ("base", "traces", "kafka")
WITHOUT_ENGINES: Final = ("xllamacpp",)  # what `gateway` lacks
OPT: Final = Path("opt/sessile")
PYTHON: Final = "python3.11"
SITE: Final = OPT / ".venv" / "lib" / PYTHON / "site-packages"
USER: Final = 10001
TOOLS: Final = {"mmdebstrap": "mmdebstrap", "umoci": "umoci", "strip": "binutils", "dpkg-deb": "dpkg"}

UNREAD: Final = ("usr/share/info", "usr/share/lintian", "usr/share/locale", "usr/share/man", "usr/share/i18n")
UNUSED: Final = ("debconf", "debianutils", "dpkg", "mawk", "openssl", "tar")  # of maintainers' scripts alone
BYTECODE: Final = f"usr/lib/{PYTHON}"
ACCOUNTS: Final = {
    "passwd": f"root:x:0:0::/root:/usr/sbin/nologin\nsessile:x:{USER}:{USER}::/tmp:/usr/sbin/nologin\n",
    "group": f"root:x:0:\nsessile:x:{USER}:\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "hostname": "sessile\n",
    "resolv.conf": "",
}


class BuildError(Exception):
    """The image cannot be built; the message says what to do."""


def run(*command: str | Path, env: dict[str, str] | None = None) -> None:
    done = subprocess.run([str(part) for part in command], env=env, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise BuildError(f"{Path(str(command[0])).name} failed; the lines above say why.")


def debian(root: Path, variant: str) -> dict[str, str]:
    """Unpacks Debian's packages, without a package manager; returns their versions. What maintainers' scripts would
    make is made here: accounts, the list of authorities, the cache of libraries."""
    names = ",".join(debian_packages(variant))
    hooks = ["--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr", "--skip=essential/unlink", "--skip=cleanup"]
    run("mmdebstrap", "--quiet", "--variant=extract", "--format=directory", *hooks, f"--include={names}", SUITE, root)
    versions = {}
    records = root / "var/lib/dpkg/status.d"  # where scanners look when there is no dpkg
    records.mkdir(parents=True, exist_ok=True)
    for package in sorted((root / "var/cache/apt/archives").glob("*.deb")):
        record = subprocess.run(["dpkg-deb", "--field", package], capture_output=True, text=True, check=True).stdout
        fields = dict(re.findall(r"^(Package|Version): (.+)$", record, re.MULTILINE))
        if fields["Package"] in UNUSED:
            remove(root, package)
            continue
        versions[fields["Package"]] = fields["Version"]
        (records / fields["Package"]).write_text(record)
    for folder in ("var/cache/apt", "var/lib/apt", "var/log", "etc/apt", *UNREAD):
        shutil.rmtree(root / folder, ignore_errors=True)
    for document in (root / "usr/share/doc").rglob("*"):
        if document.is_file() and document.name != "copyright":
            document.unlink()
    shutil.rmtree(root / "dev", ignore_errors=True)
    for name in ("dev", "proc", "sys", "run", "data", "etc"):
        (root / name).mkdir(exist_ok=True)
    for name, text in ACCOUNTS.items():
        (root / "etc" / name).write_text(text)
    shell = root / "bin" / "sh"
    if not shell.exists():
        shell.symlink_to("dash")
    authorities = sorted((root / "usr/share/ca-certificates/mozilla").glob("*.crt"))
    (root / "etc/ssl/certs").mkdir(parents=True, exist_ok=True)
    (root / "etc/ssl/certs/ca-certificates.crt").write_text("".join(each.read_text() for each in authorities))
    run("ldconfig", "-r", root)
    os.chown(root / "data", USER, USER)
    (root / "data").chmod(0o700)
    return versions


def remove(root: Path, package: Path) -> None:
    """What a package has put there."""
    listed = subprocess.run(["dpkg-deb", "--fsys-tarfile", package], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(listed)) as files:
        for member in files.getmembers():
            if not member.isdir():
                (root / member.name).unlink(missing_ok=True)


def environment(root: Path, variant: str) -> None:
    """The environment at the place where ./sessile looks for it, from the locks, by their hashes."""
    venv = root / OPT / ".venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(f"/usr/bin/{PYTHON}")
    (venv / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    ours, python = Path(sys.prefix), Path(sys.executable)
    uv = ensure_uv(ours, python)
    if uv is None:
        raise BuildError("uv cannot be had here; the lines above say why.")
    env = uv_environment(pip_settings(pip_config(python)), os.environ)
    for lock in LOCKS:
        where: list[str | Path] = [
            "--python",
            python,
            "--target",
            root / SITE,
            "--require-hashes",
            "--no-deps",
            "--link-mode",
            "copy",
        ]
        run(uv, "pip", "install", "--quiet", *where, "-r", ROOT / "requirements" / f"{lock}.lock", env=env)
    if variant == "gateway":
        for name in WITHOUT_ENGINES:
            for path in (root / SITE).glob(f"{name}*"):
                shutil.rmtree(path)


def ours(root: Path) -> None:
    """What the Dockerfile copies of this checkout and leaves there."""
    for source in copied():
        if source.startswith(("requirements", "clients/typescript")):
            continue
        target = root / OPT / source
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / source, target)
    for folder in ("helm", "systemd", "grafana"):
        shutil.rmtree(root / OPT / "deploy" / folder)
    (root / OPT / "deploy" / "alerts.yml").unlink()


def compile_all(root: Path) -> None:
    """The process may not write beside its modules, and they are not checked against their sources again."""
    for folder in (root / OPT, root / BYTECODE):
        compileall.compile_dir(
            folder,
            maxlevels=30,
            quiet=2,  # some packages carry files for other Pythons
            workers=os.cpu_count() or 1,
            stripdir=str(root),
            prependdir="/",
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )


def close(root: Path) -> None:
    """Everything is root's, and writable for nobody else."""
    for path in (root, *root.rglob("*")):
        if path.is_symlink() or path == root / "data":
            continue
        os.chown(path, 0, 0)
        path.chmod(path.stat().st_mode & 0o1755 if path.is_dir() else path.stat().st_mode & 0o755)
    (root / "tmp").mkdir(exist_ok=True)
    (root / "tmp").chmod(0o755)  # a volume lies over it


def bill(root: Path, debians: dict[str, str]) -> str:
    """The SBOM of what is in this image, and of nothing else."""
    inside = {
        Pin("pypi", normal(each.metadata["Name"]), each.version) for each in distributions(path=[str(root / SITE)])
    }
    pins = {pin: each for pin, each in locked().items() if pin in inside}
    if inside - pins.keys():
        raise BuildError(f"in the image and in no lock: {sorted(pin.name for pin in inside - pins.keys())}")
    return sbom(pins, licences(pins, recorded(LICENCES.read_text()) | installed([root / SITE])), debian=debians)


def packed(root: Path, layout: Path, variant: str) -> None:
    """One layer, and how it is run."""
    image = f"{layout}:{variant}"
    if not layout.exists():
        layout.parent.mkdir(parents=True, exist_ok=True)
        run("umoci", "init", "--layout", layout)
    run("umoci", "new", "--image", image)
    run("umoci", "insert", "--image", image, root, "/")
    config = image_config()
    flags = [f"--config.user={config.user}", f"--config.workingdir={config.workdir}"]
    flags += [f"--config.entrypoint={each}" for each in config.entrypoint]
    flags += [f"--config.cmd={each}" for each in config.cmd]
    flags += [f"--config.env={name}={value}" for name, value in config.env.items()]
    flags += [f"--config.exposedports={each}" for each in config.ports]
    flags += [f"--config.volume={each}" for each in config.volumes]
    flags += [f"--config.stopsignal={config.stop_signal}"]
    flags += [f"--config.label=sessile.health={json.dumps(config.health)}", "--architecture=amd64", "--os=linux"]
    run("umoci", "config", "--image", image, *flags)
    run("umoci", "gc", "--layout", layout)


def build(variant: str, out: Path) -> Path:
    """Returns the OCI layout. Raises BuildError."""
    absent = sorted({package for tool, package in TOOLS.items() if shutil.which(tool) is None})
    if absent:
        raise BuildError(f"needed first, on Debian: apt-get install {' '.join(absent)}")
    if os.geteuid():
        raise BuildError("run it as root: the image's files are root's.")
    with tempfile.TemporaryDirectory(prefix="sessile-image-") as folder:
        root = Path(folder) / "root"
        versions = debian(root, variant)
        ours(root)
        environment(root, variant)
        text = bill(root, versions)
        slim(root / SITE)
        compile_all(root)
        (root / OPT / "sbom.cdx.json").write_text(text)
        close(root)
        print(f"{variant}: {size(root) / 1e6:.0f} MB unpacked, {len(versions)} packages of Debian", flush=True)
        packed(root, out / "oci", variant)
    return out / "oci"


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the image without a daemon.")
    parser.add_argument("variant", choices=VARIANTS)
    parser.add_argument("--out", type=Path, default=ROOT / "dist" / "image")
    arguments = parser.parse_args()
    begun = time.monotonic()
    try:
        layout = build(arguments.variant, arguments.out.resolve())
    except (BuildError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{layout}:{arguments.variant} in {time.monotonic() - begun:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
