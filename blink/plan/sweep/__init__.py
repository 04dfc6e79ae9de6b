"""Sweeps: a run for every combination of a grid, one file that no crash loses, and what the curves say."""
