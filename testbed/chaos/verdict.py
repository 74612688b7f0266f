"""Holds what devices were sent against what the journal has. Stands outside the product and keeps no state of its own.

For each device and session, in the order of arrival: within a connection and over all of them offsets follow each other
without gap or repeat (I4); an epoch changes only through a `reset`, and a reset comes only where the journal was put
back; what was sent is what stands in the log (I3), deltas laid together being the sum of their parts; at the end the
device has the whole log. In the log itself: offsets and sequence numbers without gaps, each accepted message and its
response there once (I5), each response begun and ended once, its text the sum of its deltas.

Findings are words for people; none means clean.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

from sessions.model.events import Record
from sessions.model.types import SessionKey
from sessions.ports import Journal
from testbed.chaos.device import Device, Frame, Sent
from testbed.wire_client import TERMINAL
from transport.protocol.frames import event_frame

Json = dict[str, Any]
SUMS = frozenset({"response.output_text.delta", "response.refusal.delta", "response.function_call_arguments.delta"})


class Log(msgspec.Struct):
    """A session's log as the journal has it, in the words of the wire: `events[n]` stands at offset n + 1."""

    epoch: str
    events: list[Json]


async def log_of(journal: Journal, key: SessionKey) -> Log:
    records: list[Record] = []
    while True:
        page = await journal.read(key, after=len(records), limit=5_000, bytes_max=1 << 26)
        assert page is not None, f"{key}: the journal does not know it"
        records += page.records
        if not page.records or page.records[-1].offset >= page.head.top:
            break
    assert [record.offset for record in records] == list(range(1, len(records) + 1)), f"{key}: a hole in the log"
    frames = [event_frame(key.session, page.head.epoch, record) for record in records]
    return Log(page.head.epoch, [msgspec.json.decode(msgspec.json.encode(frame))["event"] for frame in frames])


def judge(devices: Iterable[Device], logs: dict[str, Log], *, restored: bool = False) -> list[str]:
    """All findings. `restored`: an older state of the journal was put back, so resets are right and what the backup
    did not have is gone."""
    findings: list[str] = []
    shown: dict[tuple[str, str, int], Json] = {}
    for number, device in enumerate(devices):
        for session, log in logs.items():
            if session in device.cursors:
                told = [frame for frame in device.frames if frame.body.get("session") == session]
                found = judge_reader(told, log, shown, session=session, restored=restored)
                findings += [f"device {number}, {session}: {each}" for each in found]
        commands = [sent for sent in device.commands.values() if sent.session in logs]
        findings += judge_commands(commands, logs, restored=restored)
    for session, log in logs.items():
        findings += [f"{session}: {each}" for each in judge_log(log)]
    return findings


def judge_reader(
    frames: Iterable[Frame], log: Log, shown: dict[tuple[str, str, int], Json], *, session: str, restored: bool
) -> list[str]:
    """One device's frames of one session. `shown` is what any device was shown so far, and grows."""
    findings: list[str] = []
    epoch, position = "", 0
    for _, connection, body in frames:
        if body["type"] == "resumed" and body["mode"] == "replay":
            if epoch and body["epoch"] != epoch:
                findings.append(f"connection {connection}: the epoch changed without a reset")
            if body["from"] != position + 1:
                findings.append(f"connection {connection}: went on at {body['from']} after {position}")
            epoch = body["epoch"]
        elif body["type"] == "resumed" and body["mode"] in ("snapshot", "reset"):
            if not restored:
                findings.append(f"connection {connection}: a {body['mode']} ({body.get('reason')}) at {position}")
            epoch, position = body["epoch"], body["at"]
            if epoch == log.epoch:
                findings += judge_state(body["state"], log, position)
        elif body["type"] == "event":
            first, last, event = body.get("first_offset", body["offset"]), body["offset"], body["event"]
            if body["epoch"] != epoch:
                findings.append(f"{last} came in epoch {body['epoch']} instead of {epoch}")
            if first <= position:
                findings.append(f"{first} to {last} repeated after {position}")
            elif first > position + 1:
                findings.append(f"a gap: {first} after {position}")
            position = max(position, last)
            if first == last and shown.setdefault((session, body["epoch"], last), event) != event:
                findings.append(f"{last} was shown differently before")
            if body["epoch"] == log.epoch and not matches(event, log.events[first - 1 : last], last - first + 1):
                findings.append(f"{first} to {last} is not what the journal has")
    if (epoch, position) != (log.epoch, len(log.events)):
        findings.append(f"ends at {position} of {epoch}, the log at {len(log.events)} of {log.epoch}")
    return findings


