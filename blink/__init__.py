"""Blink: a digital twin, with a hardware backend, of an LLM serving system that needs no host CPU."""

__version__ = "0.1.0"
