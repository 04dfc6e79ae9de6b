"""Engines: what computes a step's tokens, as captured CUDA graphs over fixed buffers."""
