"""A real model behind the server: on this CPU, and on a GPU where there is one. One body for both."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from blink.cli import main
from blink.common.errors import InputError
from blink.common.model_files import SMOLLM2, smollm2_file
from tests.hw.cuda_help import GPU_MARKS
from tests.hw.native_help import needs_compiler
from tests.serve.running import Server, open_stream, wait_for

pytest.importorskip("uvicorn", reason="needs the extra [serve]")
for package in ("torch", "tokenizers", "gguf"):
    pytest.importorskip(package, reason=f"a model needs {package}: pip install 'blink-twin[torch,tokenizer]'")
try:
    smollm2_file()
except InputError as problem:
    pytest.skip(str(problem), allow_module_level=True)
pytestmark = [needs_compiler, pytest.mark.slow]

SIZES = (
    "limits.context_tokens=384", "limits.output_capacity_tokens=320", "limits.prefill_batch_max=4",
    "limits.prefill_batches=[1,4]", "limits.prefill_sequences=[32,128]",
)  # fmt: skip
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
SUBJECTS = ("France", "Italy", "Spain", "Japan", "Norway", "Egypt")


@dataclass(frozen=True)
class Machine:
    """What a model runs on, sized so that a test takes seconds. `streams` are open at once."""

    backend: str
    streams: int
    sizes: tuple[str, ...]
    repeats: bool  # whether a request's tokens do not depend on its batch

    def options(self, folder: Path) -> list[str]:
        changed = [word for text in (*SIZES, *self.sizes) for word in ("--set", text)]
        return ["--backend", self.backend, "--engine", "torch", "--ring", str(folder / "ring"), *changed]


CPU = Machine("native", 6, ("limits.batch_max=4", "limits.decode_batches=[1,4]"), repeats=False)
GPU = Machine("cuda", 48, ("limits.batch_max=32", "limits.decode_batches=[1,8,32]"), repeats=True)
MACHINES = [pytest.param(CPU, id="cpu"), pytest.param(GPU, id="gpu", marks=GPU_MARKS)]


@pytest.fixture(scope="module", params=MACHINES)
def machine(request: pytest.FixtureRequest) -> Machine:
    found: Machine = request.param
    return found


@pytest.fixture(scope="module")
def server(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all tests of a machine; its trace is checked at the end."""
    folder = tmp_path_factory.mktemp("model")
    trace = folder / "trace.ndjson"
    found = Server(*machine.options(folder), "--trace", str(trace), start_limit_s=180.0)
    try:
        yield found
    finally:
        code = found.stop()
    assert code == 0
    assert main(["check", str(trace)]) == 0


@contextmanager
def client_of(server: Server) -> Iterator[Any]:
    openai = pytest.importorskip("openai", reason="needs the openai client")
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_the_capital_of_france_is_paris(server: Server) -> None:
    with client_of(server) as client:
        assert [model.id for model in client.models.list()] == [SMOLLM2]
        asked: dict[str, Any] = {"model": SMOLLM2, "temperature": 0}
        prompt = "The capital of France is"
        completion = client.completions.create(prompt=prompt, max_tokens=4, **asked)
        assert completion.choices[0].text.startswith(" Paris")
        assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (5, 4)
        chunks = list(client.completions.create(prompt=prompt, max_tokens=4, stream=True, **asked))
        assert "".join(chunk.choices[0].text for chunk in chunks) == completion.choices[0].text
        answer = client.chat.completions.create(messages=QUESTION, max_tokens=30, **asked)
        assert "Paris" in answer.choices[0].message.content


def test_the_end_token_ends_an_answer_unless_it_is_ignored(server: Server) -> None:
    asked = {"messages": QUESTION, "max_tokens": 24, "temperature": 0}
    plain = server.post("/v1/chat/completions", asked)
    count = plain["usage"]["completion_tokens"]
    assert plain["choices"][0]["finish_reason"] == "stop"
    assert count < 24
    longer = server.post("/v1/chat/completions", {**asked, "min_tokens": count + 1})
    assert longer["usage"]["completion_tokens"] > count
    ignored = server.post("/v1/chat/completions", {**asked, "ignore_eos": True})
    assert (ignored["usage"]["completion_tokens"], ignored["choices"][0]["finish_reason"]) == (24, "length")
    said = plain["choices"][0]["message"]["content"]
    assert all(more["choices"][0]["message"]["content"].startswith(said) for more in (longer, ignored))


