# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Read the Xids that NVIDIA's driver wrote into the kernel log since the machine started.

Only the beginning of a record shows who wrote it. A container can choose later parts, such as the
file name of a program that crashed, newlines included. It can't choose the beginning: if the
kernel begins with the name of a process or a network device, that has 15 characters at most (Linux
TASK_COMM_LEN, IFNAMSIZ), and the driver's texts here are longer. Containers can't set prefixes of
netfilter's log (net.netfilter.nf_log_all_netns is 0), and a record written to /dev/kmsg never has
the kernel's facility.
"""

import collections.abc
import dataclasses
import enum
import json
import os
import pathlib
import re
import typing

from machine import process

_KMSG: typing.Final = "dev/kmsg"
_JOURNALCTL: typing.Final = "usr/bin/journalctl"
_JOURNAL_SECONDS: typing.Final = 4
# More than a record of /dev/kmsg can have (Linux printk: PRINTKRB_RECORD_MAX and its escapes).
_RECORD_BYTES: typing.Final = 8192

# The bus id is written with and without `PCI:` and the function, its domain with four digits or
# eight; with MIG `GPU-I:05` follows. Each pattern is matched only at the very beginning of a
# record, and is longer than the 15 characters that a process can put there.
_BUS_ID: typing.Final = (
    r"(?P<domain>[0-9a-fA-F]{4,8}):(?P<bus>[0-9a-fA-F]{2}):(?P<device>[0-9a-fA-F]{2})"
    r"(?:\.(?P<function>[0-7]))?"
)
_XID: typing.Final = re.compile(
    rf"NVRM: Xid \((?:PCI:)?{_BUS_ID}[^)]*\): (?P<code>[0-9]{{1,4}})\b,?\s*(?P<text>.*)"
)
# Messages of drivers without an Xid: in a line, or in a sentence over two or three lines (osinit.c
# of NVIDIA's open-gpu-kernel-modules), which come in one record or in several
# (leptonai/gpud#1209, NVIDIA/NVSentinel#155).
_FALLEN_OFF: typing.Final = re.compile(
    rf"NVRM: GPU {_BUS_ID}: GPU has (?P<text>fallen off the bus)\b"
)
_PCI_ID: typing.Final = r"\(PCI ID: [0-9a-fA-F]{4}:[0-9a-fA-F]{4}\)"
_BEGINS: typing.Final = re.compile(rf"NVRM: The NVIDIA GPU {_BUS_ID}(?= |$)")
_GOES_ON: typing.Final = re.compile(
    rf"NVRM: (?:{_PCI_ID}|installed in this |system has fallen |fallen off the bus and )"
)
_SENTENCE: typing.Final = re.compile(
    rf"{_BEGINS.pattern}(?: {_PCI_ID})? installed in this system has "
    r"(?P<text>fallen off the bus)\b"
)
_FALLEN_OFF_CODE: typing.Final = 79
# `GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)`.
_RECOVERY_CHANGED: typing.Final = 154
_RECOVERED: typing.Final = re.compile(
    r"GPU recovery action changed from 0x[0-9a-f]+ \([^)]*\) to 0x0\b"
)
# `NETIR_LINK_EVT  Fatal   XC0 i0 Link 09`. A message may name a process before it, whose name is
# too short for this.
_NVLINK_FATAL: typing.Final = re.compile(r"\bFatal\s+XC[0-9]+ i[0-9]+ Link [0-9]+")


class Severity(enum.Enum):
    """How serious an Xid is."""

    FATAL = "fatal"
    """The GPU needs a reset, a reboot or a repair before it can be relied on."""
    WARNING = "warning"
    """The GPU works, but an operator should check it."""
    HARMLESS = "harmless"
    """A program's own error, or information only."""


