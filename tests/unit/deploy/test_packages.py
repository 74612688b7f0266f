"""Locks, licences and the SBOM: held against indexes and against what is installed."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import zipfile
from email.message import Message
from importlib.resources import files
from pathlib import Path

import jsonschema_rs
import pytest

from deploy import sbom
from deploy.licences import ALLOWED, DECLARED, EXCEPTIONS, canonical, is_allowed, licence
from deploy.resolve import GROUPS, compare, differences, sources
from deploy.sbom import LICENCES, Locked, Pin, installed, licences, licences_page, locked, recorded
from deploy.setup_env import REQUIREMENTS
from deploy.withdrawn import withdrawn_pins


def metadata(*fields: tuple[str, str]) -> Message:
    message = Message()
    for name, value in fields:
        message[name] = value
    return message


OSI = "License :: OSI Approved :: "


@pytest.mark.parametrize(
    ("fields", "expression"),
    [
        ([("License-Expression", "MIT OR Apache-2.0"), ("License", "something else")], "MIT OR Apache-2.0"),
        ([("License", "Apache License, Version 2.0")], "Apache-2.0"),
        ([("License", "BSD-3-Clause"), ("Classifier", f"{OSI}MIT License")], "BSD-3-Clause"),
        ([("License", "MIT License\n\nCopyright (c) 2022 ...")], "MIT"),
        ([("License", "Copyright (c) 2001"), ("Classifier", f"{OSI}BSD License")], "BSD-3-Clause"),
        ([("Classifier", f"{OSI}Apache Software License"), ("Classifier", f"{OSI}MIT License")], "Apache-2.0 OR MIT"),
        ([("Classifier", "License :: DFSG approved"), ("Classifier", f"{OSI}MIT License")], "MIT"),
    ],
)
def test_a_licence_is_read_where_a_package_says_it(fields: list[tuple[str, str]], expression: str) -> None:
    assert licence("some-package", metadata(*fields)) == expression


@pytest.mark.parametrize("fields", [[], [("License", "see the file")], [("Classifier", "License :: Other")]])
def test_a_package_that_does_not_say_it_is_named(fields: list[tuple[str, str]]) -> None:
    with pytest.raises(ValueError, match="some-package does not say"):
        licence("some-package", metadata(*fields))
    assert licence("pysqlite3", metadata(*fields)) == "Zlib"


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT", True),
        ("GPL-3.0-only", False),
        ("GPL-3.0-only OR MIT", True),
        ("GPL-3.0-only AND MIT", False),
        ("MPL-2.0 AND (GPL-2.0-only OR MIT)", True),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("GPL-2.0-only WITH Classpath-exception-2.0", False),
        ("LicenseRef-Anything", False),
    ],
)
def test_what_is_allowed(expression: str, allowed: bool) -> None:
    assert is_allowed("some-package", expression) == allowed


def test_an_exception_is_one_packages() -> None:
    assert is_allowed("python-stdnum", "LGPL-2.1-or-later")
    assert not is_allowed("python-stdnum-2", "LGPL-2.1-or-later")
    assert canonical("(MIT OR CC0-1.0)") == "MIT OR CC0-1.0"
    assert set(DECLARED.values()) <= ALLOWED
    assert not set(DECLARED) & set(EXCEPTIONS)


LOCK = (
    "a==1 \\\n    --hash=sha256:11\nb==2 ; sys_platform == 'linux' \\\n    --hash=sha256:22 \\\n    --hash=sha256:23\n"
)


def test_the_same_lock_has_no_difference() -> None:
    assert compare("x.lock", LOCK, LOCK) == []
    assert compare("x.lock", LOCK, LOCK + "    --hash=sha256:24\n") == [], "a wheel that was added later"


def test_another_version_a_missing_package_and_a_hash_that_went_away_are_named() -> None:
    assert compare("x.lock", LOCK, LOCK.replace("a==1", "a==3")) == [
        "x.lock: a==1 is locked and not needed",
        "x.lock: a==3 is needed and not locked",
    ]
    assert compare("x.lock", LOCK, LOCK.replace("sha256:22", "sha256:99")) == [
        "x.lock: b==2 has hashes that the index lacks"
    ]


def test_what_uv_cannot_resolve_is_its_own_sentence(tmp_path: Path) -> None:
    uv = tmp_path / "uv"
    uv.write_text("#!/bin/sh\necho no solution for vllm >&2\nexit 1\n")
    uv.chmod(0o755)
    with pytest.raises(RuntimeError, match=r"vllm-cuda\.lock: no solution for vllm"):
        differences("vllm-cuda", uv, {"PATH": "/bin:/usr/bin"})


def test_only_a_lock_of_packages_that_no_index_has_is_resolved_with_what_lies_beside_it() -> None:
    env = {"UV_INDEX": "http://localhost/extra", "UV_FIND_LINKS": "/wheels", "UV_DEFAULT_INDEX": "http://localhost"}
    assert sources("base", env) == {"UV_DEFAULT_INDEX": "http://localhost"}
    assert sources("clients-open-webui", env) == env


def test_each_group_has_its_lock_and_its_inputs() -> None:
    for group, options in GROUPS.items():
        assert (REQUIREMENTS / f"{group}.in").is_file() and (REQUIREMENTS / f"{group}.lock").is_file()
        assert all((REQUIREMENTS.parent / each).is_file() for each in options if each.startswith("requirements"))


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


UV = Path(sys.executable).parent / "uv"


def wheel(folder: Path, version: str) -> tuple[str, str]:
    """Writes a wheel into the folder; returns its name and digest."""
    name = f"demo-{version}-py3-none-any.whl"
    with zipfile.ZipFile(folder / name, "w") as made:
        made.writestr(f"demo-{version}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: demo\nVersion: {version}\n")
        made.writestr(
            f"demo-{version}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        made.writestr(f"demo-{version}.dist-info/RECORD", "")
    return name, hashlib.sha256((folder / name).read_bytes()).hexdigest()


def test_a_withdrawn_release_is_named_and_others_are_not(tmp_path: Path) -> None:
    index, lock = tmp_path / "index", tmp_path / "some.lock"
    (index / "demo").mkdir(parents=True)
    digests, links = {}, []
    for version, mark in (("1.0", ""), ("1.1", ' data-yanked="it loses mail"')):
        name, digests[version] = wheel(index / "demo", version)
        links.append(f'<a href="{name}#sha256={digests[version]}"{mark}>{name}</a>')
    (index / "demo" / "index.html").write_text(f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>")
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "UV_DEFAULT_INDEX": index.as_uri()}

    def told(version: str, digest: str) -> list[str]:
        lock.write_text(f"demo=={version} --hash=sha256:{digest}\n")
        return withdrawn_pins(lock, UV, env)

    assert told("1.0", digests["1.0"]) == []
    (line,) = told("1.1", digests["1.1"])
    assert line.startswith("some.lock: ") and "demo==1.1" in line and "it loses mail" in line
    with pytest.raises(RuntimeError, match=r"(?s)some\.lock: .*demo==2\.0"):
        told("2.0", digests["1.0"])