def test_the_end_token_is_not_drawn_before_min_tokens(server: Server) -> None:
    asked = {"messages": QUESTION, "max_tokens": 24, "temperature": 0}
    plain = server.post("/v1/chat/completions", asked)
    count, said = plain["usage"]["completion_tokens"], plain["choices"][0]["message"]["content"]
    for more in (0, 1, 24 - count):
        least = count + more
        longer = server.post("/v1/chat/completions", {**asked, "min_tokens": least})
        text, used = longer["choices"][0]["message"]["content"], longer["usage"]["completion_tokens"]
        assert text.startswith(said)
        assert used > least or (used, longer["choices"][0]["finish_reason"]) == (24, "length")
        # The text has no end token in it, nor what it would begin: each of its tokens is text.
        written = server.post("/tokenize", {"prompt": text, "add_special_tokens": False})["count"]
        assert written == used - (longer["choices"][0]["finish_reason"] == "stop")

    prompt = server.post("/tokenize", {"messages": QUESTION})["tokens"]
    prompt += server.post("/tokenize", {"prompt": said, "add_special_tokens": False})["tokens"]
    for sampling in ({"temperature": 0}, {"temperature": 0.7, "top_p": 0.9, "seed": 5}):
        body = {"prompt": prompt, "max_tokens": 8, **sampling}  # the end token is what the prefill would give
        plain = server.post("/v1/completions", body)
        assert (plain["choices"][0]["text"], plain["usage"]["completion_tokens"]) == ("", 1)
        longer = server.post("/v1/completions", {**body, "min_tokens": 5})
        assert longer["usage"]["completion_tokens"] > 5
        assert longer["choices"][0]["text"]
        whole = server.post("/v1/completions", {**body, "min_tokens": 8, "ignore_eos": True})
        assert (whole["usage"]["completion_tokens"], whole["choices"][0]["finish_reason"]) == (8, "length")


def test_sampling_is_what_the_request_asks_for(server: Server) -> None:
    def text(**changes: Any) -> str:
        body = {"prompt": "Once upon a time", "max_tokens": 5, "ignore_eos": True, "temperature": 1.0, **changes}
        found: str = server.post("/v1/completions", body)["choices"][0]["text"]
        return found

    greedy = text(temperature=0)
    assert text(top_k=1, seed=3) == text(top_p=1e-6, seed=4) == greedy
    assert text(seed=7) == text(seed=7)
    assert len({text(seed=seed) for seed in range(4)}) > 1
    assert len({text() for _ in range(4)}) > 1  # requests without a seed draw for themselves


def test_streams_that_run_together_say_what_they_say_alone(server: Server, machine: Machine) -> None:
    def answer(index: int) -> str:
        body = {
            "prompt": f"The capital of {SUBJECTS[index % len(SUBJECTS)]} is", "max_tokens": 12 + index % 5,
            "temperature": 0, "ignore_eos": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        *chunks, usage, done = server.events("/v1/completions", body)
        assert done == "[DONE]"
        assert usage["usage"]["completion_tokens"] == 12 + index % 5
        return "".join(chunk["choices"][0]["text"] for chunk in chunks)

    alone = [answer(index) for index in range(len(SUBJECTS))]
    assert "Paris" in alone[0]
    with ThreadPoolExecutor(machine.streams) as pool:
        together = list(pool.map(answer, range(machine.streams)))
    assert len(together) == machine.streams
    if machine.repeats:
        assert together[: len(SUBJECTS)] == alone


def test_a_client_that_leaves_frees_its_slot(server: Server) -> None:
    before = server.metric("blink:disconnects_total")
    sock = open_stream(server.port, {"prompt": "Hello", "max_tokens": 300, "ignore_eos": True})
    sock.close()
    wait_for(lambda: server.metric("blink:disconnects_total") == before + 1)
    server.wait_idle()
    assert server.metric("vllm:kv_cache_usage_perc") == 0


def test_a_server_that_is_killed_is_followed_by_another_on_the_same_ring(machine: Machine, tmp_path: Path) -> None:
    trace = tmp_path / "trace.ndjson"
    options = [*machine.options(tmp_path), "--trace", str(trace)]
    first = Server(*options, start_limit_s=180.0)
    long = {"prompt": "Hello", "max_tokens": 300, "ignore_eos": True}
    streams = [open_stream(first.port, long, begun=False) for _ in range(machine.streams)]
    wait_for(lambda: first.slots("empty") <= 4096 - machine.streams)
    first.process.kill()
    first.process.wait()
    for sock in streams:
        sock.close()
    began = time.monotonic()
    second = Server(*options)
    took_s = time.monotonic() - began
    try:
        assert "took over a ring" in second.text()
        assert "loading" not in second.text(), f"the model was loaded again ({took_s:.1f} s)"
        second.wait_idle()
        assert second.metric("blink:slots_recovering") == 0
        body = {"prompt": "The capital of France is", "max_tokens": 2, "temperature": 0}
        assert "Paris" in second.post("/v1/completions", body)["choices"][0]["text"]
        # A signal under load: what was taken in is answered.
        with ThreadPoolExecutor(4) as pool:
            open_ones = [pool.submit(second.post, "/v1/completions", {**body, "max_tokens": 20}) for _ in range(4)]
            wait_for(lambda: second.metric("blink:open_requests") == 4 or all(one.done() for one in open_ones))
            assert second.stop() == 0
            assert all(one.result()["usage"]["completion_tokens"] > 0 for one in open_ones)
    finally:
        if second.process.poll() is None:
            second.stop()
    assert main(["check", str(trace)]) == 0
    text = trace.read_text(encoding="utf-8")
    assert text.count('"crashed"') == text.count('"restarted"') == 1
