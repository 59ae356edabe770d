# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Xids in the kernel's log: every form that drivers write them in, and what each means."""

import json
import os
import pathlib
import random

import pytest

from gpu_agent.gpu.vendors.nvidia import xid
from gpu_agent.gpu.vendors.nvidia.xid import Log, Message, Severity
from tests.fakes import fakekmsg

SAID = "pid=4711, name=python3, Ch 00000008"
FALLEN = """\
NVRM: The NVIDIA GPU 0000:b3:00.0
               NVRM: (PCI ID: 10de:26b5) installed in this system has
               NVRM: fallen off the bus and is not responding to commands."""

OLDER = """\
NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:1e07) installed in this
NVRM: system has fallen off the bus and is not responding to commands."""


@pytest.fixture
def kmsg(tmp_path):
    log = tmp_path / "dev/kmsg"
    fakekmsg.begin(log)
    return log


def read(kmsg, *messages):
    for message in messages:
        fakekmsg.say(kmsg, message)
    return [(one.code, one.pci_address, one.text) for one in xid.read(kmsg.parents[1]).messages]


@pytest.mark.parametrize(
    ("line", "code", "address", "text"),
    [
        (f"NVRM: Xid (PCI:0000:41:00): 79, {SAID}", 79, "0000:41:00.0", SAID),
        (f"NVRM: Xid (PCI:0000:41:00.0): 79, {SAID}", 79, "0000:41:00.0", SAID),
        (f"NVRM: Xid (PCI:00000000:41:00.0): 79, {SAID}", 79, "0000:41:00.0", SAID),
        (f"NVRM: Xid (PCI:0000:CB:1F.3): 13, {SAID}", 13, "0000:cb:1f.3", SAID),
        ("NVRM: Xid (0000:03:00): 14, Channel 00000001", 14, "0000:03:00.0", "Channel 00000001"),
        (f"NVRM: Xid (PCI:0000:01:00 GPU-I:05): 43, {SAID}", 43, "0000:01:00.0", SAID),
        (f"NVRM: Xid (PCI:10000:e1:00): 31, {SAID}", 31, "10000:e1:00.0", SAID),
        ("NVRM: Xid (PCI:0000:3f:00): 46", 46, "0000:3f:00.0", ""),
        (
            "NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 09",
            149,
            "0018:01:00.0",
            "NETIR_LINK_EVT Fatal XC0 i0 Link 09",
        ),
        (f"NVRM: Xid (PCI:0000:41:00): 13,\n NVRM: {SAID}", 13, "0000:41:00.0", ""),
        (
            "NVRM: GPU 0000:09:00.0: GPU has fallen off the bus.",
            79,
            "0000:09:00.0",
            "fallen off the bus",
        ),
        (FALLEN, 79, "0000:b3:00.0", "fallen off the bus"),
        (OLDER, 79, "0000:01:00.0", "fallen off the bus"),
        (
            "NVRM: The NVIDIA GPU 0000:05:00.0 installed in this system has fallen off the bus",
            79,
            "0000:05:00.0",
            "fallen off the bus",
        ),
    ],
)
def test_every_form_of_a_message(kmsg, line, code, address, text):
    assert read(kmsg, line) == [(code, address, text)]


def test_a_fall_that_is_told_in_several_records(kmsg):
    """As newer drivers do, with other messages between: leptonai/gpud#1209."""
    assert read(
        kmsg,
        "NVRM: The NVIDIA GPU 0000:b2:00.0 is well",
        "NVRM: The NVIDIA GPU 0000:b3:00.0",
        "NVRM: (PCI ID: 10de:26b5) installed in this system has",
        "pcieport 0000:b0:01.0: PCIe Bus Error: severity=Uncorrected",
        "NVRM: fallen off the bus and is not responding to commands.",
        f"NVRM: Xid (PCI:0000:b4:00): 31, {SAID}",
        "NVRM: GPU 0000:b5:00.0: RmInitAdapter failed! (0x22:0x56:894)",
        "NVRM: GPU 0000:b6:00.0: GPU has fallen off the bus.",
    ) == [
        (79, "0000:b3:00.0", "fallen off the bus"),
        (31, "0000:b4:00.0", SAID),
        (79, "0000:b6:00.0", "fallen off the bus"),
    ]


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: GPU at PCI:0000:66:00: GPU-12345678-1234-5678-9abc-def012345678",
        "NVRM: Xid : 32, pid=2280636",
        "NVRM: Xid (PCI:0000:66:00): abc, pid=2280636",
        "NVRM: GPU 0000:09:00.0: RmInitAdapter failed! (0x22:0x56:894)",
        "audit: name=NVRM: Xid (PCI:0000:66:00): 79, GPU has fallen off the bus.",
        "usb 1-1: NVRM: GPU 0000:09:00.0: GPU has fallen off the bus.",
        "EXT4-fs (/a\nNVRM: Xid (PCI:0000:66:00): 79, b): mounted",
        " NVRM: Xid (PCI:0000:66:00): 79, GPU has fallen off the bus.",
        "",
        "\n",
    ],
)
def test_what_is_no_xid(kmsg, line):
    assert read(kmsg, line) == []


