"""`blink run` without a scenario: a model answers prompts. A stand-in answers here; a GPU is not needed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from blink.cli import main
from blink.common.config import load_scenario
from blink.common.results import RunResult
from blink.hw.cuda.lockstep import missing
from blink.hw.prompts import SCENARIO, default_prompts
from blink.sim.run import simulate

ON_GPU = ("run", "--backend", "cuda", "--engine", "torch")


@dataclass
class Echo:
    """Answers each prompt with its length; the load is simulated."""

    model: str
    ingress: Any
    time_scale: float
    prompts: list[str]
    texts: list[str] = field(default_factory=list)

    def __call__(self, scenario: Any, requests: Any, **options: Any) -> RunResult:
        """A run of the simulator under the answers."""
        self.texts = [f" {len(prompt)} letters\n" for prompt in self.prompts]
        asked.append((self.model, scenario))
        return simulate(scenario, requests, **options)


asked: list[tuple[str, Any]] = []


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working directory, and nobody asked yet."""
    monkeypatch.chdir(tmp_path)
    asked.clear()


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in in the place of the GPU."""
    monkeypatch.setattr("blink.hw.cuda.model_run.ModelRun", Echo)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line of a refusal; the working directory is as empty as before."""
    assert main(arguments) == 2
    assert not list(Path().rglob("*"))
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error.removeprefix("blink: error: ").strip()


def test_the_packaged_prompts_fit_the_packaged_scenario() -> None:
    scenario, prompts = load_scenario(SCENARIO), default_prompts()
    assert len(prompts) == len(set(prompts)) >= 10
    assert all(prompt.strip() == prompt for prompt in prompts)
    longest = max(len(prompt.encode()) for prompt in prompts)  # a token is at least a byte
    assert longest + 200 < scenario.limits.prompt_capacity_tokens  # 200: the chat template around it


def test_a_model_answers_the_packaged_prompts_and_the_run_is_kept(
    echo: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*ON_GPU, "--model", "smollm2-135m"]) == 0
    text = capsys.readouterr().out
    for prompt in default_prompts():
        assert f"> {prompt}\n{len(prompt)} letters\n" in text
    assert text.rstrip().endswith("Kept in out/smollm2-135m")
    answers = json.loads(Path("out/smollm2-135m/answers.json").read_text("utf-8"))
    assert [row["prompt"] for row in answers] == default_prompts()
    assert main(["check", "out/smollm2-135m"]) == 0
    assert main([*ON_GPU, "--model", "smollm2-135m", "--json"]) == 0
    assert Path("out/smollm2-135m-2/summary.json").is_file()


def test_prompts_of_the_command_line_come_first(echo: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ON_GPU, "--prompt", "Why?", "--prompt", "Who?", "--set", "limits.batch_max=8", "--out", "kept"]) == 0
    assert "\n> Why?\n4 letters\n\n> Who?\n4 letters\n" in capsys.readouterr().out
    [(model, scenario)] = asked
    assert (model, scenario.workload.requests, scenario.limits.batch_max) == ("smollm2-135m", 2, 8)
    assert {path.name for path in Path().iterdir()} == {"kept"}


def test_the_scenario_is_of_the_model_that_is_asked(echo: None) -> None:
    Path("mine").mkdir()
    shape = {
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 500, "max_position_embeddings": 2048,
    }  # fmt: skip
    Path("mine/config.json").write_text(json.dumps(shape), encoding="utf-8")
    assert main([*ON_GPU, "--model", "mine", "--prompt", "Why?"]) == 0
    assert main([*ON_GPU, "--model", "llama-3-8b", "--prompt", "Why?"]) == 0
    assert asked[0][1].model.hf_config == Path("mine/config.json").resolve().as_posix()
    assert asked[1][1].model.profile == "llama-3-8b"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run"], "SCENARIO is missing; allowed: a scenario file, or none with --backend cuda --engine torch"),
        (["run", "--backend", "cuda"], "SCENARIO is missing"),
        ([*ON_GPU, "--model", "nowhere"], "--model: 'nowhere' is not allowed without a SCENARIO; allowed: "),
        ([*ON_GPU, "--trace", "t.csv"], "--trace: needs a SCENARIO; allowed: without one, --prompt"),
        (["run", "--prompt", "Why?"], "--prompt: needs a model; allowed: with --engine torch"),
    ],
)
def test_what_is_missing_is_said_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(capsys, *arguments).startswith(message)


@pytest.mark.skipif(missing() is None, reason="this machine has a GPU")
def test_without_a_gpu_it_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, *ON_GPU, "--model", "smollm2-135m").startswith("backend cuda: needs ")


def test_random_weights_answer_no_prompt() -> None:
    from blink.common.errors import InputError
    from blink.hw.cuda.model_run import ModelRun

    with pytest.raises(InputError, match="'llama-3-8b' has random weights and no tokenizer"):
        ModelRun("llama-3-8b")._tokenizer()
