"""Reads the headers of OpenAI's harmony format, in which gpt-oss writes the messages that an answer consists of.

    <|channel|>analysis<|message|>Hm.<|end|>                                                       a thought
    <|start|>assistant<|channel|>commentary<|message|>I look.<|end|>                               text
    <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>  a call of f
    <|start|>assistant<|channel|>final<|message|>Four.<|return|>                                   text

The prompt ends with `<|start|>assistant`, so that an answer begins inside a header. `to=` stands before the channel or
behind it. A message ends at any mark but `<|message|>` and `<|constrain|>`, for engines may leave an end out.

Source: OpenAI's description of the format, and gpt-oss's chat template. Pure; does not know tools.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

START: Final = "<|start|>"
CHANNEL: Final = "<|channel|>"
MESSAGE: Final = "<|message|>"
CONSTRAIN: Final = "<|constrain|>"
END: Final = "<|end|>"
ANSWER_ENDS: Final = ("<|return|>", "<|call|>")
MARKS: Final = (START, CHANNEL, MESSAGE, CONSTRAIN, END, *ANSWER_ENDS)
THOUGHT: Final = f"{CHANNEL}analysis{MESSAGE}"
FINAL: Final = f"{CHANNEL}final{MESSAGE}"
FUNCTIONS: Final = "functions."  # before the names of functions
HEADER_MAX: Final = 512  # code points; a longer header is none

_RECIPIENT: Final = re.compile(r"\bto=([^\s<]+)")
_CHANNEL_NAME: Final = re.compile(r"<\|channel\|>\s*(\w*)")
_BEGINNINGS: Final = ("<|", "to=", "assistant<|", "assistant to=")  # of headers


class Header(NamedTuple):
    """The header of a message; it ends before index `end`. If it is not `whole`, another mark is at `end`, and the
    header has no message."""

    end: int
    channel: str = ""
    recipient: str = ""
    whole: bool = True

    @property
    def function(self) -> str:
        """The name of the function that the message calls; "" if it names none."""
        return self.recipient.removeprefix(FUNCTIONS) if self.recipient.startswith(FUNCTIONS) else ""


def read_header(text: str) -> Header | None:
    """Reads the header at the beginning of `text`, which may begin with `<|start|>` or `<|channel|>`. Returns None if
    more text is needed. Raises ValueError if the text does not begin with a header."""
    text = text[: HEADER_MAX + 1]
    begun = text.lstrip()
    if not any(begun.startswith(each) or each.startswith(begun) for each in _BEGINNINGS):
        raise ValueError("no header")
    ends = [(at, mark) for mark in (MESSAGE, START, END, *ANSWER_ENDS) if (at := text.find(mark, 1)) >= 0]
    end, mark = min(ends, default=(len(text), ""))
    if end + len(mark) > HEADER_MAX:
        raise ValueError("too long for a header")
    if not mark:
        return None
    if mark != MESSAGE:
        return Header(end, whole=False)
    channel, recipient = _CHANNEL_NAME.search(text, 0, end), _RECIPIENT.search(text, 0, end)
    return Header(
        end + len(MESSAGE),
        channel[1] if channel is not None else "",
        recipient[1] if recipient is not None else "",
    )
