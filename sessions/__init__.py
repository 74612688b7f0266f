"""The vocabulary, the rules and the ports of a conversation; imports nothing of ours (docs/architecture.md)."""
