"""The CUDA backend: the device scheduler as a persistent kernel, captured graphs, a ring that the host reaches."""
