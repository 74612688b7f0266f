"""Moderation: a tenant's policy made into input and output filters, and the models that they ask.

`PolicyFilterSet` is all that others need. Filters run beside the event loop where they are heavy (a worker process),
on it where they must be exact at every token (patterns and phrases of an answer).
"""

from inference.moderation.filter_set import PolicyFilterSet
from inference.moderation.policy import BadPolicy, read_policies

__all__ = ["BadPolicy", "PolicyFilterSet", "read_policies"]
