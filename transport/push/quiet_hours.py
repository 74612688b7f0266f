"""When quiet hours end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from sessions.model.push import QuietHours
from sessions.model.types import UnixMs


def quiet_until(quiet: QuietHours | None, now: UnixMs) -> UnixMs | None:
    """Returns the time at which the present quiet hours end; None if `now` is not in quiet hours. If the time zone is
    unknown to this machine, UTC is used."""
    if quiet is None or quiet.start == quiet.end:
        return None
    try:
        zone: ZoneInfo | None = ZoneInfo(quiet.time_zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        zone = None
    local = datetime.fromtimestamp(now / 1000, zone or UTC)
    minute = local.hour * 60 + local.minute
    inside = quiet.start <= minute < quiet.end
    if quiet.start > quiet.end:
        inside = minute >= quiet.start or minute < quiet.end
    if not inside:
        return None
    end = local.replace(hour=quiet.end // 60, minute=quiet.end % 60, second=0, microsecond=0)
    if minute >= quiet.end:
        end += timedelta(days=1)
    return UnixMs(int(end.timestamp() * 1000))
