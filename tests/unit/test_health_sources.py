# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the watch sees beside NVML: the kernel's log and uevents, AMD's and Intel's files."""

import contextlib
import errno
import os
import resource

import pytest

from gpu_agent.gpu.kernel import drm_events
from gpu_agent.gpu.kernel import sysfs_metrics as sysfs_figures
from gpu_agent.gpu.kernel.listener import Heard, NoSourceError
from gpu_agent.gpu.probe import probe_protocol as wire
from gpu_agent.gpu.vendors import registry
from gpu_agent.gpu.vendors.nvidia.kernel_log import XidListener
from gpu_agent.health.sources import Sources, _Open
from gpu_agent.model.card import Card, Figures
from gpu_agent.model.observations import Look, Message, Source
from tests.unit.test_probe_driver_probe import Child

ADDRESS = "0000:03:00.0"
AMD = Card("GPU-8a6b1c2d3e4f5a6b", 0, ADDRESS, "Instinct MI210", ("GPU-8a6b1c2d3e4f5a6b",))
NVIDIA = Card("GPU-00000000-1111-2222-3333-444444444444", 1, "0000:01:00.0", "A100", ())
# As amdgpu of Linux 6.8 writes them.
AMDGPU = {
    "gpu_busy_percent": "97\n",
    "mem_info_vram_total": "68702699520\n",
    "mem_info_vram_used": "11186176\n",
    "hwmon/hwmon3/power1_average": "41000000\n",
    "hwmon/hwmon3/power1_cap": "300000000\n",
    "hwmon/hwmon3/temp1_input": "38000\n",
    "hwmon/hwmon3/freq1_input": "1700000000\n",
    "ras/umc_err_count": "ue: 0\nce: 3\n",
    "ras/gfx_err_count": "ue: 1\nce: 2\nde: 0\n",
    "ras/features": "feature mask: 0x0\n",
}
# As xe of Linux 6.12 does.
XE = {
    "hwmon/hwmon2/energy1_input": "123456789\n",
    "hwmon/hwmon2/power1_max": "150000000\n",
    "hwmon/hwmon2/temp2_input": "45000\n",
}


def device(root, files):
    folder = root / "sys/bus/pci/devices" / ADDRESS
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    drivers = root / "sys/bus/pci/drivers/amdgpu"
    drivers.mkdir(parents=True, exist_ok=True)
    if not (folder / "driver").exists():
        (folder / "driver").symlink_to(drivers)
    return folder


def test_figures_of_amdgpus_files(tmp_path):
    device(tmp_path, AMDGPU)
    assert sysfs_figures.read(tmp_path, ADDRESS) == Figures(
        busy=97, memory_used_mib=10, memory_total_mib=65520, power_w=41, power_limit_w=300,
        temperature=38, sm_clock_mhz=1700, ecc_corrected=5, ecc_uncorrected=1,
    )  # fmt: skip


def test_figures_of_xes_files(tmp_path):
    device(tmp_path, XE)
    assert sysfs_figures.read(tmp_path, ADDRESS) == Figures(
        energy_j=123.456789, power_limit_w=150, temperature=45
    )


def test_a_gpu_that_no_driver_has_or_that_is_not_there_has_no_figures(tmp_path):
    folder = device(tmp_path, AMDGPU)
    (folder / "driver").unlink()
    assert sysfs_figures.read(tmp_path, ADDRESS) is None
    assert sysfs_figures.read(tmp_path, "0000:04:00.0") is None


def test_what_a_driver_refuses_is_not_told(tmp_path):
    folder = device(tmp_path, AMDGPU | {"gpu_busy_percent": "garbage\n"})
    assert sysfs_figures.read(tmp_path, ADDRESS).busy is None
    for name in AMDGPU:
        (folder / name).unlink()
        (folder / name).symlink_to("/proc/self/mem")  # reading it is an input/output error
    assert sysfs_figures.read(tmp_path, ADDRESS) == Figures()


