"""The model of a busy thread's turns against this project's own H200 arrays, and measurements of the user's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from blink.common.errors import InputError
from blink.common.results import I64
from blink.common.units import NS_PER_US
from blink.perf.host.conditions import HostConditions, conditions
from blink.perf.host.interference import Interference, InterfererProfile, Job
from blink.perf.host.measured import MeasuredWork
from blink.perf.host.operation import HostOp
from blink.perf.host.thread import CpuThread
from tests.shared import shared_path
from tests.unit.host_cases import NODE, NOTHING, XEON

LAUNCH_NS, COPY_NS = 2_000, 45_000
"""CPU work around a step: the launch call (device launch log), and what the undisturbed host loop takes beyond the
device loop at batch 1, 5.883 - 5.831 ms, less the launch."""

SLICE_NS = 4_000_000

# Batch, layers, name of the array, busy processes. The runs were made in this order and each "interfered" one started
# 32 processes. Those of the run before were not gone yet, as the notes on the measurements say: hence 32 in the
# "isolated" arrays from batch 16 on, and 64 in the "interfered" ones. Only batch 1 is certain.
ARRAYS = [
    (1, 32, "isolated", 0),
    (1, 32, "interfered", 32),
    (16, 32, "isolated", 32),
    (16, 32, "interfered", 64),
    (64, 32, "interfered", 64),
    (16, 4, "isolated", 32),
    (16, 4, "interfered", 64),
]


def beside(processes: int) -> HostConditions:
    jobs = Interference((Job(InterfererProfile.load("bz2-fault"), processes),))
    return conditions(NODE, jobs, NOTHING, 1)


def host_loop(found: HostConditions, device_ns: int, steps: int) -> I64:
    """Periods of a loop that launches, spins for the GPU, and copies back."""
    thread, now, periods = CpuThread(found, np.random.default_rng(1)), 0, []
    for _ in range(steps):
        start = now
        now = thread.run(now, HostOp.LAUNCH, LAUNCH_NS)
        now = thread.spin_until(now, now + device_ns)
        now = thread.run(now, HostOp.SYNC_COPY, COPY_NS)
        periods.append(now - start)
    return np.array(periods, np.int64)


def arrays(batch: int, layers: int, name: str) -> tuple[int, NDArray[np.float64]]:
    """The device's median step and the host's periods, in ns."""
    with np.load(shared_path(f"measurements/steps_b{batch}_t1024_l{layers}_{name}.npz")) as file:
        return round(float(np.median(file["device"])) * NS_PER_US), file["host"] * NS_PER_US


@pytest.mark.parametrize(("batch", "layers", "name", "processes"), ARRAYS)
def test_the_mean_period_of_the_host_loop_is_predicted(batch: int, layers: int, name: str, processes: int) -> None:
    device_ns, measured = arrays(batch, layers, name)
    model = host_loop(beside(processes), device_ns, 10_000)
    assert float(model.mean()) == pytest.approx(float(measured.mean()), rel=0.15)
    assert float(np.median(model)) == pytest.approx(float(np.median(measured)), rel=0.05)


@pytest.mark.parametrize(("batch", "layers", "name", "processes"), [row for row in ARRAYS[1:] if row[1] == 32])
def test_periods_lie_on_multiples_of_the_slice(batch: int, layers: int, name: str, processes: int) -> None:
    device_ns, measured = arrays(batch, layers, name)
    model = host_loop(beside(processes), device_ns, 10_000)
    assert _share_on_lattice(measured, device_ns) > 0.95
    # The model lets the number of competitors change from turn to turn, the machine less often: a turn without any
    # ends a period where the GPU ends, and the next one begins there.
    assert _share_on_lattice(model, device_ns) > 0.75


def _share_on_lattice(periods: NDArray[np.float64] | I64, device_ns: int) -> float:
    late = periods[periods > 1.1 * device_ns]  # the others were seen at once
    off = np.abs(late - SLICE_NS * np.rint(late / SLICE_NS))
    return float(np.count_nonzero(off < 0.05 * SLICE_NS)) / len(late)


def test_a_thread_alone_sees_its_gpu_at_once() -> None:
    periods = host_loop(beside(0), 1_000_000, 2_000)
    assert int(np.median(periods)) == 1_000_000 + LAUNCH_NS + COPY_NS
    assert int(periods.min()) >= 1_000_000 + LAUNCH_NS + COPY_NS


# --- a file of measurements ---


def write(folder: Path, rows: list[str], head: str = "base_ns,elapsed_ns") -> Path:
    path = folder / "mine.csv"
    path.write_text("\n".join([head, *rows]) + "\n", encoding="utf-8")
    return path


def test_measurements_give_a_slow_down_and_stalls(tmp_path: Path) -> None:
    found = MeasuredWork.read(write(tmp_path, ["1000,1500"] * 99 + ["1000,5001500"]))
    assert found.inflation == pytest.approx(1.5)
    assert found.stall_lengths_ns == pytest.approx((5_000_000.0,))
    assert found.stalls_per_s == pytest.approx(1 / 150e-6)  # one in 100 stretches of 1.5 us
    state = conditions(XEON, Interference(measured=(found,)), NOTHING, 6, reserved_cores=6)
    assert state.inflation[HostOp.HTTP] == pytest.approx(1.5)
    # Together they give back the mean of what was measured.
    quiet = conditions(XEON, Interference(), NOTHING, 6, reserved_cores=6)
    mean = state.mean_op_ns(HostOp.HTTP, 1000) - 1500 * quiet.stall.load
    assert mean == pytest.approx((99 * 1500 + 5_001_500) / 100, rel=1e-3)


@pytest.mark.parametrize(
    ("rows", "head", "message"),
    [
        (["1,2"], "base,elapsed", "line 1: 'base,elapsed'; allowed: the columns base_ns,elapsed_ns"),
        ([], "base_ns,elapsed_ns", "no rows"),
        (["1,2", "1,x"], "base_ns,elapsed_ns", "line 3: '1,x'"),
        (["0,2"], "base_ns,elapsed_ns", "line 2: '0,2'"),
        (["1,2,3"], "base_ns,elapsed_ns", "line 2: '1,2,3'"),
    ],
)
def test_a_wrong_file_is_refused_by_its_line(tmp_path: Path, rows: list[str], head: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        MeasuredWork.read(write(tmp_path, rows, head))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.csv: cannot be read"):
        MeasuredWork.read(tmp_path / "none.csv")