def matches(event: Json, stored: list[Json], length: int) -> bool:
    """Whether an event is the one in the log, or the sum of adjacent deltas in it."""
    if len(stored) != length:
        return False
    if length == 1:
        return event == stored[0]
    ignored = {"delta", "sequence_number", "logprobs"}

    def kind(of: Json) -> Json:
        return {name: value for name, value in of.items() if name not in ignored}

    return (
        event["type"] in SUMS
        and all(kind(each) == kind(event) for each in stored)
        and event["delta"] == "".join(each["delta"] for each in stored)
        and event["sequence_number"] == stored[-1]["sequence_number"]
    )


def judge_state(state: Json, log: Log, at: int) -> list[str]:
    """A snapshot against the finished items that the log has up to its offset."""
    finished: dict[str, Json] = {}
    for event in log.events[:at]:
        if event["type"] in ("item.created", "response.output_item.done"):
            finished[event["item"]["id"]] = event["item"]
    told = {item["id"]: item for item in state["items"]}
    findings = [f"the state lacks the item {id}" for id in finished if id not in told]
    for id, item in finished.items():
        if id in told and told[id].get("content") != item.get("content"):
            findings.append(f"the state has another text for {id}")
    return findings


def judge_commands(commands: Iterable[Sent], logs: dict[str, Log], *, restored: bool) -> list[str]:
    findings: list[str] = []
    for sent in commands:
        if sent.kind != "message.create" or sent.answer is None or sent.session is None:
            continue
        events = logs[sent.session].events
        item, response = sent.answer["item_id"], sent.answer["response_id"]
        items = sum(each["type"] == "item.created" and each["item"]["id"] == item for each in events)
        begun = sum(each["type"] == "response.created" and each["response_id"] == response for each in events)
        ended = sum(each["type"] in TERMINAL and each["response_id"] == response for each in events)
        if (items, begun, ended) != (1, 1, 1) and not (restored and items == begun == ended == 0):
            findings.append(
                f"{sent.session}: {sent.frame['id']} accepted, stands {items} ×, begun {begun} ×, ended {ended} ×"
            )
    return findings


def judge_log(log: Log) -> list[str]:
    findings: list[str] = []
    begun = Counter(event["response_id"] for event in log.events if event["type"] == "response.created")
    ended = Counter(event["response_id"] for event in log.events if event["type"] in TERMINAL)
    if begun != ended or any(count != 1 for count in begun.values()):
        findings.append(f"responses begun {dict(begun)}, ended {dict(ended)}")
    items = Counter(event["item"]["id"] for event in log.events if event["type"] == "item.created")
    findings += [f"the item {id} was made {count} ×" for id, count in items.items() if count != 1]
    numbers: Counter[str] = Counter()
    texts: dict[str, str] = {}
    for event in log.events:
        if "sequence_number" in event:
            response = event["response_id"]
            if event["sequence_number"] != numbers[response]:
                findings.append(f"{response}: number {event['sequence_number']} instead of {numbers[response]}")
            numbers[response] += 1
        if event["type"] == "response.output_text.delta":
            texts[event["item_id"]] = texts.get(event["item_id"], "") + event["delta"]
        elif event["type"] == "response.output_text.done" and event["text"] != texts.get(event["item_id"], ""):
            findings.append(f"{event['item_id']}: its text is not the sum of its deltas")
    return findings
