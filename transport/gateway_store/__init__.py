"""gateway_store."""
