"""Files that settings name: strict at the start, watched afterwards, and nothing where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from sessions.limits import Limits
from sessions.model.types import TenantId
from transport.cli.settings import BadSetting
from transport.cli.start.config_files import BYTES_MAX, ConfigFile, PriceFile, limits_file


async def test_without_a_file_there_is_a_value_and_nothing_to_watch() -> None:
    limits = limits_file("")
    assert limits.now() == Limits()
    await limits.run()
    prices = PriceFile("")
    await prices.run()
    assert prices.book.current is None


async def test_a_file_that_changes_is_in_force_and_a_wrong_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "limits.toml"
    path.write_text("[default]\nrequests_per_minute = 3\n")
    limits = limits_file(path)
    path.write_text("[default]\nrequests_per_minute = 40\n[tenants.acme]\nuser.sessions = 7\n")
    assert await limits.watcher.look() and limits.now().of(TenantId("acme")).user.sessions == 7
    path.write_text("[default]\nrequests_per_second = 40 # no such limit\n")
    assert not await limits.watcher.look() and limits.now().of(TenantId("other")).requests_per_minute == 40
    with pytest.raises(BadSetting, match=r"limits = '.*requests_per_second"):
        limits_file(path)


def test_a_file_that_is_missing_or_too_large_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=r"limits = .*No such file"):
        limits_file(tmp_path / "none.toml")
    path = tmp_path / "large"
    path.write_text("#" * (BYTES_MAX + 1))
    with pytest.raises(BadSetting, match=rf"words = .*{BYTES_MAX + 1} bytes: at most {BYTES_MAX}"):
        ConfigFile("words", path, str.upper, "")
