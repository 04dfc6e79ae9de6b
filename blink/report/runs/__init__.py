"""Any two runs side by side: simulated ones, and those that a load generator measured on a real server."""
