"""In the manner of TensorRT-LLM with a TensorRT engine.

1. Server process (Python): one event loop parses and tokenizes a request; ZeroMQ carries it to the worker process.
2. Executor thread (C++), a loop: take requests, capacity scheduler, in-flight batching of prompts and decode rows,
   input tensors, enqueue. It is compiled code, so a step costs the CPU a fraction of what a Python loop costs.
3. Wait for the tokens, update, hand the responses to Python, which sends them on; then the next turn.
4. Server process: the same event loop detokenizes and streams.

By default a request is admitted with the KV blocks of its longest output, so that none is ever preempted.
"""

from __future__ import annotations

from blink.sim.engines.batching import MixedBatching
from blink.sim.engines.layout import Layout

LAYOUT = Layout(batching=MixedBatching, tokenizer_thread=False, detokenizer_process=False)
