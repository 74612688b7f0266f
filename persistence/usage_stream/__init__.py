"""usage_stream."""
