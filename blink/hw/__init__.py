"""Real backends of the ring."""
