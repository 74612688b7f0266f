"""What is left after a loss: restores, damage in backups, archived sessions."""
