"""One block whose layout serves many schedulers: each decides in it as it does in one of its own."""

from __future__ import annotations

import ctypes

import pytest

from blink.common.lockstep import Machine
from blink.conform.lockstep import Compared, compare_script, random_scripts
from blink.hw.native.instance import Instance, create
from blink.hw.native.library import load_library
from blink.hw.native.lockstep import LockStep, lockstep_settings
from blink.hw.native.room import has_room, larger, planned_within
from blink.hw.native.settings import NativeSettings
from tests.hw.native_help import needs_compiler, small_settings


class Roomy(Instance):
    """An instance of some settings in the layout of larger ones."""

    def __init__(self, room: NativeSettings, settings: NativeSettings) -> None:
        super().__init__(load_library(), room)
        ctypes.memset(self.base, 0, int(self.config["total_bytes"][0]))
        self.config, self.settings = planned_within(self.library, room, settings), settings
        create(self.library, settings, self.config, self.base)


@needs_compiler
def test_a_scheduler_in_a_larger_layout_decides_as_in_its_own() -> None:
    scripts = list(random_scripts(seed=3, count=60))
    room = lockstep_settings(scripts[0].machine)
    for script in scripts:
        room = larger(room, lockstep_settings(script.machine))
    assert all(has_room(room, lockstep_settings(script.machine)) for script in scripts)

    def within(machine: Machine) -> LockStep:
        return LockStep(lockstep_settings(machine), open_ring=lambda settings: Roomy(room, settings))

    def alone(machine: Machine) -> LockStep:
        return LockStep(lockstep_settings(machine))

    tally = Compared()
    for script in scripts:
        difference = compare_script(("within", "alone"), (within, alone), script, tally)
        assert difference is None, "\n".join(difference.lines())
    assert tally.decisions > 10 * len(scripts)


@needs_compiler
@pytest.mark.parametrize(
    "changes", [{"kv_block_count": 41}, {"batch_max": 5}, {"output_capacity_tokens": 17}, {"block_tokens": 2}]
)
def test_settings_that_need_more_room_are_refused(changes: dict[str, int]) -> None:
    room = larger(small_settings(), small_settings())
    assert has_room(room, small_settings())
    assert not has_room(room, small_settings(**changes))
    with pytest.raises(ValueError, match="need more room"):
        planned_within(load_library(), room, small_settings(**changes))
