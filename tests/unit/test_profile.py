"""Profiles: every shipped constant says what it is and where it is from; a wrong file is refused in one clear line."""

from __future__ import annotations

from pathlib import Path

import pytest

from blink.common.errors import InputError
from blink.common.profile import CONSTANT_KINDS, PROFILE_KINDS, RANGED_KINDS, Constant, list_profiles, load_profile
from blink.perf.dpu import DpuProfile
from blink.perf.energy import PowerProfile, PriceProfile
from blink.perf.engine import EngineProfile
from blink.perf.fabric import FabricProfile
from blink.perf.fleet import FleetProfile
from blink.perf.gpu import GpuProfile
from blink.perf.host.colocation import Colocation
from blink.perf.host.interference import InterfererProfile
from blink.perf.host.operation import OpCharacter
from blink.perf.host.profile import HostProfile
from blink.perf.host_engine import HostEngineProfile
from blink.perf.link import LinkProfile
from blink.perf.shape import ModelShape
from blink.serve.real_time import RealTime
from blink.workload.lengths_profile import LengthsProfile
from blink.workload.message import MessageProfile

SHIPPED = [(kind, name) for kind in PROFILE_KINDS for name in list_profiles(kind)]
TYPED = {
    "gpu": GpuProfile,
    "model": ModelShape,
    "engine": EngineProfile,
    "dpu": DpuProfile,
    "lengths": LengthsProfile,
    "link": LinkProfile,
    "message": MessageProfile,
    "host-engine": HostEngineProfile,
    "host": HostProfile,
    "operation": OpCharacter,
    "interferer": InterfererProfile,
    "colocation": Colocation,
    "power": PowerProfile,
    "price": PriceProfile,
    "fleet": FleetProfile,
    "fabric": FabricProfile,
    "server": RealTime,
}


def constants_of(kind: str, name: str) -> list[Constant]:
    if kind == "link":
        return [constant for hop in LinkProfile.load(name).hops for constant in hop.constants]
    return list(load_profile(kind, name).constants.values())


def test_the_promised_profiles_are_shipped() -> None:
    assert list_profiles("gpu") == ["a100-80gb", "h100-80gb", "h100-96gb", "h200", "l40s", "rtx4090"]
    assert list_profiles("model") == [
        "bloom-176b",
        "llama-2-70b",
        "llama-3-70b",
        "llama-3-8b",
        "llama-3.1-8b",
        "phi-4",
        "qwen3-30b-a3b",
        "qwen3-32b",
        "smollm2-135m",
    ]
    assert list_profiles("dpu") == ["bluefield-3", "none"]
    assert list_profiles("link") == ["local-dpu", "none", "separate-dpu"]
    assert list_profiles("host-engine") == ["cpu-resident", "sglang-0.5.8", "trtllm-1.1", "vllm-0.13", "vllm-0.19"]


@pytest.mark.parametrize(("kind", "name"), SHIPPED)
def test_every_shipped_constant_has_unit_source_kind_and_range(kind: str, name: str) -> None:
    TYPED[kind].load(name)  # type: ignore[attr-defined]  # units, limits and presence
    found = constants_of(kind, name)
    assert found
    for constant in found:
        assert constant.unit
        assert constant.kind in CONSTANT_KINDS
        assert len(constant.source) > 8, constant.name
        if constant.kind in RANGED_KINDS:
            assert constant.range, constant.name


@pytest.mark.parametrize("name", [name for name in list_profiles("gpu") if name != "h200"])
def test_other_gpus_claim_no_measurement(name: str) -> None:
    """Only the H200 was measured: what another GPU takes from it is assumed, and says so."""
    constants = load_profile("gpu", name).constants
    assert {constant.kind for constant in constants.values()} == {"assumed", "published"}
    carried = constants["kernel_floor_ns"]
    assert carried.source.startswith("carried over from")
    assert "fitted there" in carried.source
    assert carried.range["batch"] == (1, 128)


def test_no_constant_depends_on_a_model_name() -> None:
    shapes = [ModelShape.load(name).name for name in list_profiles("model")]
    for kind in ("gpu", "engine"):
        for name in list_profiles(kind):
            assert not [key for key in load_profile(kind, name).constants for shape in shapes if shape in key]


GPU_TEXT = """
profile = "gpu"
name = "mine"
description = "a card of my own"
carry_over = "h200"
[constants]
{line}
"""


