"""In the manner of TensorRT-LLM with a TensorRT engine.

1. Server process (Python): one event loop parses and tokenizes a request; ZeroMQ carries it to the worker process.
2. Worker process, main thread (Python): rebuilds the request and puts it into the executor's queue.
3. Executor thread (C++), a loop: take requests, capacity scheduler, in-flight batching of prompts and decode rows,
   input tensors, enqueue. It is compiled code, so a step costs the CPU a fraction of what a Python loop costs.
4. Wait for the tokens, update, leave the responses in a map and wake whoever waits for them; then the next turn.
5. Worker process, response thread (Python): fetches the responses and sends them to the server, beside the next step.
6. Server process: one thread takes them in, the event loop detokenizes and streams; both hold one interpreter lock.

Sources: NVIDIA/TensorRT-LLM, cpp/tensorrt_llm/executor/executorImpl.cpp (executionLoop, appendNewResponses),
tensorrt_llm/executor/worker.py (await_response_task) and proxy.py (dispatch_result_task, submit).

By default a request is admitted with the KV blocks of its longest output, so that none is ever preempted.
"""

from __future__ import annotations

from blink.sim.engines.batching import MixedBatching
from blink.sim.engines.layout import Layout

LAYOUT = Layout(batching=MixedBatching, tokenizer_thread=False, detokenizer_process=False, compiled_core=True)
