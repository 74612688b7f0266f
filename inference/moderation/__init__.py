"""Moderates messages and answers: turns a tenant's policy into input and output filters, and runs their classifiers.

`PolicyFilterSet` is the way in. Heavy work (classifiers, long texts) runs in worker processes; what must be exact at
every token (patterns and phrases of an answer) on the event loop. It never decides what becomes of a verdict (that is
`sessions`), and keeps and logs no text. Start with `policy` (the file), then `input_filter` and `output_filter`.
"""

from inference.moderation.filter_set import PolicyFilterSet
from inference.moderation.policy import BadPolicy, read_policies

__all__ = ["BadPolicy", "PolicyFilterSet", "read_policies"]
