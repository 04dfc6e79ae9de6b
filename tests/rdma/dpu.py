"""Runs on the guest "dpu" of two: the server over a ring on the other guest, a client of it, and a link that goes away.

Leaves /run/guest/found.json: what the test on the host looks at. Server and client are two processes; they are forked,
so that both need their imports once.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai

from blink import cli
from blink.serve import command, remote  # noqa: F401  # before the fork

PORT = 8000
BASE = f"http://127.0.0.1:{PORT}"
OUT = Path("/run/guest")
TIME_SCALE, TOKENS = "20", 100
"""A hundred tokens take some seconds."""
LINK = next(path.name for path in Path("/sys/class/net").iterdir() if path.name != "lo")


def main(scenario: str, ring: str) -> None:
    """Everything in order; what was found so far is kept whatever happens."""
    found: dict[str, Any] = {}
    server = _fork_server(scenario, ring)
    try:
        _wait_until_ready(server)
        found["up_s"] = _uptime()
        client = openai.OpenAI(base_url=f"{BASE}/v1", api_key="none", timeout=60, max_retries=0)
        found["models"] = [model.id for model in client.models.list()]
        model = found["models"][0]
        found["texts"] = _texts(client, model)
        found["served_s"] = _uptime()
        for name, cut in (("pulled for a moment", _pull(0.15)), ("pulled", _pull(6.0)), ("down", _take_down(2.0))):
            found[name] = {"ended": _during(cut, lambda: _chat(client, model)), "after": _until_served(client, model)}
        found["healed_s"] = _uptime()
        with urllib.request.urlopen(f"{BASE}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        found["metrics"] = [line for line in lines if line.startswith("blink:")]
    finally:
        os.kill(server, signal.SIGTERM)
        found["exit_code"] = os.waitstatus_to_exitcode(os.waitpid(server, 0)[1])
        (OUT / "found.json").write_text(json.dumps(found))


def _fork_server(scenario: str, ring: str) -> int:
    pid = os.fork()
    if pid:
        return pid
    log = os.open(OUT / "serve.log", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    trace = str(OUT / "trace.ndjson")
    code = cli.main(
        ["serve", scenario, "--transport", "rdma", "--connect", ring, "--port", str(PORT), "--trace", trace,
         "--time-scale", TIME_SCALE]
    )  # fmt: skip
    os._exit(code)


def _wait_until_ready(server: int) -> None:
    for _ in range(1200):
        try:
            urllib.request.urlopen(f"{BASE}/health", timeout=5).close()
            return
        except OSError:
            if os.waitpid(server, os.WNOHANG)[0]:
                raise RuntimeError("the server ended") from None
            time.sleep(0.1)
    raise RuntimeError("the server did not come up")


def _texts(client: openai.OpenAI, model: str) -> list[dict[str, Any]]:
    """The same prompts whole and as streams."""
    found = []
    for number in range(4):
        prompt = f"Say {number} things."
        whole = client.completions.create(model=model, prompt=prompt, max_tokens=12)
        chunks = list(client.completions.create(model=model, prompt=prompt, max_tokens=12, stream=True))
        assert whole.usage is not None
        found.append(
            {
                "prompt": prompt,
                "whole": whole.choices[0].text,
                "streamed": "".join(chunk.choices[0].text for chunk in chunks),
                "finish": [whole.choices[0].finish_reason, chunks[-1].choices[0].finish_reason],
                "completion_tokens": whole.usage.completion_tokens,
            }
        )
    return found


def _chat(client: openai.OpenAI, model: str) -> tuple[str, float]:
    """A stream of a chat that takes seconds: how it ended, and how long after the last that came."""
    last = time.monotonic()
    try:
        stream = client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "Tell me more."}], max_tokens=TOKENS, stream=True,
            extra_body={"ignore_eos": True},
        )  # fmt: skip
        ended = ""
        for chunk in stream:
            last = time.monotonic()
            if chunk.choices:
                ended = str(chunk.choices[0].finish_reason)
    except openai.OpenAIError as error:
        ended = f"error: {type(error).__name__}"
    return ended, time.monotonic() - last


def _pull(seconds: float) -> str:
    """The other guest's cable is pulled for so long: the host does it when it sees this file, and removes it."""
    return (
        f"echo {seconds} >{OUT}/pull.part; mv {OUT}/pull.part {OUT}/pull; while [ -e {OUT}/pull ]; do sleep 0.02; done"
    )


def _take_down(seconds: float) -> str:
    """This guest's interface is taken down for so long."""
    return f"ip link set {LINK} down; sleep {seconds}; ip link set {LINK} up"


def _during(cut: str, action: Callable[[], tuple[str, float]]) -> tuple[str, float]:
    """The connection is cut in the middle of something, which is begun anew until that is so: what fails, or the last.

    How long one takes under emulation, and how soon the cable is pulled, depends on what else the machine does.
    """
    with subprocess.Popen(["bash", "-c", f"sleep 0.4; {cut}"]) as cutting:
        while True:
            found = action()
            if found[0].startswith("error") or cutting.poll() is not None:
                return found


def _until_served(client: openai.OpenAI, model: str) -> dict[str, Any]:
    """Tries until a request is served again."""
    begun, failures = time.monotonic(), 0
    while time.monotonic() - begun < 60:
        try:
            answer = client.completions.create(model=model, prompt="Say 0 things.", max_tokens=12)
            return {"text": answer.choices[0].text, "failures": failures, "seconds": time.monotonic() - begun}
        except openai.OpenAIError:
            failures += 1
            time.sleep(0.5)
    return {"text": None, "failures": failures, "seconds": time.monotonic() - begun}


def _uptime() -> float:
    return float(Path("/proc/uptime").read_text().split()[0])


if __name__ == "__main__":
    main(*sys.argv[1:])
