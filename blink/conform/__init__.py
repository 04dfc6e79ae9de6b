"""Conformance: do two backends behave as one specification? The four levels of docs/conformance.md."""
