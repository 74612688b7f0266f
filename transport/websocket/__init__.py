"""websocket."""
