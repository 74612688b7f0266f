"""What is left after a loss: a replicated journal, restored."""
