"""Writes what Sessile is made of: an SBOM (CycloneDX 1.6, JSON) from the locks, and the licences in docs/licences.md.

    .venv/bin/python -m deploy.sbom [FILE]        dist/sbom.cdx.json unless named

Every release that a lock names is a component with its hashes, its licence and the locks that have it; the lock of the
TypeScript client too, whose parser the page carries. Licences are read in the environments of this checkout, or else
in docs/licences.md as it stands. Needs no network. Ends with 1 for a licence that is unknown or not allowed.
"""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Final, NamedTuple

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from deploy.licences import ALLOWED, DECLARED, EXCEPTIONS, canonical, is_allowed, licence

ROOT: Final = Path(__file__).resolve().parents[1]
NPM_LOCK: Final = ROOT / "clients" / "typescript" / "package-lock.json"
LICENCES: Final = ROOT / "docs" / "licences.md"

UNLISTED: Final = ("vllm-cuda", "load", "clients")
"""Locks of what is not delivered, by their beginnings: whoever has a GPU, makes a load or tries other people's programs
installs it under its makers' terms."""

_PIN: Final = re.compile(r"^([a-z0-9._-]+)(?:\[[^\]]*\])?==(\S+)(.*)$", re.MULTILINE)
_GROUP: Final = re.compile(r"^## (.+) \((.+)\)\n\n```text\n((?:[^`].*\n)+)```$", re.MULTILINE)


SIGN: Final = {"pypi": "==", "npm": "@"}
"""The sign between a release's name and its version, by registry."""


class Pin(NamedTuple):
    """A release that locks name."""

    kind: str  # "pypi" or "npm"
    name: str
    version: str


class Locked(NamedTuple):
    """What the locks say of it."""

    hashes: frozenset[tuple[str, str]]  # (algorithm, hex)
    locks: tuple[str, ...]


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def locked() -> dict[Pin, Locked]:
    """Every release that a lock names."""
    hashes: dict[Pin, set[tuple[str, str]]] = {}
    locks: dict[Pin, list[str]] = {}
    for lock in sorted((ROOT / "requirements").glob("*.lock")):
        if lock.stem.startswith(UNLISTED):
            continue
        for name, version, rest in _PIN.findall(lock.read_text().replace("\\\n", " ")):
            pin = Pin("pypi", normal(name), version)
            hashes.setdefault(pin, set()).update(("SHA-256", each) for each in re.findall(r"sha256:([0-9a-f]+)", rest))
            locks.setdefault(pin, []).append(lock.stem)
    for pin, entry in npm_entries().items():
        digest = base64.b64decode(entry["integrity"].removeprefix("sha512-")).hex()
        hashes.setdefault(pin, set()).add(("SHA-512", digest))
        locks[pin] = ["npm"]
    return {pin: Locked(frozenset(hashes[pin]), tuple(sorted(set(locks[pin])))) for pin in sorted(locks)}


def npm_entries() -> dict[Pin, dict[str, str]]:
    packages = json.loads(NPM_LOCK.read_text())["packages"]
    return {
        Pin("npm", path.rpartition("node_modules/")[2], entry["version"]): entry
        for path, entry in packages.items()
        if path
    }


def recorded(page: str) -> dict[Pin, str]:
    """The licences of docs/licences.md."""
    return {
        Pin(kind, *line.rsplit(SIGN[kind], 1)): expression
        for expression, kind, releases in _GROUP.findall(page)
        for line in releases.splitlines()
    }


def installed(folders: Iterable[Path]) -> dict[Pin, str]:
    """The licences of what is installed there. Raises ValueError where one is not to be known."""
    found = {}
    for each in distributions(path=[str(folder) for folder in folders]):
        name = normal(each.metadata["Name"])
        found[Pin("pypi", name, each.version)] = licence(name, each.metadata)
    return found