@contextlib.contextmanager
def out_of_files():
    """A process that may open no further file."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with open(os.devnull) as last:
        resource.setrlimit(resource.RLIMIT_NOFILE, (last.fileno(), limits[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_want_of_files_is_no_absence(tmp_path):
    device(tmp_path, AMDGPU)
    with out_of_files(), pytest.raises(OSError, match="Too many open files"):
        sysfs_figures.read(tmp_path, ADDRESS)


def of_driver(fault, text, address=ADDRESS):
    return Heard(address, Source.COUNTER, fault, text=text)


def uevent(**values):
    path = f"/devices/pci0000:00/0000:00:01.0/{ADDRESS}/drm/card1"
    values = {"ACTION": "change", "DEVPATH": path, "SUBSYSTEM": "drm"} | values
    pairs = [f"{name}={value}" for name, value in values.items()]
    return "\0".join([f"change@{path}", *pairs, "SEQNUM=4711"]).encode() + b"\0"


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (uevent(WEDGED="none"), of_driver("driver-reset", "WEDGED=none")),
        (
            uevent(WEDGED="rebind,bus-reset"),
            of_driver("wedged", "WEDGED=rebind,bus-reset"),
        ),
        (uevent(RESET="1"), of_driver("driver-reset", "RESET=1")),
        (uevent(), None),
        (uevent(HOTPLUG="1"), None),
        (uevent(WEDGED="none", SUBSYSTEM="net"), None),
        (uevent(WEDGED="none", DEVPATH=f"/devices/pci0000:00/{ADDRESS}/net/eth0"), None),
        (b"\xff\0WEDGED=", None),
        (b"", None),
    ],
)
def test_what_uevents_tell(data, told):
    assert drm_events.parse(data) == told


def test_only_the_kernel_is_heard():
    data = uevent(WEDGED="none")
    came = [(data, (4711, 1)), OSError(errno.ENOBUFS, ""), (data, (0, 1)), BlockingIOError()]

    class Socket:
        def recvfrom(self, most):
            one = came.pop(0)
            if isinstance(one, OSError):
                raise one
            return one

    assert [one.text for one in drm_events.DrmListener(Socket).read()] == ["WEDGED=none"]
    assert not came


def test_uevents_can_be_listened_to_here():
    try:
        listener = drm_events.DrmListener()
    except NoSourceError as error:
        pytest.skip(str(error))
    assert listener.fileno() >= 0
    listener.read()
    listener.close()


# ---- the kernel's log ----


def log(root, *records):
    path = root / "dev/kmsg"
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        for number, text in enumerate(records):
            file.write(f"3,{number},1000000,-;{text}\n")
    return path


def test_a_sentence_over_several_records_and_reads(tmp_path):
    log(tmp_path, "NVRM: Xid (PCI:0000:01:00): 13, old")
    follower = XidListener(tmp_path)
    assert follower.read() == []
    log(tmp_path, "NVRM: The NVIDIA GPU 0000:01:00.0")
    assert follower.read() == []
    path = log(tmp_path)
    with path.open("a") as file:
        file.write("3,7,1000000,-;NVRM: (PCI ID: 10de:20b2) installed in this")
    assert follower.read() == []
    with path.open("a") as file:
        file.write(" system has fallen off the bus\n")
    assert [one.xid for one in follower.read()] == [79]
    assert not follower.can_be_waited_for
    follower.close()


def test_records_that_were_lost_are_no_end(tmp_path):
    log(tmp_path)
    record = b"3,9,1,-;NVRM: Xid (PCI:0000:01:00): 48, text\n"
    came = [BrokenPipeError(), record, BrokenPipeError(), BlockingIOError()]

    def read(descriptor, most):
        one = came.pop(0)
        if isinstance(one, OSError):
            raise one
        return one

    follower = XidListener(tmp_path, read)
    assert [one.xid for one in follower.read()] == [48]
    assert follower.lost == 2
    follower.close()


def test_a_flood_is_read_in_parts(tmp_path):
    log(tmp_path)
    reads = []
    follower = XidListener(tmp_path, lambda *_: reads.append(1) or b"6,1,1,-;flood\n")
    assert follower.read() == []
    assert 100 <= len(reads) <= 10_000
    follower.close()


def test_a_terminal_or_a_pipe_is_no_log(tmp_path):
    with pytest.raises(NoSourceError, match="No such file"):
        XidListener(tmp_path)
    (tmp_path / "dev").mkdir()
    os.mkfifo(tmp_path / "dev/kmsg")
    with pytest.raises(NoSourceError, match="not the kernel's log"):
        XidListener(tmp_path)
    (tmp_path / "dev/kmsg").unlink()
    (tmp_path / "dev/kmsg").symlink_to("/dev/null")
    with pytest.raises(NoSourceError, match="not the kernel's log"):
        XidListener(tmp_path)


def test_this_machines_own_log_can_be_followed():
    try:
        follower = XidListener()
    except NoSourceError as error:
        pytest.skip(str(error))
    assert follower.read() == []
    follower.close()


# ---- all of them together ----


class Listener:
    can_be_waited_for = True

    def __init__(self, read):
        self.read = read

    def fileno(self):
        return 0

    def close(self):
        pass


class World:
    def __init__(self, root, *cards):
        self.now, self.child = 1000.0, Child()
        log(root)
        self.sources = Sources(cards, root, begin=lambda *_: self.child, clock=lambda: self.now)
        self.sources._wait = self.wait
        self.turn(wire.Begun())

    def wait(self, seconds):
        self.now += max(0.01, seconds)
        return False

    def listen(self, vendor, read):
        """Have the kernel's messages of a vendor's GPUs come by this function."""
        begin = registry.find(vendor).listener
        if there := self.sources._listeners.get(begin):
            there.listener.close()
        self.sources._listeners[begin] = _Open(Listener(read))

    def turn(self, *told):
        self.child.told += told
        return self.sources.take(0)

    def look(self, card, **figures):
        return self.turn(wire.One(card.uuid, Figures(**figures)), wire.End())


@pytest.fixture
def make(tmp_path):
    worlds = []

    def make(*cards):
        worlds.append(World(tmp_path, *cards))
        return worlds[-1]

    yield make
    for world in worlds:
        world.sources.close()


def test_a_look_comes_with_its_figures(make):
    world = make(AMD)
    assert world.look(AMD, ecc_uncorrected=2) == [
        Look(1000, {AMD.uuid: Figures(ecc_uncorrected=2)})
    ]


def test_a_driver_that_gives_a_gpu_up_or_resets_it_is_told(make):
    world = make(AMD, NVIDIA)
    world.look(AMD)

    told = [
        of_driver("wedged", "WEDGED=rebind"),
        of_driver("wedged", "WEDGED=rebind", "0000:09:00.0"),
        of_driver("driver-reset", "WEDGED=none"),
    ]
    world.listen("amd", [told].pop)
    assert world.sources.take(0) == [
        Message(1000, AMD.uuid, Source.COUNTER, "wedged", text="WEDGED=rebind"),
        Message(1000, AMD.uuid, Source.COUNTER, "driver-reset", text="WEDGED=none"),
    ]


def test_messages_bring_a_look_but_a_flood_of_them_no_flood_of_looks(make, tmp_path):
    world = make(NVIDIA)
    world.look(NVIDIA)
    begun = world.now
    for _ in range(20):
        log(tmp_path, "NVRM: Xid (PCI:0000:01:00): 79, told by whomever")
        world.now += 0.5
        (told,) = world.sources.take(0)
        assert (told.source, told.xid) == (Source.KERNEL, 79)
        if world.child.asked:
            world.turn(wire.End())
    assert world.now - begun == pytest.approx(10)
    assert 1 <= len(world.child.asked) <= 4


def test_a_kernels_log_that_never_ends_is_read_twice_a_second(make):
    world = make(NVIDIA)
    world.look(NVIDIA)
    reads = []
    world.listen("nvidia", lambda: reads.append(world.now) or [])
    waits = []

    def wait(seconds):
        waits.append(world.sources._descriptors())
        world.now += 0.01 if waits[-1] else max(0.01, seconds)
        return False

    world.sources._wait = wait
    world.sources.take(10)
    assert 15 <= len(reads) <= 25
    assert len(waits) < 100


def test_an_absent_log_is_said_once_and_the_rest_goes_on(tmp_path, caplog):
    caplog.set_level("INFO")
    child = Child()
    now = [0.0]
    sources = Sources([NVIDIA], tmp_path, begin=lambda *_: child, clock=lambda: now[0])
    child.told.append(wire.Begun())
    for _ in range(10):
        sources.take(0)
        now[0] += 3
        child.told += [wire.End()]
    assert caplog.text.count("cannot read the kernel log: /dev/kmsg: No such file") == 1
    sources.close()


def test_want_of_files_at_the_start_is_said_and_ends_no_service(tmp_path, caplog):
    caplog.set_level("INFO")
    log(tmp_path)
    device(tmp_path, {"vendor": "0x1002\n"})
    child, now = Child(), [0.0]
    with out_of_files():
        sources = Sources([AMD], tmp_path, begin=lambda *_: child, clock=lambda: now[0])
        sources.take(0)
    assert "cannot open a source now: Too many open files" in caplog.text
    assert not sources._listeners
    now[0] += 15
    sources.take(0)
    assert sources._listeners
    sources.close()


def test_a_log_that_cant_be_opened_for_want_of_something_is_tried_again(
    make, tmp_path, monkeypatch, caplog
):
    caplog.set_level("INFO")
    genuine = os.open

    def refuse(path, *arguments, **options):
        if str(path).endswith("kmsg"):
            raise OSError(errno.ENFILE, os.strerror(errno.ENFILE))
        return genuine(path, *arguments, **options)

    monkeypatch.setattr(os, "open", refuse)
    world = make(NVIDIA)
    world.look(NVIDIA)
    assert caplog.text.count("cannot open a source now: Too many open files in system") == 1
    monkeypatch.undo()
    world.now += 16
    world.sources.take(0)
    log(tmp_path, "NVRM: Xid (PCI:0000:01:00): 48, text")
    world.now += 1
    (told,) = world.sources.take(0)
    assert told.xid == 48


def test_take_waits_no_longer_than_it_may(make):
    world = make(NVIDIA)
    world.look(NVIDIA)
    begun = world.now
    assert world.sources.take(3) == []
    assert begun + 3 <= world.now <= begun + 3.1
    world.sources.changed([])
    assert world.sources.take(100) == []
    assert world.now == pytest.approx(begun + 103, abs=0.2)
