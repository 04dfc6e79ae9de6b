"""The host's CPU under other jobs: what they do to its caches, TLBs, memory and cores, and so to an engine's host work."""
