"""Host-driven serving engines: continuous batching on host threads, one SimPy event an iteration."""
