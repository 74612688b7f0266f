"""moderation."""