def write_gpu(folder: Path, line: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(GPU_TEXT.format(line=line))
    return path


def test_a_user_profile_by_path(tmp_path: Path) -> None:
    line = 'memory_bytes = { value = 1000, unit = "bytes", kind = "assumed", source = "my own card" }'
    gpu = GpuProfile.load(write_gpu(tmp_path, line))
    assert gpu.memory_bytes == 1000
    assert gpu.launch_ns == GpuProfile.load("h200").launch_ns
    assert gpu.constants["launch_ns"].kind == "assumed"


GOOD = 'unit = "ns", kind = "assumed", source = "my own card"'
RANGED = 'launch_ns = { value = 5, unit = "ns", kind = "measured", source = "mine", range = '


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("launch_ns = 5", ["constants.launch_ns", "5"]),
        (f"lunch_ns = {{ value = 5, {GOOD} }}", ["'lunch_ns'", "launch_ns"]),
        (f"launch_ns = {{ value = 5, {GOOD}, sauce = 1 }}", ["'sauce'", "source"]),
        (f"launch_ns = {{ value = -5, {GOOD} }}", ["constants.launch_ns.value", "-5", "at least 0"]),
        (f"launch_ns = {{ value = 5.5, {GOOD} }}", ["constants.launch_ns.value", "5.5", "int"]),
        (f"launch_ns = {{ value = nan, {GOOD} }}", ["constants.launch_ns.value", "nan"]),
        (f"launch_ns = {{ value = true, {GOOD} }}", ["constants.launch_ns.value", "True", "int"]),
        (f'launch_ns = {{ value = "5", {GOOD} }}', ["constants.launch_ns.value", "'5'"]),
        ('launch_ns = { value = 5, unit = "us", kind = "assumed", source = "x" }', [".unit", "'us'", "allowed: ns"]),
        ('launch_ns = { value = 5, unit = "ns", kind = "guess", source = "x" }', [".kind", "'guess'", "published"]),
        ('launch_ns = { value = 5, unit = "ns", kind = "assumed" }', [".source", "None"]),
        ('launch_ns = { value = 5, unit = "ns", kind = "measured", source = "x" }', [".range", "missing"]),
        (RANGED + "{ batch = [2, 1] } }", [".range.batch", "[2, 1]"]),
        (RANGED + "{ colour = [1, 2] } }", ["'colour'", "batch"]),
        (f"launch_ns = {{ value = 5, {GOOD}", ["not valid TOML"]),
        (f"launch_ns = {{ value = 5, {GOOD}, range = 3 }}", [".range", "3", "not a table"]),
    ],
)
def test_a_wrong_constant_is_refused(tmp_path: Path, line: str, says: list[str]) -> None:
    path = write_gpu(tmp_path, line)
    with pytest.raises(InputError) as caught:
        GpuProfile.load(path)
    message = str(caught.value)
    assert "\n" not in message
    for part in [str(path), *says]:
        assert part in message


def test_a_missing_constant_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GPU_TEXT.format(line="").replace('carry_over = "h200"', ""))
    with pytest.raises(InputError, match=r"constants\.memory_bytes: missing; needed with unit 'bytes'"):
        GpuProfile.load(path)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("h300", "'h300' is not allowed; allowed: a100-80gb, .*or the path of a .toml file"),
        ("nowhere/h300.toml", "cannot be read"),
    ],
)
def test_an_unknown_profile_is_refused(name: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        GpuProfile.load(name)


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ('profile = "gpu"', 'profile = "dpu"', "profile: 'dpu' is not allowed; allowed: gpu"),
        ("[constants]", "constants = 3", "constants: 3 is not a table"),
        ("[constants]", "hop = 3", "hop: 3 is not an array of tables"),
        ('name = "mine"', "name = 3", "name: 3 is not allowed"),
        ('description = "a card of my own"', "colour = 1", "key: 'colour' is not allowed"),
        ('carry_over = "h200"', 'carry_over = "mine"', "carry_over: 'mine' is not allowed"),
        ('carry_over = "h200"', 'carry_over = "h300"', "'h300' is not allowed"),
        ('carry_over = "h200"', 'kind = "guess"', "kind: 'guess' is not allowed"),
    ],
)
def test_a_wrong_head_is_refused(tmp_path: Path, before: str, after: str, says: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GPU_TEXT.format(line="").replace(before, after))
    with pytest.raises(InputError, match=says):
        GpuProfile.load(path)


def test_an_unknown_kind_of_profile_is_refused() -> None:
    with pytest.raises(InputError, match="'cpu' is not allowed; allowed: gpu, model, engine, dpu, link"):
        list_profiles("cpu")
