"""The OpenAI-compatible API without I/O: bodies in, tokens in, frames out. Needs the package msgspec."""