# By NVIDIA's catalogue (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, October
# 2025): Xids with the action RESET_GPU, RESTART_BM, RESTART_VM or CHECK_MECHANICALS. For 48 and 74
# it recommends further checks, and it lists 57, 58 and 81 for older GPUs only. These five are
# fatal in Azure/azurehpc-health-checks too, and 48, 74 and 81 in leptonai/gpud. 171 and 172
# accompany 48.
_FATAL: typing.Final = {
    46: "the GPU stopped processing",
    48: "double bit ECC error",
    54: "no auxiliary power",
    57: "video memory can't be programmed",
    58: "unstable video memory",
    62: "internal microcontroller halted",
    64: "memory could not be remapped",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    81: "VGA subsystem error",
    95: "uncontained memory error",
    110: "security fault",
    119: "the GPU's GSP does not answer",
    120: "error of the GPU's GSP",
    136: "NVLink training failed",
    140: "unrecovered ECC error",
    143: "the GPU could not be initialised",
    151: "key rotation error",
    155: "NVLink error",
    156: "a resource was retired until the next reset",
    158: "fatal timeout",
    167: "fatal PCIe timeout",
    169: "internal microcontroller halted",
    171: "uncorrectable DRAM error",
    172: "uncorrectable SRAM error",
}
# The catalogue says to ignore these or to restart the program. They are signs of memory or links
# that get worse; the checks of remapped rows and ECC decide. 63 is fatal for Azure and gpud: here
# only a remapping that waits for a reset is. Of 109 the catalogue says RESET_GPU, and
# k8s-device-plugin (internal/rm/health.go) that it is a program's fault: it is either, so the
# driver's recovery action decides. Of 144 to 150 see `meaning`.
_WARNING: typing.Final = {
    63: "memory was remapped",
    78: "a virtual GPU could not be started",
    92: "many single bit ECC errors",
    94: "contained memory error",
    109: "a context switch timed out",
    121: "C2C link error",
    157: "a resource could not be retired",
    161: "a channel could not be retired",
    165: "power smoothing is worn out",
    168: "less memory than before",
}
_NVLINK: typing.Final = range(144, 151)
# k8s-device-plugin's application errors (13, 31, 43, 45, 68), Xids that the catalogue recommends
# to ignore or to answer by restarting the program, and information.
_PROGRAMS: typing.Final = "a program's own error"
_HARMLESS: typing.Final = {
    **dict.fromkeys(
        (8, 11, 14, 25, 32, 37, 38, 39, 40, 41, 44, 60, 66, 67, 69, 70, 71, 72, 75, 76, 77, 80,
         *range(82, 87), 88, 89, *range(96, 106), 108, *range(126, 136), 137, 139, 141, 152, 153,
         160),
        _PROGRAMS,
    ),
    13: "a program's illegal instruction or address",
    31: "a program's access to memory that it does not have",
    43: "a program's channel was reset",
    45: "a program's channels were removed",
    68: "video decoder error",
    93: "many writes to the InfoROM",
    106: "test message",
    107: "test message",
    154: "the recovery action changed",
    162: "power smoothing is on",
    163: "power smoothing is off",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Message:
    """One Xid.

    Attributes:
        code: its number.
        pci_address: the GPU's, as in Gpu.pci_address.
        seconds: its time, since the machine started.
        text: the driver's text after the number, on one line.
    """

    code: int
    pci_address: str
    seconds: float
    text: str


@dataclasses.dataclass(frozen=True)
class Log:
    """The Xids in the kernel log.

    Attributes:
        messages: in the order of their times.
        problem: why the log can't be read; or empty. In a system container that is normal.
        complete: whether it goes back to the machine's start.
    """

    messages: tuple[Message, ...] = ()
    problem: str = ""
    complete: bool = True

    def of(self, pci_address: str) -> tuple[Message, ...]:
        """Return the Xids of one GPU."""
        return tuple(one for one in self.messages if one.pci_address == pci_address)

    def standing(self, pci_address: str) -> tuple[Message, ...]:
        """Return the Xids of one GPU since the driver last reported that it needs no recovery.

        A reset without a reboot leaves earlier Xids in the log.
        """
        messages = self.of(pci_address)
        recovered = [
            place
            for place, one in enumerate(messages)
            if one.code == _RECOVERY_CHANGED and _RECOVERED.search(one.text)
        ]
        return messages[recovered[-1] + 1 :] if recovered else messages


def read(root: pathlib.Path = pathlib.Path("/")) -> Log:
    """Return all Xids since the machine started.

    The kernel's ring buffer is read, and if that has lost its oldest records the journal too.

    Args:
        root: the root of the machine's files.
    """
    try:
        ring = _ring(root / _KMSG)
    except OSError as error:
        return Log(problem=f"/{_KMSG}: {error.strerror}", complete=False)
    if not ring:  # some containers have a terminal or a pipe there
        return Log(problem=f"/{_KMSG}: nothing of the kernel's", complete=False)
    # The kernel counts records from 0 since its start (Documentation/ABI/testing/dev-kmsg).
    complete = ring[0].number == 0
    records = {(one.microseconds, one.text) for one in ring}
    if not complete:
        journal = _journal(root / _JOURNALCTL)
        complete = bool(journal)
        records |= set(journal or ())
    return Log(tuple(_messages(sorted(records))), complete=complete)


def meaning(message: Message) -> tuple[Severity, str]:
    """The severity of an Xid and its meaning in short; unlisted Xids are a WARNING."""
    code = message.code
    if code in _NVLINK:
        # Most of these recover by themselves; the message shows which do not.
        fatal = _NVLINK_FATAL.search(message.text)
        return Severity.FATAL if fatal else Severity.WARNING, "NVLink error"
    for severity, table in (
        (Severity.FATAL, _FATAL),
        (Severity.WARNING, _WARNING),
        (Severity.HARMLESS, _HARMLESS),
    ):
        if code in table:
            return severity, table[code]
    return Severity.WARNING, "not in NVIDIA's catalogue, or without advice there"


class Record(typing.NamedTuple):
    """One record of the kernel log.

    Attributes:
        number: counts from 0 since the kernel's start.
        microseconds: its time, since then.
        text: as the journal has it, perhaps of several lines.
    """

    number: int
    microseconds: int
    text: str


def record(line: str) -> Record | None:
    """Parse a line of /dev/kmsg; return None if it is not a record of the kernel itself."""
    # Lines that begin with a space describe the device of the record before.
    head, found, message = line.partition(";")
    fields = head.split(",")
    if not found or len(fields) < 4 or not all(field.isdecimal() for field in fields[:3]):
        return None
    priority, number, microseconds = map(int, fields[:3])
    # Records of processes have a facility, which the kernel does not let them leave out. A
    # fragment (`c`) may be the continuation of another message, such as a path in it.
    if priority >> 3 or fields[3] != "-":
        return None
    return Record(number, microseconds, _unescaped(message))


def _ring(path: pathlib.Path) -> list[Record]:
    """Return the kernel's own records that its ring buffer still has.

    Raises:
        OSError: it does not exist or may not be read.
    """
    text = b"".join(_reads(path)).decode(errors="replace")
    return [found for line in text.split("\n") if (found := record(line))]


def _reads(path: pathlib.Path) -> collections.abc.Iterator[bytes]:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        while True:
            try:
                part = os.read(descriptor, _RECORD_BYTES)
            except BrokenPipeError:  # overwritten before it was read: the next is now the oldest
                continue
            except BlockingIOError:
                return
            if not part:
                return
            yield part
    finally:
        os.close(descriptor)


def _unescaped(message: str) -> str:
    """Return a message as the journal has it: the kernel escapes all but printable ASCII."""
    said = message.encode()
    said = re.sub(rb"\\x([0-9a-f]{2})", lambda match: bytes.fromhex(match[1].decode()), said)
    return said.decode(errors="replace")


def _journal(program: pathlib.Path) -> list[tuple[int, str]] | None:
    """Return time in microseconds and text of the kernel's GPU messages since its start.

    None if the journal can't be read, or begins later than the machine.
    """
    if not program.exists():
        return None
    argv = [
        str(program),
        *("--dmesg", "--boot", "--quiet", "--no-pager", "--all", "--output=json"),
        "--output-fields=MESSAGE,_SOURCE_MONOTONIC_TIMESTAMP",
        "--grep=NVRM|Linux version",
        "SYSLOG_FACILITY=0",
    ]
    try:
        said = process.run(argv, timeout=_JOURNAL_SECONDS).stdout
    except process.CommandError:
        return None
    records: list[tuple[int, str]] = []
    # Not splitlines: JSON leaves U+2028 and the like as they are, and a file's name may have them.
    for line in filter(None, said.split("\n")):
        entry: dict[str, typing.Any] = json.loads(line)
        text, when = entry.get("MESSAGE"), entry.get("_SOURCE_MONOTONIC_TIMESTAMP", "")
        if isinstance(text, list):  # bytes that are not UTF-8
            text = bytes(typing.cast("list[int]", text)).decode(errors="replace")
        if isinstance(text, str) and str(when).isdecimal():
            records.append((int(when), text))
    # The kernel's first message. Without it the journal was rotated.
    begun = any(re.match(r"Linux version [0-9]+\.[0-9]+", text) for _, text in records)
    return records if begun else None


def _messages(
    records: collections.abc.Iterable[tuple[int, str]],
) -> collections.abc.Iterator[Message]:
    reader = Reader()
    return (found for one in records if (found := reader.take(*one)))


class Reader:
    """Finds Xids in consecutive records; a sentence may be spread over several records."""

    def __init__(self) -> None:
        self._sentence = ""

    def take(self, microseconds: int, text: str) -> Message | None:
        """The Xid that this record, perhaps with those before it, reports."""
        first, *others = text.splitlines() or [""]
        match = _XID.match(first) or _FALLEN_OFF.match(first)
        if _BEGINS.match(first):
            # Such a long beginning is the driver's, and so is the rest of the record.
            self._sentence = " ".join([first, *map(_words, others)])
        elif self._sentence and _GOES_ON.match(first):
            self._sentence = " ".join([self._sentence, *map(_words, [first, *others])])
        match = match or _SENTENCE.match(self._sentence)
        if not match:
            return None
        self._sentence = ""
        return _message(match, microseconds)


def _words(line: str) -> str:
    return line.strip().removeprefix("NVRM: ")


def _message(match: re.Match[str], microseconds: int) -> Message:
    code = int(match.groupdict().get("code") or _FALLEN_OFF_CODE)
    address = (
        f"{int(match['domain'], 16):04x}:{match['bus']}:{match['device']}.{match['function'] or 0}"
    )
    text = " ".join("".join(c if c.isprintable() else " " for c in match["text"]).split())
    return Message(code, address.lower(), microseconds / 1e6, text)
