"""The SBOM and docs/licences.md fit the locks and what is installed, and no licence is there that may not be."""

from __future__ import annotations

import json
import sys
from importlib.resources import files
from pathlib import Path

import jsonschema_rs
import pytest

from deploy import sbom
from deploy.licences import EXCEPTIONS, is_allowed
from deploy.sbom import LICENCES, Locked, Pin, installed, licences, licences_page, locked, recorded

AGAIN = "run `make sbom` and commit docs/licences.md"
SCHEMAS = {
    name: json.loads((files("cyclonedx.schema") / "_res" / f"{name}.SNAPSHOT.schema.json").read_text())
    for name in ("bom-1.6", "jsf-0.82", "spdx")
}


@pytest.fixture(scope="module")
def pins() -> dict[Pin, Locked]:
    return locked()


@pytest.fixture(scope="module")
def known() -> dict[Pin, str]:
    return recorded(LICENCES.read_text())


def test_the_page_has_every_locked_release(pins: dict[Pin, Locked], known: dict[Pin, str]) -> None:
    assert known.keys() == pins.keys(), AGAIN
    assert licences_page(pins, licences(pins, known)) == LICENCES.read_text(), AGAIN
    assert {"base", "dev", "npm", "vllm"} <= {lock for each in pins.values() for lock in each.locks}


def test_it_says_what_the_installed_packages_say(pins: dict[Pin, Locked], known: dict[Pin, str]) -> None:
    here = installed([Path(each) for each in sys.path if each.endswith("site-packages")])
    of = {pin: here[pin] for pin in pins.keys() & here.keys()}
    assert len(of) > 40
    assert {pin: each for pin, each in licences(of, of).items() if known[pin] != each} == {}, AGAIN


def test_every_licence_is_allowed(known: dict[Pin, str]) -> None:
    assert [pin for pin, each in known.items() if not is_allowed(pin.name, each)] == []
    assert set(EXCEPTIONS) <= {pin.name for pin in known}


def test_the_sbom_is_valid_and_has_hashes_and_licences(pins: dict[Pin, Locked], known: dict[Pin, str]) -> None:
    text = sbom.sbom(pins, known)
    bom = json.loads(text)
    folder = SCHEMAS["bom-1.6"]["$id"].rpartition("/")[0]
    registry = jsonschema_rs.Registry(
        [(f"{folder}/{name}.SNAPSHOT.schema.json", each) for name, each in SCHEMAS.items()]
    )
    jsonschema_rs.validator_for(SCHEMAS["bom-1.6"], registry=registry).validate(bom)
    components = {each["purl"]: each for each in bom["components"]}
    assert len(components) == len(pins)
    assert all(each["hashes"] and each["licenses"] for each in components.values())
    redis = next(each for purl, each in components.items() if purl.startswith("pkg:pypi/redis@"))
    assert redis["scope"] == "required"
    assert {each["value"] for each in redis["properties"]} >= {"base", "dev"}
    assert f"--hash=sha256:{redis['hashes'][0]['content']}" in (sbom.ROOT / "requirements" / "base.lock").read_text()
    assert any(purl.startswith("pkg:npm/markdown-it@") for purl in components)
    assert any(purl.startswith("pkg:npm/%40types/node@") for purl in components)
    assert "://" not in json.dumps([each["purl"] for each in components.values()])
    (root,) = (each for each in bom["dependencies"] if each["ref"].startswith("sessile@"))
    assert redis["bom-ref"] in root["dependsOn"]


def test_a_release_without_a_licence_is_named(pins: dict[Pin, Locked]) -> None:
    with pytest.raises(ValueError, match=r"new 1\.0: no licence"):
        licences([Pin("pypi", "new", "1.0")], {})


def test_rows_are_read_back(pins: dict[Pin, Locked], known: dict[Pin, str]) -> None:
    scoped = next(pin for pin in pins if pin.name.startswith("@types/"))
    assert recorded(licences_page({scoped: pins[scoped]}, known)) == {scoped: known[scoped]}
