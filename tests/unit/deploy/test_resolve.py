"""A lock is held against what its inputs resolve to: versions, hashes, and what is missing or left over."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.resolve import GROUPS, compare, differences, sources
from deploy.setup_env import REQUIREMENTS

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