def licences(pins: Iterable[Pin], known: Mapping[Pin, str]) -> dict[Pin, str]:
    """The licence of each. Raises ValueError for the first that nobody knows."""
    npm = npm_entries()
    found = {}
    for pin in pins:
        expression = npm[pin].get("license") if pin in npm else known.get(pin) or DECLARED.get(pin.name)
        if not expression:
            raise ValueError(f"{pin.name} {pin.version}: no licence; install its lock and run `make sbom`")
        found[pin] = canonical(expression)
    return found


def licences_page(pins: Iterable[Pin], of: Mapping[Pin, str]) -> str:
    groups: dict[str, list[str]] = {}
    for pin in pins:
        groups.setdefault(f"{of[pin]} ({pin.kind})", []).append(f"{pin.name}{SIGN[pin.kind]}{pin.version}")
    lists = [
        line
        for group in sorted(groups, key=str.lower)
        for line in (f"## {group}", "", "```text", *sorted(groups[group], key=str.lower), "```", "")
    ]
    kept = [f"* {name}: {why}." for name, why in sorted(EXCEPTIONS.items())]
    return "\n".join(
        (
            "# Licences of dependencies",
            "",
            "Made by `make sbom` from the locks; do not edit. `npm` are the TypeScript client's, whose parsers the",
            "page carries; the SBOM (`dist/sbom.cdx.json`) says which locks have a release.",
            "",
            f"Allowed are {', '.join(sorted(ALLOWED))}. Besides:",
            "",
            *kept,
            "",
            *lists,
        )
    )


def sbom(pins: Mapping[Pin, Locked], of: Mapping[Pin, str], *, debian: Mapping[str, str] | None = None) -> str:
    """CycloneDX 1.6 as JSON. `debian`: packages of an image and their versions; licences lie beside them, in
    /usr/share/doc."""
    licence_of = LicenseFactory()
    bom = Bom()
    version = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[0]
    root = Component(
        name="sessile",
        version=version,
        type=ComponentType.APPLICATION,
        bom_ref=f"sessile@{version}",
        licenses=[licence_of.make_from_string("Apache-2.0")],
    )
    bom.metadata.component = root
    for pin, each in pins.items():
        group, _, name = pin.name.rpartition("/")
        purl = PackageURL(pin.kind, group or None, name, pin.version)
        component = Component(
            name=name,
            group=group or None,
            version=pin.version,
            bom_ref=str(purl),
            purl=purl,
            scope=ComponentScope.REQUIRED if "base" in each.locks else ComponentScope.OPTIONAL,
            hashes=[HashType(alg=HashAlgorithm(algorithm), content=content) for algorithm, content in each.hashes],
            licenses=[licence_of.make_from_string(of[pin])],
            properties=[Property(name="sessile:lock", value=lock) for lock in each.locks],
        )
        bom.components.add(component)
    for name, number in (debian or {}).items():
        purl = PackageURL("deb", "debian", name, number)
        bom.components.add(
            Component(name=name, version=number, bom_ref=str(purl), purl=purl, scope=ComponentScope.REQUIRED)
        )
    bom.register_dependency(root, [each for each in bom.components if each.scope is ComponentScope.REQUIRED])
    return JsonV1Dot6(bom).output_as_string(indent=1)


def main(arguments: Sequence[str]) -> int:
    pins = locked()
    known = recorded(LICENCES.read_text()) if LICENCES.exists() else {}
    try:
        of = licences(pins, known | installed(ROOT.glob(".venv*/lib/python*/site-packages")))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    file = Path(arguments[0]) if arguments else ROOT / "dist" / "sbom.cdx.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(sbom(pins, of))
    LICENCES.write_text(licences_page(pins, of))
    refused = [
        f"{pin.name} {pin.version}: {of[pin]} is not allowed" for pin in pins if not is_allowed(pin.name, of[pin])
    ]
    print("\n".join(refused) or f"{len(pins)} releases in {file.name}, licences in {LICENCES.relative_to(ROOT)}")
    return bool(refused)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
