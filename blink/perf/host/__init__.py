"""The host's CPU beside other jobs: what they do to its caches, TLBs, memory and cores, and so to an engine's work."""
