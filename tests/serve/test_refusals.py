"""What `blink serve` does not start with: one line that says what is allowed or missing, and a code that is not 0."""

from __future__ import annotations

from pathlib import Path

import pytest

from blink.cli import main
from blink.hw.cuda.lockstep import missing
from blink.hw.engines.torch_engine import is_random
from tests.hw.native_help import needs_compiler
from tests.serve.running import SCENARIO
from tests.shared import ROOT

pytest.importorskip("uvicorn", reason="needs the extra [serve]")
RANDOM = str(ROOT / "blink" / "profiles" / "model" / "smollm2-135m.toml")
REFUSED = [
    (["--engine", "torch"], "--engine torch: allowed with --backend native or cuda, not sim"),
    (["--backend", "cuda", "--ttft", "5", "--itl", "5"], "a model takes the time that it takes"),
    (["--backend", "native", "--engine", "torch", "--model", RANDOM, "--time-scale", "2"], "--time-scale 2: a model"),
    (["--backend", "native", "--engine", "torch", "--model", "nobody"], "'nobody' is not allowed; allowed: "),
    (["--backend", "native", "--trace", "/nowhere/t.ndjson"], "--trace /nowhere/t.ndjson: there is no such folder"),
    (["--backend", "native", "--engine", "torch", "--model", "tests"], "--tokenizer: needed, for tests has no"),
]


@needs_compiler
@pytest.mark.parametrize("command", [["serve", "--port", "0"], ["run", "--backend", "native"], ["conform"]])
def test_a_fleet_is_simulated_and_not_served(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(f"{SCENARIO.read_text()}\n[fleet]\nreplicas = 2\n")
    name, *options = command
    assert main([name, str(path), *options]) in (1, 2)
    said = capsys.readouterr().err
    assert "[fleet] is not allowed; allowed: one replica" in said
    assert said.count("\n") == 1


@needs_compiler
@pytest.mark.parametrize(("options", "says"), REFUSED)
def test_what_cannot_be_served_is_said_in_one_line(
    options: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ring = ["--ring", str(tmp_path / "ring")] if "--backend" in options else []
    assert main(["serve", str(SCENARIO), "--port", "0", *options, *ring]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


@needs_compiler
@pytest.mark.skipif(missing() is None, reason="here is a GPU")
@pytest.mark.parametrize("model", [["--engine", "stub"], ["--model", RANDOM]])
def test_without_a_gpu_one_line_says_so(model: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--backend", "cuda", "--port", "0", "--ring", str(tmp_path / "ring"), *model]
    assert main(["serve", str(SCENARIO), *options]) == 2
    said = capsys.readouterr().err
    assert "backend cuda: needs" in said
    assert said.count("\n") == 1
    assert not (tmp_path / "ring").exists()


def test_profiles_get_random_weights_and_files_of_models_do_not(tmp_path: Path) -> None:
    assert is_random("llama-3-8b")
    assert is_random(RANDOM)
    assert not is_random("smollm2-135m")
    assert not is_random("model.gguf")
    assert not is_random(str(tmp_path))


@needs_compiler
def test_a_ring_is_shared_by_orders_that_are_equal_in_what_matters() -> None:
    from blink.serve.plan import Order, plan_of

    def digest(backend: str = "cuda", model: str = RANDOM, *overrides: str) -> str:
        changes = [("--set", text) for text in overrides]
        order = Order("ring", backend, str(SCENARIO), changes, 1.0, 60.0, "", model)
        return plan_of(order).digest(order)

    found = [digest(), digest("native"), digest("cuda", ""), digest("cuda", RANDOM, "limits.batch_max=8")]
    assert len(set(found)) == len(found)
    assert digest() == digest("cuda", RANDOM, "slo.ttft_ms=1")
    plan = plan_of(Order("ring", "cuda", str(SCENARIO), [], 1.0, 60.0, "", RANDOM))
    assert plan.bounds.prompt_tokens_max < plan.bounds.context_tokens