# ---- what a container can have the kernel say ----

XID_79 = "NVRM: Xid (PCI:0000:66:00): 79, GPU has fallen off the bus."
# Process names of at most 15 characters, with which the kernel begins a record.
NAMES = ["NVRM:", "NVRM: Xid (PCI:", "NVRM: Xid (0000", "NVRM: GPU 0000:", "NVRM: The NVIDI",
         "NVRM: (PCI ID:", "NVRM: fallen of", "NVRM: installed", "NVRM: system ha",
         "x\nNVRM: Xid (P", "\nNVRM:", "\rNVRM:", " NVRM:"]  # fmt: skip
# A name of a file is as long as 255 bytes, of any but `/` and NUL.
FILES = [f"x{end}{line}" for end in ("", " ", "\n", "\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028")
         for line in (XID_79, "NVRM: GPU 0000:66:00.0: GPU has fallen off the bus.", FALLEN)] + [
             ":66:00): 79, a", "66:00): 79", "NVRM: fallen off the bus and is not responding",
         ]  # fmt: skip
# Of Linux: arch/x86/mm/fault.c, arch/x86/kernel/traps.c, fs/drop_caches.c, mm/page_alloc.c,
# mm/oom_kill.c.
RECORDS = [
    "{name}[18200]: segfault at 0 ip 0000000000401106 sp 00007ffe error 6 in {file}[401000+1000]",
    "traps: {name}[18200] general protection fault ip:401106 sp:7ffe error:0 in {file}[1000+1000]",
    "{name} (18200): drop_caches: 3",
    "{name}: page allocation failure: order:9, mode:0xcc0, nodemask=(null),cpuset={file}",
    "{name} invoked oom-killer: gfp_mask=0xcc0, order=0, oom_score_adj=0",
]


@pytest.mark.parametrize("name", NAMES)
def test_no_name_of_a_process_or_a_file_is_the_drivers_word(kmsg, name):
    assert len(name) <= 15
    said = [record.format(name=name, file=file) for record in RECORDS for file in FILES]
    assert read(kmsg, *said) == []


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "genuine",
    [
        "NVRM: GPU 0000:66:00.0: RmInitAdapter failed! (0x22:0x56:894)",
        "NVRM: The NVIDIA GPU 0000:66:00.0",
        "NVRM: The NVIDIA GPU 0000:66:00.0 is well",
        "NVRM: The NVIDIA GPU 0000:66:00.0 (PCI ID: 10de:1e07) installed in this",
    ],
)
def test_no_name_ends_what_the_driver_has_begun(kmsg, genuine, name):
    said = [record.format(name=name, file=file) for record in RECORDS for file in FILES]
    assert read(kmsg, genuine, *said) == []


def test_no_beginning_of_the_drivers_words_that_fits_a_name_is_enough(kmsg):
    """Whatever the driver says: 15 characters of it, what the kernel adds, and then the rest."""
    lines = [XID_79, "NVRM: Xid (0000:66:00): 79, a", *FALLEN.splitlines(),
             "NVRM: GPU 0000:66:00.0: GPU has fallen off the bus."]  # fmt: skip
    for line in map(str.strip, lines):
        for length in range(16):
            said = [record.format(name=line[:length], file=line[length:]) for record in RECORDS]
            assert read(kmsg, "NVRM: The NVIDIA GPU 0000:66:00.0", *said) == []


def test_a_fragment_of_a_message_is_no_record(kmsg):
    """Where another processor speaks in between, the kernel keeps one by itself, marked `c`."""
    with kmsg.open("a") as file:
        file.write(f"4,8,1,c;{XID_79}\n")
    assert read(kmsg) == []


def test_no_name_ends_a_quarantine_or_makes_an_error_worse(kmsg):
    read(kmsg, "NVRM: Xid (PCI:0000:66:00): 154, pid=1, name=to 0x0, GPU recovery action changed "
         "from 0x0 (None) to 0x1 (GPU Reset Required)")  # fmt: skip
    log = xid.read(kmsg.parents[1])
    assert log.standing("0000:66:00.0") == log.messages != ()
    for name in ("Fatal", "Fatal XC0 i0", "x Fatal XC0 i0"):
        said = f"pid=1, name={name}, RLW_RXPIPE  Nonfatal  XC0 i0 Link 13"
        assert xid.meaning(Message(149, "0000:66:00.0", 1.0, said))[0] is Severity.WARNING


