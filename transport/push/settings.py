"""The settings of push, and whether they are whole."""

from __future__ import annotations

from typing import Final, Protocol

from sessions.model.errors import BadInput

_NEEDED: Final = {  # each key, and the settings that say nothing without it
    "push_key": ("push_contact",),
    "push_apns_key": ("push_apns_key_id", "push_apns_team", "push_apns_app", "push_apns_url"),
    "push_fcm_account": ("push_fcm_url",),
}


class PushSettings(Protocol):
    @property
    def push_key(self) -> str: ...
    @property
    def push_contact(self) -> str: ...
    @property
    def push_networks(self) -> tuple[str, ...]: ...
    @property
    def push_apns_key(self) -> str: ...
    @property
    def push_apns_key_id(self) -> str: ...
    @property
    def push_apns_team(self) -> str: ...
    @property
    def push_apns_app(self) -> str: ...
    @property
    def push_apns_url(self) -> str: ...
    @property
    def push_fcm_account(self) -> str: ...
    @property
    def push_fcm_url(self) -> str: ...


def invalid_setting(setting: str, problem: str) -> BadInput:
    return BadInput("invalid_setting", f"{setting}: {problem}", param=setting)


def sends_pushes(settings: PushSettings) -> bool:
    """Returns whether the settings name a key for at least one kind of push. Raises BadInput if they have options of a
    kind whose key is missing."""
    for needed, about in _NEEDED.items():
        for setting in about:
            if getattr(settings, setting) and not getattr(settings, needed):
                flag = needed.replace("_", "-")
                raise invalid_setting(setting, f"{needed} is not set: give --{flag} FILE too, or leave this out")
    is_on = any(getattr(settings, needed) for needed in _NEEDED)
    if settings.push_networks and not is_on:
        keys = " or ".join(f"--{needed.replace('_', '-')} FILE" for needed in _NEEDED)
        raise invalid_setting("push_networks", f"no pushes are sent without a key: give {keys} too, or leave this out")
    return is_on
