"""How long a GPU step takes and where the memory goes: a roofline over profiles of GPUs, models, engines, DPUs and links."""