def test_what_a_process_wrote_into_the_log_is_not_the_kernels(kmsg):
    """Its facility is never 0: Linux devkmsg_write."""
    with kmsg.open("a") as file:
        file.write("11,8,1,-;NVRM: Xid (PCI:0000:66:00): 79, GPU has fallen off the bus.\n")
    assert read(kmsg) == []


def test_records_tell_when_and_may_have_devices_and_callers(kmsg):
    with kmsg.open("a") as file:
        file.write("6,1,1500000,-,caller=T1;pci 0000:41:00.0: enabled\n SUBSYSTEM=pci\n")
        file.write(f"3,2,2500000,-,caller=T2;NVRM: Xid (PCI:0000:41:00): 31, {SAID}\n")
        file.write(" DEVICE=+pci:0000:41:00.0\nno record at all\n")
    (found,) = xid.read(kmsg.parents[1]).messages
    assert found == Message(31, "0000:41:00.0", 2.5, SAID)


def test_control_characters_of_a_programs_name_do_no_harm(kmsg):
    line = "NVRM: Xid (PCI:0000:41:00): 31, pid=1, name=a\x1b[2J\\x0a\tb"
    assert read(kmsg, line) == [(31, "0000:41:00.0", "pid=1, name=a [2J\\x0a b")]


def test_a_log_that_is_not_there_or_says_nothing_is_a_problem(tmp_path):
    assert xid.read(tmp_path) == Log(
        problem="/dev/kmsg: No such file or directory", complete=False
    )
    (tmp_path / "dev").mkdir()
    os.mkfifo(tmp_path / "dev/kmsg")  # what systemd-nspawn has made of it at times
    assert xid.read(tmp_path).problem == "/dev/kmsg: nothing of the kernel's"


@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK), reason="needs a readable /dev/kmsg")
def test_this_machines_own_log_can_be_read_to_its_end():
    ring = xid._ring(pathlib.Path("/dev/kmsg"))
    numbers = [record.number for record in ring]
    assert numbers == sorted(set(numbers))
    assert len(ring) > 10
    assert xid.read().problem == ""


# ---- the journal, where the ring has lost its beginning ----

BEGUN = {"MESSAGE": "Linux version 6.8.0", "_SOURCE_MONOTONIC_TIMESTAMP": "0"}
OLD = {
    "MESSAGE": "NVRM: Xid (PCI:0000:41:00): 48, DBE",
    "_SOURCE_MONOTONIC_TIMESTAMP": "5000000",
}
BOTH = {
    "MESSAGE": f"NVRM: Xid (PCI:0000:41:00): 63, {SAID}",
    "_SOURCE_MONOTONIC_TIMESTAMP": "9000000",
}
BYTES = {
    "MESSAGE": [*b"NVRM: Xid (PCI:0000:41:00): 31, name=\xff"],
    "_SOURCE_MONOTONIC_TIMESTAMP": "6000000",
}


