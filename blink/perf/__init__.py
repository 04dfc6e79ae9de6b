"""How long a GPU step takes and where memory goes: a roofline over profiles of GPUs, models and engines."""
