"""The prompt injection model: a linear one of our own, its data, and how it is made (`train`)."""
