"""The logic of the frontend (the DPU), sans-I/O: it takes bytes and times and returns operations."""
