"""Sweeps: every combination of a grid as a run, kept in one file that a crash does not lose, and what the curves say."""
