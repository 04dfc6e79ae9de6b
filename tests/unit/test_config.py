"""The scenario file: what is accepted, what is refused and in which words, and its plain-data form."""

from __future__ import annotations

import copy
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blink.common.config import json_schema, load_scenario, parse_scenario, relocated, to_toml
from blink.common.config.reference import reference
from blink.common.errors import InputError
from tests.runs import SCENARIO
from tests.shared import ROOT

SHIPPED = sorted((ROOT / "scenarios").glob("*.toml"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "scenario.toml"
    path.write_text(to_toml(SCENARIO), encoding="utf-8")
    return path


def refusal(*overrides: str, without: str = "", **sections: Any) -> str:
    document = copy.deepcopy(SCENARIO)
    document.update(sections)
    if without:
        section, _, key = without.rpartition(".")
        del (document[section] if section else document)[key]
    with pytest.raises(InputError) as caught:
        parse_scenario(document, "scenario.toml", overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_defaults_are_filled_in_the_order_of_the_sections() -> None:
    resolved = parse_scenario(SCENARIO, "s").resolved()
    sections = "system model gpu dpu links host interference mitigations workload limits frontend trace slo"
    sections += " power prices run"
    assert " ".join(resolved) == f"name seed {sections}"  # description is unset
    assert resolved["limits"]["window"] == 120
    assert resolved["model"] == {"profile": "llama-3-8b", "dtype": "bf16"}  # engine is unset: the system's own
    assert resolved["system"] == {"kind": "blink"}
    assert parse_scenario(resolved, "s").resolved() == resolved


def test_the_resolved_scenario_survives_toml(file: Path) -> None:
    resolved = load_scenario(file).resolved()
    file.write_text(to_toml(resolved), encoding="utf-8")
    assert load_scenario(file).resolved() == resolved


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("limits.batch_max=0", "limits.batch_max = 0: must be a whole number between 1 and 4096"),
        ("limits.batch_max=1.0", "limits.batch_max = 1.0: must be a whole number between 1 and 4096"),
        ("limits.batch_max=true", "limits.batch_max = true: must be a whole number between 1 and 4096"),
        ("limits.batch_max=lots", 'limits.batch_max = "lots": must be a whole number between 1 and 4096'),
        ("limits.window=2", "limits.window = 2: must be a whole number between 3 and 120"),
        ("limits.batchmax=3", "limits.batchmax: unknown key; did you mean batch_max?"),
        ("limits.zzz=3", "limits.zzz: unknown key; known keys: batch_max, prefill_batch_max,"),
        ("gpu.memory_utilization=0", "gpu.memory_utilization = 0: must be a number above 0 and at most 1"),
        ("links.background.wire=1", "links.background.wire = 1: must be a number at least 0 and below 1"),
        ("model.dtype=int4", 'model.dtype = "int4": must be "bf16", "fp16" or "fp8"'),
        ("model.hf_config=config.json", "model.hf_config: profile is given too: give one of them"),
        ("workload.arrivals.rate=nan", "workload.arrivals.rate = nan: must be a number above 0"),
        ("workload.arrivals.kind=magic", 'workload.arrivals.kind = "magic": must be "all-at-once", "closed-loop"'),
        ("workload.arrivals={rate=3}", "workload.arrivals.kind: is missing: must be"),
        ("workload.arrivals={kind='trace'}", "workload.trace: is missing: arrivals.kind = 'trace' needs"),
        ("workload.lengths.prompt_tokens=0", "workload.lengths.prompt_tokens = 0: must be a whole number between 1"),
        (
            "workload.lengths={kind='uniform', prompt_tokens=[9, 3], output_tokens=[1, 2]}",
            "workload.lengths.prompt_tokens = [9, 3]: minimum must not exceed maximum",
        ),
        (
            "workload.lengths={kind='uniform', prompt_tokens=[1, 'x'], output_tokens=[1, 2]}",
            'workload.lengths.prompt_tokens[1] = "x": must be a whole number between 1 and 1048575',
        ),
        (
            "workload.output_tokens_max={kind='cap', value=2049}",
            "workload.output_tokens_max.value = 2049: must not exceed limits.output_capacity_tokens = 2048",
        ),
        ("limits.decode_batches=[4, 2]", "limits.decode_batches = [4, 2]: must be ascending, without repeats"),
        ("limits.decode_batches=[]", "limits.decode_batches = []: must be ascending, without repeats, and not empty"),
        ("limits.decode_batches=[64]", "limits.decode_batches = [64]: the largest must reach limits.batch_max = 128"),
        (
            "limits.prefill_batches=[4]",
            "limits.prefill_batches = [4]: the largest must reach limits.prefill_batch_max = 8",
        ),
        ("frontend.poll_min_ns=30000", "frontend.poll_min_ns = 30000: must not exceed poll_max_ns = 20000"),
        ("dpu.cores=4", "dpu.token_cores = 4: must be below cores = 4"),
        ("seed=-1", "seed = -1: must be a whole number between 0 and"),
        ("name=", 'name = "": must be text, not empty'),
        ("workload=3", "workload = 3: must be a table"),
        ("trace.format=csv", 'trace.format = "csv": must be "parquet", "ndjson" or "none"'),
        ("nosuch.key=1", "nosuch: unknown key; known keys: name, description, seed"),
        ("seed=2020-01-01", "seed = 2020-01-01: must be a whole number"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(override: str, message: str) -> None:
    text = refusal(override)
    assert message in text
    assert "Traceback" not in text


@pytest.mark.parametrize(
    ("without", "message"),
    [
        ("name", "scenario.toml: name: is missing: must be text, not empty"),
        ("gpu", "scenario.toml: gpu: is missing: must be a table"),
        ("model.profile", "scenario.toml: model.profile: is missing: give profile or hf_config"),
        (
            "workload.requests",
            "scenario.toml: workload.requests: is missing: poisson arrivals need requests or duration_s",
        ),
        ("workload.arrivals", "scenario.toml: workload.arrivals: is missing: needed unless workload.trace is given"),
        ("workload.lengths", "scenario.toml: workload.lengths: is missing: needed unless workload.trace is given"),
    ],
)
def test_what_is_missing_is_named(without: str, message: str) -> None:
    assert refusal(without=without) == message


def test_the_origin_of_a_wrong_value_is_named() -> None:
    assert refusal("limits.batch_max=0").startswith("--set: limits.batch_max = 0")
    assert refusal(limits={"batch_max": 0}).startswith("scenario.toml: limits.batch_max = 0")


def test_of_several_findings_the_first_is_shown_and_the_others_counted() -> None:
    assert refusal(limits={"batch_max": 0, "window": 500, "x": 1}).endswith("between 1 and 4096 (and 2 more)")


@pytest.mark.parametrize("kind", ["all-at-once", "closed-loop"])
def test_loads_without_a_rate_end_with_requests(kind: str) -> None:
    arrivals = {"kind": kind, **({"concurrency": 4} if kind == "closed-loop" else {})}
    workload = {**SCENARIO["workload"], "arrivals": arrivals}
    parse_scenario({**SCENARIO, "workload": workload}, "s")
    assert f"workload.duration_s = 5.0: {kind} arrivals end with requests" in refusal(
        workload={**workload, "duration_s": 5.0}
    )
    del workload["requests"]
    assert f"workload.requests: is missing: {kind} arrivals need it" in refusal(workload=workload)


def test_a_trace_needs_neither_arrivals_nor_lengths() -> None:
    scenario = parse_scenario({**SCENARIO, "workload": {"trace": {"file": "x.csv"}}}, "s")
    assert scenario.workload.trace is not None
    assert scenario.workload.trace.dialect == "auto"


@pytest.mark.parametrize("text", ["limits.batch_max", "=3", ".a=3", "a..b=3"])
def test_an_override_has_a_form(text: str) -> None:
    assert refusal(text) == f"--set {text}: must have the form table.key=value"


def test_an_override_cannot_enter_a_value() -> None:
    assert refusal("seed.x=3", seed=1) == "--set seed.x=3: seed is a value, not a table"


def test_overrides_are_toml_or_text() -> None:
    scenario = parse_scenario(
        SCENARIO, "s", ["seed=7", "gpu.profile=a100-80gb", 'name="7"', "slo={tpot_ms=20}", "name=a\nseed = 3"]
    )
    assert (scenario.seed, scenario.gpu.profile, scenario.slo.tpot_ms) == (7, "a100-80gb", 20)
    assert scenario.name == "a\nseed = 3"


def test_a_syntax_error_has_its_line(file: Path) -> None:
    file.write_text('name = "x"\n[model\n', encoding="utf-8")
    with pytest.raises(InputError, match=r"scenario.toml: line 2, column 7: not TOML: Expected"):
        load_scenario(file)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"\xff\xfe", "byte 0 is not UTF-8"), (b'name = "x', "at the end: not TOML"), (b"", "name: is missing")],
)
def test_what_is_no_toml_text_is_refused(file: Path, content: bytes, message: str) -> None:
    file.write_bytes(content)
    with pytest.raises(InputError, match=message):
        load_scenario(file)


def test_an_absent_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere.toml: cannot be read: No such file"):
        load_scenario(tmp_path / "nowhere.toml")
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        load_scenario(tmp_path)


def test_paths_in_the_file_start_at_its_folder_and_overrides_do_not(file: Path) -> None:
    document = {**SCENARIO, "workload": {"trace": {"file": "traces/a.csv"}}, "gpu": {"profile": "mine/gpu.toml"}}
    file.write_text(to_toml(document), encoding="utf-8")
    scenario = load_scenario(file)
    assert scenario.workload.trace is not None
    assert Path(scenario.workload.trace.file) == file.parent / "traces/a.csv"
    assert Path(scenario.gpu.profile) == file.parent / "mine/gpu.toml"
    assert scenario.model.profile == "llama-3-8b"
    assert load_scenario(file, ["gpu.profile=here.toml"]).gpu.profile == "here.toml"


def test_a_relocated_scenario_names_the_same_files(file: Path, tmp_path: Path) -> None:
    document = {**SCENARIO, "workload": {"trace": {"file": "traces/a.csv"}}}
    file.write_text(to_toml(document), encoding="utf-8")
    run = tmp_path / "out" / "run"
    run.mkdir(parents=True)
    (run / "scenario.toml").write_text(to_toml(relocated(load_scenario(file).resolved(), run)), encoding="utf-8")
    moved = load_scenario(run / "scenario.toml").workload.trace
    assert moved is not None
    assert Path(moved.file).resolve() == (tmp_path / "traces/a.csv").resolve()


def test_nothing_can_be_changed_after_reading() -> None:
    scenario = parse_scenario(SCENARIO, "s")
    with pytest.raises(ValueError, match="frozen"):
        scenario.limits.batch_max = 3


SCALARS = st.one_of(st.booleans(), st.integers(-(2**62), 2**62), st.floats(allow_nan=False), st.text())
DOCUMENTS = st.dictionaries(
    st.text(max_size=8),
    st.recursive(
        st.one_of(SCALARS, st.lists(SCALARS, max_size=4)),
        lambda inner: st.dictionaries(st.text(max_size=5), inner, max_size=4),
    ),
    max_size=6,
)


@given(DOCUMENTS)
def test_what_the_writer_writes_tomllib_reads(document: dict[str, Any]) -> None:
    assert tomllib.loads(to_toml(document)) == document


def test_the_writer_has_no_form_for_nothing() -> None:
    with pytest.raises(TypeError, match="no form for NoneType"):
        to_toml({"a": None})


def test_every_option_is_described() -> None:
    schema = json_schema()
    tables = [schema, *schema["$defs"].values()]
    for table in tables:
        for name, field in table["properties"].items():
            target = schema["$defs"].get(field.get("$ref", "").rpartition("/")[2], {})
            described = field.get("description") or target.get("description")
            assert described or name == "kind", f"{table['title']}.{name} has no description"
            if name.endswith(("_ns", "_ms", "_s", "_tokens")) and "$ref" not in field:
                assert field.get("unit"), f"{table['title']}.{name} has no unit"


def test_the_schema_is_json_and_closed() -> None:
    schema = json.loads(json.dumps(json_schema()))
    assert schema["additionalProperties"] is False
    assert all(table["additionalProperties"] is False for table in schema["$defs"].values())


def test_the_reference_is_up_to_date() -> None:
    assert (ROOT / "docs" / "scenario.md").read_text(encoding="utf-8") == reference(), (
        "run: python -m blink.common.config.reference > docs/scenario.md"
    )


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_scenarios_are_valid_and_say_their_question(path: Path) -> None:
    scenario = load_scenario(path)
    assert scenario.name == path.stem
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("# ")
    assert "?" in path.read_text(encoding="utf-8").split("\n\n")[0], "the opening comment asks no question"


def test_there_are_shipped_scenarios() -> None:
    assert len(SHIPPED) >= 6


def test_the_serving_system_is_chosen_by_its_kind() -> None:
    resolved = parse_scenario({**SCENARIO, "system": {"kind": "vllm"}}, "s").resolved()
    assert resolved["system"] == {
        "kind": "vllm",
        "max_num_seqs": 256,
        "max_num_batched_tokens": 8192,
        "cuda_graphs": True,
        "prefix_caching": False,
        "profile": "vllm-0.13",
        "chunked_prefill": True,
    }
    for wrong, message in (
        ({"kind": "tgi"}, 'system.kind = "tgi": must be "blink", "cpu-resident", "sglang", "trtllm" or "vllm"'),
        ({"kind": "blink", "max_num_seqs": 4}, "system.max_num_seqs: unknown key; known keys: kind"),
        (
            {"kind": "vllm", "max_num_batched_tokens": 100},
            "system.max_num_batched_tokens = 100: must be at least max_num_seqs = 256",
        ),
        ({"kind": "sglang", "cuda_graphs": 1}, "system.cuda_graphs = 1: must be true or false"),
    ):
        with pytest.raises(InputError) as caught:
            parse_scenario({**SCENARIO, "system": wrong}, "s.toml")
        assert str(caught.value) == f"s.toml: {message}"
