"""Takes out of an installed environment what no process reads: tests, headers, stubs, symbols of libraries, installers.

    python deploy/image/slim.py FOLDER          a folder of site-packages

Not for vLLM: Triton compiles against headers at run time. Runs on the bare standard library; needs binutils' `strip`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

SUFFIXES: Final = frozenset({".a", ".c", ".cpp", ".f90", ".h", ".hpp", ".pxd", ".pyi", ".pyx"})
INSTALLERS: Final = ("pip", "setuptools", "uv", "wheel", "pkg_resources", "_distutils_hack")
LARGE: Final = 1_000_000  # bytes, from which on a library is worth stripping


def slim(packages: Path) -> int:
    """Returns the bytes that it has taken away."""
    before = size(packages)
    for name in (*INSTALLERS, "bin"):
        shutil.rmtree(packages / name, ignore_errors=True)
        for record in packages.glob(f"{name}-*.dist-info"):
            shutil.rmtree(record)
    for folder in sorted(packages.rglob("tests")):
        if folder.is_dir() and any(folder.glob("test_*.py")):
            shutil.rmtree(folder)
    for path in packages.rglob("*"):
        if path.suffix in SUFFIXES and path.is_file():
            path.unlink()
    strip([path for path in packages.rglob("*.so*") if is_stripped_safely(path)])
    return before - size(packages)


def is_stripped_safely(path: Path) -> bool:
    """Libraries that a wheel brings along for others (NAME.libs) have been edited after they were linked."""
    return path.is_file() and path.stat().st_size >= LARGE and not path.parent.name.endswith(".libs")


def strip(libraries: list[Path]) -> None:
    """Links to one file elsewhere (an installer's cache) are cut: `strip` writes a file of its own."""
    for each in libraries:
        own = each.with_name(f"{each.name}.stripped")
        subprocess.run(["strip", "--strip-unneeded", "-o", str(own), str(each)], check=True)
        shutil.copymode(each, own)
        own.replace(each)


def size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit("usage: slim.py FOLDER")
    if shutil.which("strip") is None:
        sys.exit("slim.py needs `strip`: on Debian, apt-get install binutils")
    print(f"{slim(Path(sys.argv[1])) / 1e6:.0f} MB taken away")
