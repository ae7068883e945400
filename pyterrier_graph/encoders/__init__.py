"""Text to vectors: one vector per token or one per text, computed at once or stored."""
