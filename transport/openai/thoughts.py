"""Shows the thoughts of an answer as OpenAI's Responses do: as a `reasoning` item before the message that they led to.

In the log they are a part of that message. `split_thoughts` takes rendered messages apart, `ThoughtEvents` the events
of a stream, which it numbers anew from the first thought on: the same way each time it is read. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

Shown = dict[str, Any]


def split_thoughts(items: Iterable[Shown]) -> list[Shown]:
    """Returns rendered items with the reasoning of each message as an item of its own before it."""
    split: list[Shown] = []
    for item in items:
        content = item.get("content") if item["type"] == "message" else None
        if not content or content[0]["type"] != "reasoning_text":
            split.append(item)
            continue
        split.append(_reasoning(item["id"], content[0]["text"]))
        if len(content) > 1:
            split.append({**item, "content": content[1:]})
    return split


class ThoughtEvents:
    """Renumbers the shown events of one response so that reasoning is an item of its own. Takes events in order."""

    def __init__(self) -> None:
        self._num_more = 0  # events added so far
        self._num_items = 0  # items added so far
        self._held: Shown | None = None  # the beginning of a message whose first part is not known
        self._thinking: set[str] = set()  # messages with thoughts

    def take(self, shown: Shown) -> Iterator[Shown]:
        """Yields the events that replace a shown event."""
        number = shown["sequence_number"] + self._num_more
        for each in self._taken(shown):
            yield {**each, "sequence_number": number}
            number += 1
        self._num_more = number - shown["sequence_number"] - 1

    def _taken(self, shown: Shown) -> Iterator[Shown]:
        kind, held = shown["type"], self._held
        if kind == "response.output_item.added" and shown["item"]["type"] == "message":
            self._held = shown
            return
        name = shown.get("item_id") or shown.get("item", {}).get("id", "")
        of_thought = (
            kind.startswith("response.reasoning_text.") or shown.get("part", {}).get("type") == "reasoning_text"
        )
        if of_thought:
            if held is not None:
                self._thinking.add(name)
            yield from self._thought(kind, shown)
            return
        if held is not None:
            self._held = None
            if kind == "response.output_item.done" and name in self._thinking:
                return  # there were thoughts, and nothing behind them
            self._num_items += name in self._thinking
            yield self._placed(held, name)
        if kind == "response.output_item.done" and name in self._thinking:
            shown = {**shown, "item": {**shown["item"], "content": shown["item"]["content"][1:]}}
        yield self._placed(shown, name)

    def _placed(self, shown: Shown, name: str) -> Shown:
        """Returns an event with the output and content index at which its item is shown."""
        if "output_index" not in shown:
            return shown
        placed = {**shown, "output_index": shown["output_index"] + self._num_items}
        if "content_index" in shown and name in self._thinking:
            placed["content_index"] = shown["content_index"] - 1
        return placed

    def _thought(self, kind: str, shown: Shown) -> Iterator[Shown]:
        index = shown["output_index"] + self._num_items
        at = {"response_id": shown["response_id"], "output_index": index}
        item = _reasoning(shown["item_id"], "")
        about = {**at, "item_id": item["id"], "summary_index": 0}
        match kind:
            case "response.content_part.added":
                part = {"type": "summary_text", "text": ""}
                yield {"type": "response.output_item.added", **at, "item": {**item, "summary": []}}
                yield {"type": "response.reasoning_summary_part.added", **about, "part": part}
            case "response.reasoning_text.delta":
                yield {"type": "response.reasoning_summary_text.delta", **about, "delta": shown["delta"]}
            case "response.reasoning_text.done":
                yield {"type": "response.reasoning_summary_text.done", **about, "text": shown["text"]}
            case _:
                item = _reasoning(shown["item_id"], shown["part"]["text"])
                yield {"type": "response.reasoning_summary_part.done", **about, "part": item["summary"][0]}
                yield {"type": "response.output_item.done", **at, "item": item}


def _reasoning(message_id: str, text: str) -> Shown:
    summary = [{"type": "summary_text", "text": text}]
    return {"id": f"rs_{message_id.removeprefix('msg_')}", "type": "reasoning", "summary": summary}
