"""The image as `make image` built it, run by crun: its rights, what it may write to, its health, its end, its SBOM."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.kubernetes.containers import Mount, built_image
from tests.support.kubernetes.deployed import is_possible
from tests.support.kubernetes.image_run import inside_of, privileged_files, running_image

pytestmark = [pytest.mark.containers, pytest.mark.timeout(280)]
LAYOUT = Path(__file__).resolve().parents[3] / "dist" / "image" / "oci"
MODEL = "/models/model.gguf"


@pytest.fixture(autouse=True)
def possible() -> None:
    why = is_possible() or ("" if LAYOUT.exists() else "no image: run `make image`")
    if why:
        pytest.fail(why)


@pytest.mark.parametrize("variant", ["cpu", "gateway"])
async def test_it_runs_without_rights_and_ends_in_order(variant: str, model_path: Path, tmp_path: Path) -> None:
    mounts: tuple[Mount, ...] = ()
    arguments = ["serve", "--engine", "sim"]
    if variant == "cpu":
        arguments, mounts = ["serve", "--model", MODEL], (Mount(model_path, MODEL),)
    tmp_path.chmod(0o755)
    image = built_image(LAYOUT, variant, tmp_path / "image")
    async with running_image(image, *arguments, mounts=mounts) as running:
        await running.ready()
        rights = await running.rights()
        assert (rights.uid, rights.capabilities, rights.new_privileges) == (10001, frozenset(), False)
        seen, writable = await running.writable()
        assert seen > 3_000 and writable == [], "its root file system is read-only"
        assert privileged_files(running.image.root) == [], "also by its files' own modes"
        assert [await running.health(question) for question in ("alive", "ready")] == [0, 0]
        components, inside = await running.sbom(), inside_of(running.image)
        assert {name: components.get(name) for name in inside} == inside and len(inside) > 60
        assert ("pkg:pypi/xllamacpp" in inside) is (variant == "cpu")
        await running.container.signal(signal.SIGTERM)
        assert await running.container.wait() == 0, running.container.log.read_text()[-3_000:]
