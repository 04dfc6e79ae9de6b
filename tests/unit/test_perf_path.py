"""The DPU's costs and the links between client and GPU memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from blink.common.errors import InputError
from blink.common.profile import SHIPPED, list_profiles
from blink.perf.dpu import DpuProfile
from blink.perf.link import LinkProfile

DPU = DpuProfile.load("bluefield-3")


def test_tokenizer_is_as_much_faster_as_published() -> None:
    assert DPU.core_count == 16
    assert 8.0 <= DPU.tokenizer_speedup <= 19.7
    assert pytest.approx((8.0 * 19.7) ** 0.5, rel=0.001) == DPU.tokenizer_speedup
    assert DPU.tokenize_ns(1019) == pytest.approx(1019 * 2800 / 12.55, abs=1)
    assert DPU.tokenize_ns(0) == 0
    assert DPU.detokenize_ns(10) == 1500


def test_topologies() -> None:
    separate, local = LinkProfile.load("separate-dpu"), LinkProfile.load("local-dpu")
    assert separate.nodes == ("client", "dpu", "nic", "gpu")
    assert local.nodes == ("client", "dpu", "switch", "gpu")
    assert [hop.name for hop in separate.between("dpu", "gpu")] == ["dpu-nic", "nic-gpu"]
    assert separate.between("dpu", "dpu") == ()


@pytest.mark.parametrize("name", [name for name in list_profiles("link") if name != "none"])  # which has no way
def test_a_small_write_takes_about_a_microsecond(name: str) -> None:
    hops = LinkProfile.load(name).between("dpu", "gpu")
    assert 500 <= sum(hop.one_way_ns(64) for hop in hops) <= 2_000


def test_the_local_path_is_the_shorter() -> None:
    def whole(name: str, size: int) -> int:
        return sum(hop.one_way_ns(size) for hop in LinkProfile.load(name).between("dpu", "gpu"))

    for size in (1, 64, 65536):
        assert whole("local-dpu", size) < whole("separate-dpu", size)


def test_one_way_by_hand() -> None:
    hop = LinkProfile.load("separate-dpu").hops[1]
    assert hop.one_way_ns(0) == 800
    assert hop.one_way_ns(65536) == 800 + 2675  # 65536 bytes at 24.5 GB/s, rounded up
    assert hop.shared is False
    assert LinkProfile.load("separate-dpu").hops[2].shared is True


def test_between_refusals() -> None:
    link = LinkProfile.load("local-dpu")
    with pytest.raises(InputError, match="device: 'nic' is not allowed; allowed: client, dpu, switch, gpu"):
        link.between("dpu", "nic")
    with pytest.raises(InputError, match="gpu comes after dpu"):
        link.between("gpu", "dpu")


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ('from = "nic"', 'from = "switch"', "hop nic-gpu: from: 'switch' is not allowed; allowed: nic"),
        ('to = "gpu"', 'to = "cpu"', "must begin at client, pass dpu and end at gpu"),
        ("shared = true", 'shared = "yes"', "hop 2.shared: 'yes' is not allowed; allowed: true, false"),
        ("shared = true", "colour = 1", "hop 2 key: 'colour' is not allowed"),
        ('name = "dpu-nic"', 'name = "nic-gpu"', "hop: name: .*allowed: each one once"),
        ('name = "dpu-nic"', "name = 4", "hop 1.name: 4 is not allowed"),
        ("value = 800,", "value = -1,", "hop 1.latency_ns.value: -1 is not allowed; allowed: at least 0"),
        ("value = 24500000000,", "value = 0,", "hop 1.bandwidth_bytes_per_s.value: 0 is not allowed"),
        ('unit = "ns"', 'unit = "ms"', "latency_ns.unit: 'ms' is not allowed; allowed: ns"),
        ("[[hop]]", "[hop]", "hop: .*is not an array of tables|not valid TOML"),
        (
            'kind = "assumed"\n',
            'kind = "assumed"\nconstants = { a = { value = 1, unit = "x", source = "y" } }\n',
            "constants",
        ),
    ],
)
def test_link_refusals(tmp_path: Path, before: str, after: str, says: str) -> None:
    text = (SHIPPED / "link" / "separate-dpu.toml").read_text()
    assert before in text
    path = tmp_path / "mine.toml"
    path.write_text(text.replace(before, after))
    with pytest.raises(InputError, match=says):
        LinkProfile.load(path)


def test_an_empty_path_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('profile = "link"\nname = "mine"\ndescription = "nothing"\n')
    with pytest.raises(InputError, match="must begin at client"):
        LinkProfile.load(path)
