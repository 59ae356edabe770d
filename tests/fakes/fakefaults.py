# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What happens to simulated cards while they run: events, load, a driver that hangs, resets.

Standard library alone: fakegpu takes this file into its machine.
"""

import time
from collections.abc import Callable
from pathlib import Path

import fakecards
import fakekmsg

# nvml.h, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
RECOVERY_ACTION = "field-230"
EVENT_XID = 0x8
EVENT_RECOVERY = 0x8000
# What one more percent of load adds to an idle card.
IDLE_MW, MW_A_PERCENT = 60000, 3400
IDLE_CELSIUS, CELSIUS_A_PERCENT = 35, 0.35
IDLE_MHZ, BUSY_MHZ = 210, 1410
# A reset ends what these tell.
RESET_ENDS = (
    *("fault", "ecc-corrected-volatile", "ecc-uncorrected-volatile", "sram-corrected-volatile"),
    *("sram-uncorrected-volatile", "remapped-rows-pending", "retired-pages-pending"),
    *("throttle-reasons", RECOVERY_ACTION),
)


class FaultError(Exception):
    """What was asked for can't be done; a reset's is worded as nvidia-smi's own."""


def uptime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def event(state: Path, card: int, kind: int, data: int = 0, instances: tuple[int, ...] = ()):
    """Tells whoever waits for NVML's events; of a MIG device with its two instances."""
    with (state / "events").open("a") as file:
        print(card, hex(kind), data, *instances, file=file)


def hang(state: Path, seconds: float | None):
    """From now on no call into NVML returns: for so many seconds, or until `unhang`."""
    fakecards.put(state / "hang", "" if seconds is None else f"{uptime() + seconds:.3f}")


def unhang(state: Path):
    (state / "hang").unlink(missing_ok=True)


def set_power(card: Path, milliwatts: int):
    """What the card draws from now on; the energy that it has drawn stays."""
    number = {name: fakecards.get(card, name) for name in ("energy-mj", "energy-at", "power-mw")}
    now, drawn = uptime(), int(number["energy-mj"] or 0)
    drawn += int((now - float(number["energy-at"] or 0)) * int(number["power-mw"] or IDLE_MW))
    # The library's uptime has whole seconds here: what is cut off would be counted twice.
    drawn -= int((now % 1) * milliwatts)
    for name, value in (("energy-mj", drawn), ("energy-at", int(now)), ("power-mw", milliwatts)):
        fakecards.put(card / name, str(value))


def busy(card: Path, percent: int):
    """As under a load."""
    set_power(card, IDLE_MW + percent * MW_A_PERCENT)
    values = {
        "utilisation": percent,
        "temperature": IDLE_CELSIUS + int(percent * CELSIUS_A_PERCENT),
        "sm-clock-mhz": BUSY_MHZ if percent else IDLE_MHZ,
        "throttle-reasons": "0x0" if percent else "0x1",
    }
    for name, value in values.items():
        fakecards.put(card / name, str(value))


def reset(state: Path, log: Path, card: Path):
    """As `nvidia-smi --gpu-reset`.

    Args:
        state: of all cards.
        log: the kernel's, which tells that a recovery that was asked for is over.
        card: whose.

    Raises:
        FaultError: somebody uses the card, or it is to refuse.
    """
    users = fakecards.get(card, "processes") or fakecards.get(card, "graphics-processes")
    if users or fakecards.get(state, "refuse-reset"):
        pci = fakecards.get(card, "pci").upper()
        raise FaultError(
            f"GPU {pci} is currently in use by another process.\n\n1 device is currently being "
            "used by one or more other processes (e.g., Fabric Manager, CUDA application, "
            "graphics application such as an X server, or a monitoring application such as "
            "another instance of nvidia-smi)."
        )
    wanted = fakecards.get(card, RECOVERY_ACTION, "0") not in ("", "0")
    for name in RESET_ENDS:
        (card / name).unlink(missing_ok=True)
    fakecards.put(card / "fault", "")
    if wanted:
        event(state, int(card.name), EVENT_RECOVERY)
        text = "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
        fakekmsg.say(log, fakekmsg.xid(fakecards.get(card, "pci"), 154, text))


def booted(card: Path):
    """The driver is loaded anew: what it asked for is done. A card that is lost stays so."""
    (card / RECOVERY_ACTION).unlink(missing_ok=True)


def add_commands(command: Callable, state: Path, log: Path):
    """The commands of fakegpu that this file is for.

    Args:
        command: adds one, by its name, function, help and `card` where it takes one.
        state: where the cards' state lies.
        log: the kernel's log.
    """

    def card_at(options) -> Path:
        directory = state / "gpus" / str(options.card)
        if not directory.is_dir():
            raise FaultError(f"There is no card {options.card}.")
        return directory

    def tell(options):
        card_at(options)
        event(state, options.card, options.type, options.data, tuple(options.instances))

    def load(options):
        if not 0 <= options.percent <= 100:
            raise FaultError(f"PERCENT is 0 to 100, not {options.percent}.")
        busy(card_at(options), options.percent)

    def fill(options):
        fakecards.put(card_at(options) / "memory-used-mib", str(options.mib))

    def mend(options):
        names = {path.name: path for path in (state / "gpus").iterdir()}
        names |= {fakecards.get(path, "uuid"): path for path in names.values()}
        if options.which not in names:
            raise FaultError(f"There is no card {options.which}.")
        reset(state, log, names[options.which])
        pci = fakecards.get(names[options.which], "pci").upper()
        print(f"GPU {pci} was successfully reset.\nAll done.")

    def refuse(options):
        fakecards.put(state / "refuse-reset", "on" if options.state == "on" else "")

    sub = command("event", tell, "an event of NVML's on card N", "card")
    sub.add_argument("type", type=number, metavar="TYPE", help="nvmlEventType, such as 0x2000")
    sub.add_argument("data", type=number, nargs="?", default=0, metavar="DATA")
    sub.add_argument(
        "instances", type=int, nargs="*", metavar="INSTANCE", help="GPU's and compute's, of MIG"
    )
    sub = command("busy", load, "card N computes so much of the time", "card")
    sub.add_argument("percent", type=int, metavar="PERCENT")
    sub = command("memory", fill, "so much of card N's memory is taken", "card")
    sub.add_argument("mib", type=int, metavar="MIB")
    sub = command(
        "hang", lambda o: hang(state, o.seconds), "no call into NVML returns, until unhang"
    )
    sub.add_argument("seconds", type=float, nargs="?", metavar="SECONDS", help="or for so long")
    command("unhang", lambda _: unhang(state), "calls into NVML return again")
    sub = command("reset", mend, "reset a card, as nvidia-smi --gpu-reset does")
    sub.add_argument("which", metavar="N|UUID")
    sub = command("refuse-reset", refuse, "resets fail: somebody uses the card")
    sub.add_argument("state", choices=("on", "off"), nargs="?", default="on")


def number(text: str) -> int:
    return int(text, 0)
