"""Images decoded in the process of a test."""
