"""The device scheduler compiled for the host, in a process of its own: a backend without a GPU."""
