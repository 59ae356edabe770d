# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A simulated kernel log: a file of /dev/kmsg's records, there until the machine stops.

Standard library alone: fakegpu takes this file into its machine.
"""

import time
from collections.abc import Callable
from pathlib import Path

DEVICE = Path("/dev/kmsg")
# What the driver says after some codes; process and channel as in a program's own mistake.
TEXTS = {
    13: "pid=4711, name=python3, Graphics SM Warp Exception on (GPC 7, TPC 7, SM 0): "
    "Illegal Instruction Parameter",
    31: "pid=4711, name=python3, Ch 0000000a, intr 00000000. MMU Fault: ENGINE GRAPHICS "
    "GPC2 GPCCLIENT_T1_7 faulted @ 0x2b57_b3000000. Fault is of type FAULT_PDE "
    "ACCESS_TYPE_VIRT_WRITE",
    48: "pid='<unknown>', name=<unknown>, An uncorrectable double bit error (DBE) has been "
    "detected on GPU in the framebuffer at physical address 0x0 partition 0, subpartition 0.",
    79: "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    154: "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
}


def begin(log: Path):
    """Empties the log, as a reboot does."""
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("5,0,0,-;Linux version 6.8.0 (simulated)\n")


def lay(log: Path, run: Callable[..., None]):
    """Has /dev/kmsg show the log; `run` starts a program."""
    if not log.exists():
        begin(log)
    if not DEVICE.exists():
        DEVICE.touch()
    if not DEVICE.samefile(log):
        run("/bin/mount", "--bind", str(log), str(DEVICE))
        # systemd would write its own messages over ours.
        run("/bin/mount", "-o", "remount,bind,ro", str(DEVICE))


def say(log: Path, message: str):
    """Adds one record, as the kernel writes them (Documentation/ABI/testing/dev-kmsg)."""
    number = log.read_text().count("\n")
    plain = {*range(32, 127)} - {*b"\\"}
    raw = message.encode(errors="surrogateescape")
    escaped = "".join(chr(byte) if byte in plain else f"\\x{byte:02x}" for byte in raw)
    with log.open("a") as file:
        file.write(f"3,{number},{time.monotonic_ns() // 1000},-;{escaped}\n")


def xid(pci: str, code: int, text: str = "") -> str:
    """What the driver writes of an Xid on the card with this PCI address."""
    said = text or TEXTS.get(code, "pid='<unknown>', name=<unknown>")
    return f"NVRM: Xid (PCI:{pci.rpartition('.')[0]}): {code}, {said}"
