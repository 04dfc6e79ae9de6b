"""What-if on top of whole runs: variants of a scenario, many runs at once, what repeated runs say with confidence."""
