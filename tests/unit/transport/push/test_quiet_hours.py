"""Quiet hours: over midnight, in the user's zone, and until when."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from sessions.model.push import QuietHours
from sessions.model.types import UnixMs
from transport.push.quiet_hours import quiet_until

BERLIN = ZoneInfo("Europe/Berlin")


def at(day: int, hour: int, minute: int = 0, zone: ZoneInfo = BERLIN) -> UnixMs:
    return UnixMs(int(datetime(2026, 11, day, hour, minute, tzinfo=zone).timestamp() * 1000))


def test_a_night_ends_in_the_morning() -> None:
    night = QuietHours(start=22 * 60, end=7 * 60 + 30, time_zone="Europe/Berlin")
    assert quiet_until(night, at(3, 22)) == at(4, 7, 30)
    assert quiet_until(night, at(4, 0)) == at(4, 7, 30)
    assert quiet_until(night, at(4, 7, 29)) == at(4, 7, 30)
    assert quiet_until(night, at(4, 7, 30)) is None and quiet_until(night, at(3, 21, 59)) is None


def test_no_hours_and_zones_that_are_not_known_any_more() -> None:
    assert quiet_until(None, at(3, 3)) is None
    assert quiet_until(QuietHours(start=60, end=60, time_zone="Europe/Berlin"), at(3, 1)) is None
    lost = QuietHours(start=0, end=60, time_zone="Nowhere/Atlantis")
    inside = UnixMs(int(datetime(2026, 11, 3, 0, 30, tzinfo=UTC).timestamp() * 1000))
    assert quiet_until(lost, inside) == UnixMs(inside + 30 * 60_000)
