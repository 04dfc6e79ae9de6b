"""What an adapter does, looked at before anything relies on it. What would be unsafe is refused."""

from __future__ import annotations

import os

from blink.common.errors import InputError
from blink.hw.native.memory import SharedBlock
from blink.hw.verbs.channel import COMPLETION_LIMIT_S, Channel
from blink.hw.verbs.device import Device
from blink.hw.verbs.failure import ConnectionFailedError, NoCompletionError
from blink.hw.verbs.memory import register
from blink.hw.verbs.patience import Patience

ORDER_ROUNDS = 64
_PAYLOAD_BYTES = 65_536
_PAGE_BYTES = 4096
"""Areas of the ring begin at multiples of it."""


def probe(device: Device) -> dict[str, str]:
    """What was found, by name, for people. Raises InputError for an adapter over which the protocol is not safe."""
    enums, attributes = device.enums, device.attributes
    if device.read_depth < 1:
        raise InputError(f"--device {device.name}: it answers no READs (max_qp_rd_atom is 0)")
    page = os.sysconf("SC_PAGE_SIZE")
    pages = int(attributes.page_size_cap)
    if pages and not pages & (page | page - 1):
        raise InputError(f"--device {device.name}: it takes no pages of {page} bytes (page_size_cap {pages:#x})")
    atomics = {
        int(enums.IBV_ATOMIC_NONE): "none",
        int(enums.IBV_ATOMIC_HCA): "among its own verbs",
        int(enums.IBV_ATOMIC_GLOB): "with the processor, too",
    }
    return {
        "device": device.name,
        "address": f"{device.gid} (GID index {device.gid_index})" if device.is_ethernet else f"LID {device.port.lid}",
        "MTU": str(128 << int(device.port.active_mtu)),
        "READs at once": str(device.read_depth),
        "atomics": atomics.get(int(attributes.atomic_caps), "unknown"),
        "pages": f"{page} bytes, areas at multiples of {_PAGE_BYTES}",
        "relaxed ordering": "never asked for",
        "WRITE order": check_order(device),
    }


def check_order(device: Device, rounds: int = ORDER_ROUNDS, limit_s: float = COMPLETION_LIMIT_S) -> str:
    """T1 on this device: a payload of 64 KiB, then a word, posted together; who sees the word must see the payload.

    Host memory and a loop within the adapter: it says nothing of memory behind another PCIe path. Raises InputError if
    the order is broken once.
    """
    block = SharedBlock(_PAYLOAD_BYTES + 8)
    registration = register(device, block.address, block.size_bytes, writable=True)
    sender, answerer = Channel(device), Channel(device)
    try:
        sender.connect(answerer.address)
        answerer.connect(sender.address)
        for number in range(1, rounds + 1):
            payload = number.to_bytes(8, "little") * (_PAYLOAD_BYTES // 8)
            sender.write(registration.region, 0, payload)
            sender.write(registration.region, _PAYLOAD_BYTES, number.to_bytes(8, "little"))
            sender.post()
            patience, is_last = Patience(limit_s), False
            while bytes(block.view(_PAYLOAD_BYTES, 8)) != number.to_bytes(8, "little"):
                if is_last:
                    raise NoCompletionError("WRITE", f"nothing arrived within {limit_s:g} s")
                is_last = patience.over()
                sender.reap()
            if bytes(block.view(0, _PAYLOAD_BYTES)) != payload:
                raise InputError(f"--device {device.name}: a WRITE overtook the one before it: T1 is not safe over it")
            sender.flush()
    except ConnectionFailedError as error:
        raise InputError(f"--device {device.name}: it does not reach itself ({error})") from None
    finally:
        sender.close()
        answerer.close()
        registration.close()
        block.close()
    return f"kept in {rounds} of {rounds} rounds of 64 KiB and a word"