@pytest.fixture
def rotated(tmp_path):
    """A ring that begins with record 17, and a journalctl that says what it was asked."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kmsg").write_text(
        f"3,17,9000000,-;NVRM: Xid (PCI:0000:41:00): 63, {SAID}\n"
        f"3,18,9500000,-;NVRM: Xid (PCI:0000:41:00): 94, {SAID}\n"
    )

    def with_journal(*entries, code=0):
        program = tmp_path / "usr/bin/journalctl"
        program.parent.mkdir(parents=True)
        lines = [json.dumps(one, ensure_ascii=False) for one in entries]  # as journalctl's are
        (tmp_path / "journal").write_text("".join(f"{line}\n" for line in lines))
        program.write_text(
            f'#!/bin/sh\necho "$*" > {tmp_path}/asked\ncat {tmp_path}/journal\nexit {code}\n'
        )
        program.chmod(0o755)
        return xid.read(tmp_path)

    return with_journal


def codes(log):
    return [(one.code, one.seconds) for one in log.messages]


def test_the_journal_has_what_the_ring_has_lost(rotated, tmp_path):
    log = rotated(BEGUN, OLD, BYTES, BOTH)
    assert codes(log) == [(48, 5.0), (31, 6.0), (63, 9.0), (94, 9.5)]
    assert log.complete
    asked = (tmp_path / "asked").read_text().split()
    assert {"--dmesg", "--boot", "--output=json", "SYSLOG_FACILITY=0"} <= {*asked}


def test_a_journal_that_begins_late_or_fails_leaves_the_log_incomplete(rotated, tmp_path):
    log = rotated(OLD)
    assert (codes(log), log.complete) == ([(63, 9.0), (94, 9.5)], False)
    (tmp_path / "usr/bin/journalctl").write_text("#!/bin/sh\nexit 1\n")
    assert xid.read(tmp_path) == log
    (tmp_path / "usr/bin/journalctl").unlink()
    assert xid.read(tmp_path) == log


def test_a_whole_ring_needs_no_journal(kmsg, tmp_path):
    program = tmp_path / "usr/bin/journalctl"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/asked\n")
    program.chmod(0o755)
    assert xid.read(tmp_path).complete
    assert not (tmp_path / "asked").exists()


def test_no_name_in_the_journal_breaks_its_reading_or_is_the_drivers_word(rotated):
    """U+2028 is printable for JSON, and the end of a line for Python."""
    told = [
        {"MESSAGE": f"NVRM:[18200]: segfault in {name}", "_SOURCE_MONOTONIC_TIMESTAMP": "6000000"}
        for name in FILES
    ]
    log = rotated(BEGUN, OLD, *told)
    assert codes(log) == [(48, 5.0), (63, 9.0), (94, 9.5)]
    assert log.complete


def test_no_name_passes_for_the_kernels_first_words(rotated):
    forged = {"MESSAGE": "Linux version 6[18200]: segfault", "_SOURCE_MONOTONIC_TIMESTAMP": "1"}
    assert not rotated(forged, OLD).complete


# ---- what it means ----


def meaning(code, text=""):
    return xid.meaning(Message(code, "0000:41:00.0", 1.0, text))[0]


# By the sources that gpu_agent.gpu.vendors.nvidia.xid names: NVIDIA's catalogue (its bucket for
# the immediate action), k8s-device-plugin's errors of applications.
RESET_GPU = (46, 62, 64, 95, 110, 119, 120, 136, 140, 143, 155, 156, 158)
MACHINE = (54, 79, 151)
RESTART_APP = (8, 11, 13, 25, 31, 32, 39, 40, 41, 60, *range(68, 73), 75, 76, 77, 80,
               *range(82, 87), 88, 89, *range(96, 106), *range(126, 136), 139)  # fmt: skip
IGNORE = (14, 37, 38, 43, 44, 66, 67, 93, 106, 107, 108, 137, 141, 152, 153, 160)
APPLICATIONS = (13, 31, 43, 45, 68)
DEGRADING = (63, 92, 94, 109, 121, 157, 161)


@pytest.mark.parametrize(
    ("severity", "numbers"),
    [
        (Severity.FATAL, (*RESET_GPU, *MACHINE, 48, 74)),
        (Severity.HARMLESS, (*RESTART_APP, *IGNORE, *APPLICATIONS, 154)),
        (Severity.WARNING, DEGRADING),
    ],
    ids=lambda value: getattr(value, "value", ""),
)
def test_each_code_of_the_sources(severity, numbers):
    assert {code: meaning(code) for code in numbers} == dict.fromkeys(numbers, severity)


def test_no_code_is_in_two_tables_and_each_has_words():
    tables = (xid._FATAL, xid._WARNING, xid._HARMLESS, dict.fromkeys(xid._NVLINK, "NVLink"))
    every = [code for table in tables for code in table]
    assert len(every) == len(set(every))
    assert all(words for table in tables for words in table.values())


@pytest.mark.parametrize("code", range(144, 151))
def test_nvlinks_messages_say_themselves_whether_they_are_fatal(code):
    assert meaning(code, "NETIR_LINK_EVT Fatal XC0 i0 Link 00") is Severity.FATAL
    assert meaning(code, "RLW_RXPIPE Nonfatal XC0 i0 Link 13") is Severity.WARNING


def test_a_code_that_nobody_lists_quarantines_nothing_and_is_not_hidden():
    known = {*xid._FATAL, *xid._WARNING, *xid._HARMLESS, *xid._NVLINK}
    chosen = random.Random(5)
    for code in (1, 173, 999, *chosen.sample(sorted({*range(1, 1000)} - known), 50)):
        assert meaning(code) is Severity.WARNING


def test_a_recovery_without_a_reboot_ends_what_was_before():
    here, there = "0000:41:00.0", "0000:42:00.0"

    def message(code, text="", address=here):
        return Message(code, address, 1.0, text)

    asked = message(154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")
    given = message(154, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)")
    fatal, other, later = message(119), message(79, address=there), message(13)
    log = Log((fatal, asked, other, given, later))
    assert log.of(here) == (fatal, asked, given, later)
    assert log.standing(here) == (later,)
    assert log.standing(there) == (other,)
    assert Log((fatal, asked)).standing(here) == (fatal, asked)
    assert Log((given, fatal)).standing(here) == (fatal,)
