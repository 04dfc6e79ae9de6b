"""In the manner of vLLM V1.

1. API server process: one event loop parses a request; a thread tokenizes it; ZeroMQ carries it to the core.
2. Engine core process, a loop: take messages, schedule (running requests first, then the line), build inputs, launch
   (a captured graph for decode alone; kernels one by one, or in captured pieces, where prompts take part).
3. Synchronous: wait for the tokens, update, send them on, then the next turn. Asynchronous (default since 0.14): form
   and launch the next step first, so the CPU's work hides behind the GPU unless it is the longer one.
4. API server: the same event loop detokenizes and streams, so it competes with new requests.
"""

from __future__ import annotations

from blink.sim.engines.batching import MixedBatching
from blink.sim.engines.layout import Layout

LAYOUT = Layout(batching=MixedBatching, tokenizer_thread=True, detokenizer_process=False)
