"""A verbs device, opened: its context, its protection domain, and the address by which others reach it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blink.common.errors import InputError
from blink.hw.verbs.binding import Binding, load

PORT = 1
SYSFS = Path("/sys/class/infiniband")
_NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"
_MAPPED_IPV4 = "0000:0000:0000:0000:0000:ffff:"


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """Which device and which of its addresses; None: the first device, the first RoCE v2 address over IPv4."""

    name: str | None = None
    gid_index: int | None = None


ANY_DEVICE = DeviceChoice()


def device_names(binding: Binding | None = None) -> list[str]:
    """The verbs devices of this machine. Raises InputError without pyverbs."""
    try:
        found = (binding or load()).get_device_list()
    except Exception:  # without a device, and without the kernel's module, pyverbs raises or returns an empty list
        return []
    return sorted(device.name.decode() for device in found or ())


class Device:
    """An opened device. `close` it after everything that was made of it. Raises InputError if there is none."""

    def __init__(self, choice: DeviceChoice = ANY_DEVICE, binding: Binding | None = None) -> None:
        self.binding = binding or load()
        self.enums: Any = self.binding.enums
        self.name = _chosen(choice.name, device_names(self.binding))
        try:
            self.context = self.binding.Context(name=self.name)
        except Exception as error:
            raise InputError(f"--device {self.name}: it cannot be opened ({error})") from None
        self.port = self.context.query_port(PORT)
        if self.port.state != self.enums.IBV_PORT_ACTIVE:
            raise InputError(f"--device {self.name}: its port is not active; bring its network interface up")
        self.attributes = self.context.query_device()
        self.gid_index = self._gid_index(choice.gid_index)
        self.gid = str(self.context.query_gid(PORT, self.gid_index).gid)
        self.domain = self.binding.PD(self.context)

    @property
    def is_ethernet(self) -> bool:
        """RoCE: packets are addressed by GID. Else InfiniBand, where a LID does it within a subnet."""
        return bool(self.port.link_layer == self.enums.IBV_LINK_LAYER_ETHERNET)

    @property
    def read_depth(self) -> int:
        """READs and atomics of one queue pair that may be under way at once, at either end."""
        return int(min(self.attributes.max_qp_rd_atom, 16))

    def _gid_index(self, asked: int | None) -> int:
        count = int(self.port.gid_tbl_len)
        if asked is not None:
            if not 0 <= asked < count:
                raise InputError(
                    f"--gid-index: {asked} is not allowed; allowed: 0 to {count - 1}, as device {self.name} has"
                )
            return asked
        best = (-1, 0)
        for index in range(count):
            try:
                gid = str(self.context.query_gid(PORT, index).gid)
            except Exception:  # a gap in the table, or its end
                break
            if gid != _NO_GID:
                best = max(best, (_gid_score(self.name, index, gid), -index))
        if best[0] < 0:
            raise InputError(f"--device {self.name}: it has no address yet; give its network interface one")
        return -best[1]

    def close(self) -> None:
        """Give it back. Memory and queue pairs of it must be closed before."""
        self.domain.close()
        self.context.close()


def _gid_score(name: str, index: int, gid: str) -> int:
    """RoCE v2 is routable and survives the change of a MAC address; an IPv4 address is what people configure."""
    kind = SYSFS / name / "ports" / str(PORT) / "gid_attrs" / "types" / str(index)
    try:
        is_v2 = "v2" in kind.read_text()
    except OSError:  # InfiniBand, or no sysfs
        is_v2 = False
    return 2 * is_v2 + gid.startswith(_MAPPED_IPV4)


def _chosen(asked: str | None, names: list[str]) -> str:
    if not names:
        raise InputError(
            "there is no RDMA device: an RDMA adapter is needed, or Soft-RoCE over a network interface (modprobe "
            "rdma_rxe; rdma link add rxe0 type rxe netdev NAME); see docs/rdma.md"
        )
    if asked is not None and asked not in names:
        raise InputError(f"--device: {asked!r} is not allowed; allowed: {', '.join(names)}")
    return asked or names[0]
