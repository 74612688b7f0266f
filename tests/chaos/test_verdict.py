"""The verdict finds what is planted: otherwise a clean one would prove nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from testbed.chaos.device import Cursor, Device, Frame, Sent
from testbed.chaos.verdict import Log, judge

SESSION, EPOCH, ITEM, ANSWER = "s1", "e1", "item_1", "resp_1"
WORDS = ("One ", "two ", "three ", "four.")


def events() -> list[dict[str, Any]]:
    """A message and its answer, as a journal has them."""

    def of(kind: str, number: int, **fields: Any) -> dict[str, Any]:
        return {"type": f"response.{kind}", "response_id": ANSWER, "sequence_number": number, **fields}

    made: list[dict[str, Any]] = [
        {"type": "session.created"},
        {"type": "item.created", "item": {"id": ITEM, "content": "Count."}},
    ]
    made.append(of("created", 0))
    made += [of("output_text.delta", number, item_id="msg_1", delta=word) for number, word in enumerate(WORDS, 1)]
    made.append(of("output_text.done", 5, item_id="msg_1", text="".join(WORDS)))
    made.append(of("completed", 6))
    return made


def frames() -> list[dict[str, Any]]:
    """What a device is sent of it that connects once."""
    head = {"type": "resumed", "session": SESSION, "mode": "replay", "epoch": EPOCH, "from": 1, "top": 0}
    return [head, *(event(offset) for offset in range(1, 10))]


def event(offset: int) -> dict[str, Any]:
    return {
        "type": "event",
        "session": SESSION,
        "epoch": EPOCH,
        "offset": offset,
        "at": 1,
        "event": copy.deepcopy(events()[offset - 1]),
    }


def together(first: int, last: int) -> dict[str, Any]:
    """Deltas laid together."""
    made = event(last)
    made["first_offset"] = first
    made["event"]["delta"] = "".join(WORDS[first - 4 : last - 3])
    return made


def findings(told: list[dict[str, Any]], log: Log, *, restored: bool = False) -> list[str]:
    device = Device(["ws://nowhere"])
    device.cursors[SESSION] = Cursor()
    device.frames = [Frame(0.0, 1, frame) for frame in told]
    sent = Sent("message.create", SESSION, {"id": "c1"}, 0.0)
    sent.answer = {"item_id": ITEM, "response_id": ANSWER}
    device.commands["c1"] = sent
    return judge([device], {SESSION: log}, restored=restored)


def test_what_is_right_is_clean() -> None:
    log = Log(EPOCH, events())
    assert findings(frames(), log) == []
    laid = frames()
    laid[4:8] = [together(4, 7)]
    assert findings(laid, log) == []


def resumed_at(told: list[Any], offset: int, **fields: Any) -> None:
    told.insert(6, {"type": "resumed", "session": SESSION, "mode": "replay", "epoch": EPOCH, "from": offset, **fields})


def other_text(told: list[Any]) -> None:
    told[5]["event"]["delta"] = "zwei "


def other_sum(told: list[Any]) -> None:
    told[4:8] = [together(4, 7)]
    told[4]["event"]["delta"] += "!"


def another_epoch(told: list[Any]) -> None:
    for frame in told[6:]:
        frame["epoch"] = "e2"


TOLD_WRONGLY: dict[str, Callable[[list[Any]], object]] = {
    "a gap": lambda told: told.pop(5),
    "a repeat": lambda told: told.insert(6, copy.deepcopy(told[5])),
    "a change": other_text,
    "a change in a sum": other_sum,
    "the end lost": lambda told: told.pop(),
    "a resume too far on": lambda told: resumed_at(told, 8),
    "a resume too far back": lambda told: resumed_at(told, 3),
    "a reset without a reason": lambda told: resumed_at(told, 0, mode="reset", at=5, state={"items": []}),
    "an epoch that changes in silence": another_epoch,
}


@pytest.mark.parametrize("fault", TOLD_WRONGLY)
def test_what_a_device_is_told_wrongly_is_found(fault: str) -> None:
    told = frames()
    TOLD_WRONGLY[fault](told)
    assert findings(told, Log(EPOCH, events()))


def numbered(log: list[Any]) -> list[Any]:
    """With sequence numbers that are right again, so that only the planted fault is there to be found."""
    number = 0
    for each in log:
        if "sequence_number" in each:
            each["sequence_number"] = number
            number += 1
    return log


def never_accepted(log: list[Any]) -> None:
    del log[1:]


LOGGED_WRONGLY: dict[str, Callable[[list[Any]], object]] = {
    "an answer that ends twice": lambda log: log.append(copy.deepcopy(log[8])),
    "an answer that never ends": lambda log: log.pop(),
    "an answer that begins twice": lambda log: log.insert(3, copy.deepcopy(log[2])),
    "a message applied twice": lambda log: log.insert(2, copy.deepcopy(log[1])),
    "an accepted message that is not there": never_accepted,
    "a text that is not the sum of its deltas": lambda log: log.pop(4),
}


@pytest.mark.parametrize("fault", LOGGED_WRONGLY)
def test_what_is_wrong_in_the_log_is_found_although_every_device_was_told_the_same(fault: str) -> None:
    log = events()
    LOGGED_WRONGLY[fault](log)
    numbered(log)
    told = [frames()[0]]
    for offset, each in enumerate(log, 1):
        told.append({**event(1), "offset": offset, "event": each})
    assert findings(told, Log(EPOCH, log))


def test_a_number_left_out_is_found() -> None:
    log = events()
    log[6]["sequence_number"] = 9
    told = frames()
    told[7]["event"]["sequence_number"] = 9
    assert findings(told, Log(EPOCH, log))


def reset(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a device is told whose log went back behind its message, and on again in a new epoch."""
    told = [{**frame, "epoch": "e0"} for frame in frames()[:5]]
    state = {"items": items}
    told.append({"type": "resumed", "session": SESSION, "mode": "reset", "epoch": EPOCH, "at": 2, "state": state})
    return [*told, *frames()[3:]]


def test_after_a_restore_a_reset_is_right_and_its_state_is_compared() -> None:
    log = Log(EPOCH, events())
    kept = {"id": ITEM, "content": "Count."}
    assert findings(reset([kept]), log, restored=True) == []
    assert findings(reset([kept]), log), "without a restore nobody may be reset"
    assert findings(reset([]), log, restored=True)
    assert findings(reset([{"id": ITEM, "content": "Sing."}]), log, restored=True)
