"""The prompt injection model: a linear one of our own (`model`), its data, and its training (`train`)."""
