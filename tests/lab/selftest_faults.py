# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Faults of a worker with two simulated NVIDIA GPUs, and the self-test's results for each.

Each line of shell runs in the machine, as root, without Juju.
"""

import dataclasses

from tests import fakes

FAKEGPU = fakes.FAKEGPU
# For the checks of minimums: values that the simulated GPUs and their driver just reach.
_OF_GPUS = f"compute-capability=8.0,driver={fakes.DRIVER_VERSION}"
MINIMUMS = f"cpus=1,memory=1GiB,gpu-memory=80GiB,{_OF_GPUS}"
BOTH = (0, 1)
_FRONT = "/opt/gpu-ci/bin/runc"
_LAUNCHER = "/opt/gpu-ci/bin/containerd-launcher"
_POLICY = "/etc/gpu-ci/policy.json"
_CONFIG = "/etc/gpu-ci/nvidia-container-runtime/config.toml"
_BACK_END = "/opt/gpu-ci/lib/gpuci"
_RUNTIME = "/usr/bin/nvidia-container-runtime"
_FOREIGN = "/opt/containerd/bin/runc"
_DRIVER = "/var/lib/fake-gpu/driver-version"
# A field of nvml.h: the recovery that the driver requests.
_RECOVERY_FIELD = 230
_KEPT = "/root/lab-kept"


@dataclasses.dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        name: of the test.
        inject: shell that makes it so.
        mend: shell that undoes it.
        check: the one check that turns red.
        gpus: numbers of the cards that it concerns; empty: the worker as a whole.
        remedy: a step that the remedy names.
        reason: what the result's text begins with; status has it up to its first `:`.
        warns: whether it is a warning only.
        level: of the self-test that is run.
        around: what starts the self-test, where the fault is there for it alone.
        condemns: whether it takes the GPUs out of use; not what a job can bring about by itself.
    """

    name: str
    inject: str
    mend: str
    check: str
    gpus: tuple[int, ...]
    remedy: str
    reason: str
    warns: bool = False
    level: str = "quick"
    around: str = ""
    condemns: bool = True


def _of_gpu(name: str, value: str, check: str, reason: str, remedy: str, **more) -> Fault:
    """A value of GPU 1 that its driver tells."""
    mend = f"{FAKEGPU} set 1 {value.partition('=')[0]}="
    return Fault(name, f"{FAKEGPU} set 1 {value}", mend, check, (1,), remedy, reason, **more)


def _xid(code: int, remedy: str, **more) -> Fault:
    """An Xid of GPU 0 in the kernel's log."""
    inject, mend = f"{FAKEGPU} xid 0 {code}", f"{FAKEGPU} xid clear"
    return Fault(f"xid-{code}", inject, mend, "xid", (0,), remedy, f"Xid {code}", **more)


def _of_worker(name: str, inject: str, mend: str, check: str, reason: str, remedy: str) -> Fault:
    """A fault of all GPUs. No container is made then, so that isolation costs nothing."""
    return Fault(name, inject, mend, check, (), remedy, reason, level="isolation")


def _changed(name: str, path: str, change: str, check: str, reason: str) -> Fault:
    """A changed file of the charm."""
    kept = f"{_KEPT}-{check}"
    return _of_worker(
        name,
        f"cp -a {path} {kept}; {change}",
        f"mv {kept} {path}",
        check,
        reason,
        "it is restored within 5 minutes",
    )


def _runtime(name: str, says: str, check: str, reason: str, remedy: str) -> Fault:
    """Another program in the place of NVIDIA's runtime."""
    return _of_worker(
        name,
        f"mv {_RUNTIME} {_KEPT}; printf '#!/bin/sh\\n{says}\\n' >{_RUNTIME}; chmod 755 {_RUNTIME}",
        f"mv {_KEPT} {_RUNTIME}",
        check,
        reason,
        remedy,
    )


def _seen(name: str, so: str, check: str, remedy: str, reason: str, **more) -> Fault:
    """A fault that only the self-test sees: the worker goes on with its own files."""
    around = f"unshare -m /bin/sh -ec '{so}; exec \"$@\"' sh"
    return Fault(name, ":", ":", check, (), remedy, reason, around=around, **more)


def _disk(name: str, options: str) -> Fault:
    """A full file system."""
    mount = f"mount -t tmpfs -o {options} tmpfs /var/lib/concourse"
    return _seen(name, mount, "disk", "free space", "disk full", condemns=False)


_WORK = "/var/lib/concourse/worker"
_VOLUMES = _seen(
    "no-volumes", f"mount -B -o ro {_WORK} {_WORK}", "volumes", "journalctl -k", "no volumes",
    condemns=False,
)  # fmt: skip


_PORTS = Fault(
    "ports-open", "systemctl kill -s STOP gpu-ci-ports; nft delete table inet gpu_ci",
    "systemctl kill -s CONT gpu-ci-ports; sleep 3", "worker-ports", (),
    "systemctl restart concourse-worker", "worker ports open to every user", condemns=False,
)  # fmt: skip


def _node(name: str, inject: str, gpus: tuple[int, ...], remedy: str, reason: str, **more):
    """A device node that is not as the driver makes it."""
    mend, reason = f"{FAKEGPU} apply", f"device node {reason}"
    return Fault(name, inject, mend, "device-nodes", gpus, remedy, reason, **more)


def _lost(name: str, gpus: tuple[int, ...], how: str, remedy: str, **more) -> Fault:
    """GPUs that fall off the bus, or that no longer answer."""
    inject = "; ".join(f"{FAKEGPU} lose {gpu}{how}" for gpu in gpus)
    mend = "; ".join(f"{FAKEGPU} restore {gpu}" for gpu in gpus)
    return Fault(name, inject, mend, "inventory", gpus, remedy, "lost", **more)


_NODES = (
    _node("node-closed", "chmod 0660 /dev/nvidia1", (1,), "0666", "closed"),
    _node("node-missing", "rm /dev/nvidia1", (1,), "/dev/nvidia1", "missing"),
    _node(
        "node-of-another", "rm /dev/nvidia0; mknod -m 666 /dev/nvidia0 c 195 1", (0,),
        "/dev/nvidia0", "wrong",
    ),
    _node("uvm-missing", "rm /dev/nvidia-uvm", (), "/dev/nvidia-uvm", "missing"),
    _node(
        "uvm-tools-missing", "rm /dev/nvidia-uvm-tools", (), "/dev/nvidia-uvm-tools", "missing",
        warns=True,
    ),
)  # fmt: skip

_MEMORY = "/run/meminfo"
_CPU_MAX = "/sys/fs/cgroup/cpu.max"
_SIZE = (
    _seen("half-a-cpu", f"mount -t tmpfs x /sys/fs/cgroup; echo 50000 100000 >{_CPU_MAX}",
          "host-cpus", "minimums=memory=1GiB,gpu-memory=80GiB,", "too few CPUs"),
    _seen("little-memory", f"echo MemTotal: 9999 kB >{_MEMORY}; mount -B {_MEMORY} /proc/meminfo",
          "host-memory", "minimums=cpus=1,gpu-memory=80GiB,", "too little memory"),
)  # fmt: skip

_DRIVERS = (
    _lost("lost", (1,), "", "reseat", level="isolation"),
    _lost("silent", (1,), " --nvml-only", "dmesg", level="isolation"),
    _lost("all-lost", BOTH, "", "reseat"),
    _of_worker(
        "mismatch",
        f"{FAKEGPU} nvml-fault 18",
        f"{FAKEGPU} nvml-fault none",
        "driver",
        "driver and library differ",
        "install libnvidia-compute-580 of version",
    ),
    _of_worker(
        "nvml-error",
        f"{FAKEGPU} nvml-fault 999",
        f"{FAKEGPU} nvml-fault none",
        "driver",
        "NVML failed",
        "dmesg",
    ),
    _of_worker(
        "driver-gone",
        f"{FAKEGPU} driver gone",
        f"{FAKEGPU} driver loaded",
        "driver",
        "no driver",
        "ubuntu-drivers install",
    ),
    _of_worker(
        "library-missing",
        "rm /usr/lib/*/libnvidia-ml.so.*; ldconfig",
        f"{FAKEGPU} apply",
        "driver",
        "no NVML library",
        "install libnvidia-compute",
    ),
    _of_worker(
        "driver-old",
        f"echo 570.195.03 >{_DRIVER}; {FAKEGPU} apply",
        f"echo {fakes.DRIVER_VERSION} >{_DRIVER}; {FAKEGPU} apply",
        "driver-version",
        "driver too old",
        "install a newer driver",
    ),
)

_SOFTWARE = (
    _runtime(
        "toolkit-vulnerable",
        "echo NVIDIA Container Runtime version 1.17.7",
        "toolkit",
        "toolkit vulnerable",
        "install nvidia-container-toolkit 1.19.1 or newer",
    ),
    _runtime("toolkit-mute", "exit 1", "toolkit", "toolkit's version unknown", "1.19.1"),
    _of_worker(
        "toolkit-missing",
        f"mv {_RUNTIME} {_KEPT}",
        f"mv {_KEPT} {_RUNTIME}",
        "toolkit",
        "toolkit missing",
        "install nvidia-container-toolkit",
    ),
    _changed(
        "wrapper-replaced",
        _FRONT,
        f"printf '#!/bin/sh\\nexec /opt/concourse/current/bin/runc \"$@\"\\n' >{_FRONT}",
        "gpu-runtime",
        "GPU runtime changed",
    ),
    _changed("wrapper-mode", _FRONT, f"chmod 777 {_FRONT}", "gpu-runtime", "GPU runtime changed"),
    _changed(
        "back-end-changed",
        f"{_BACK_END}/policy.py",
        f"echo '# more' >>{_BACK_END}/policy.py",
        "gpu-runtime",
        "GPU runtime changed",
    ),
    _of_worker(
        "back-end-module-added",
        f"touch {_BACK_END}/json.py",
        f"rm {_BACK_END}/json.py",
        "gpu-runtime",
        "GPU runtime changed",
        "find out who changed it",
    ),
    _changed(
        "policy-changed",
        _POLICY,
        f"sed -i 's/exclusive/shared/' {_POLICY}",
        "gpu-runtime",
        "GPU runtime changed",
    ),
    _changed(
        "launcher-changed",
        _LAUNCHER,
        f"sed -i 's/^PATH=.*/:/' {_LAUNCHER}",
        "launcher",
        "launcher changed",
    ),
    _of_worker(
        "runc-before-ours",
        f"install -D /bin/true {_FOREIGN}",
        "rm -r /opt/containerd",
        "launcher",
        "launcher not in use",
        f"sudo rm {_FOREIGN}",
    ),
    _changed(
        "config-changed",
        _CONFIG,
        f"sed -i 's/^annotation-prefixes.*/annotation-prefixes = [\"cdi.k8s.io\\/\"]/' {_CONFIG}",
        "runtime-config",
        "NVIDIA runtime's configuration changed",
    ),
)

_HEALTH = (
    _of_gpu("ecc", "ecc-uncorrected-volatile=3", "ecc", "uncorrected ECC errors", "Reboot"),
    _of_gpu(
        "sram-ecc", "sram-uncorrected-volatile=1", "sram-ecc", "uncorrected SRAM errors", "Reboot"
    ),
    _of_gpu(
        "sram-worn", "sram-threshold-exceeded=1", "sram-ecc", "SRAM errors above", "Replace GPU"
    ),
    _of_gpu(
        "remap-failed", "remapped-rows-failed=1", "remapped-rows", "row remapping failed",
        "Replace GPU",
    ),
    _of_gpu(
        "remap-pending", "remapped-rows-pending=1", "remapped-rows", "row remapping waits",
        "Reboot", warns=True,
    ),
    _of_gpu(
        "pages-pending", "retired-pages-pending=1", "retired-pages", "page retirement waits",
        "Reboot",
    ),
    _of_gpu(
        "pages-used-up", "retired-pages=63", "retired-pages", "too many retired", "Replace GPU"
    ),
    _of_gpu(
        "recovery", f"field-{_RECOVERY_FIELD}=1", "recovery-action", "recovery needed",
        "have it reset",
    ),
    _of_gpu(
        "throttled", "throttle-reasons=0x48", "throttle", "throttled", "air flow", warns=True
    ),
    _of_gpu(
        "power-brake", "throttle-reasons=0x88", "throttle", "throttled", "power supply",
        warns=True,
    ),
    _of_gpu("narrow", "pcie-width=8", "pcie-width", "PCIe x8 of x16", "seat GPU 1"),
    _of_gpu("hot", "temperature=94", "temperature", "too hot", "air flow", condemns=False),
    _of_gpu("warm", "temperature=89", "temperature", "89 °C", "air flow", warns=True),
    _of_gpu("not-persistent", "persistence-mode=0", "persistence", "persistence mode is off",
            "nvidia-persistenced", warns=True),
    _of_gpu("small", "memory-mib=40960", "memory", "40 GiB", "memory=1GiB,gpu-memory=40GiB,"),
    _of_gpu("old", "compute-capability=7.5", "compute-capability", "compute capability 7.5",
            "gpu-memory=80GiB,compute-capability=7.5,"),
    _of_gpu("reset-required", "temperature=rc=16", "nvml", "NVML says", "have it reset"),
    _of_gpu("odd", "power-mw=rc=999", "nvml", "NVML does not answer everything", "have it reset",
            warns=True),
    _xid(79, "Reboot the machine"),
    _xid(48, "Reboot the machine"),
    _xid(95, "Reboot the machine"),
    _xid(94, "level=burn-in", warns=True),
)  # fmt: skip

FAULTS = (
    *_HEALTH,
    *_NODES,
    _disk("disk-full", "size=64k"),
    _disk("inodes-used-up", "nr_inodes=1"),
    _VOLUMES,
    _PORTS,
    *_SIZE,
    *_SOFTWARE,
    *_DRIVERS,
)

# What the kernel says of a program that crashes, whose name and file name are the driver's words.
_CRASH = (
    "4,99,99000000,-;NVRM:[18200]: segfault at 0 ip 0000000000401106 sp 00007ffe error 6 in "
    "x\\x0aNVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.[401000+1000]"
)

# What jobs do to themselves, and what ECC is there for: shell, and shell that undoes it.
HARMLESS = {
    "xid-13": (f"{FAKEGPU} xid 0 13", f"{FAKEGPU} xid clear"),
    "xid-31": (f"{FAKEGPU} xid 1 31", f"{FAKEGPU} xid clear"),
    "xid-43": (f"{FAKEGPU} xid 1 43", f"{FAKEGPU} xid clear"),
    "xid-forged": (f"printf '%s\\n' '{_CRASH}' >>/run/fake-gpu/kmsg", f"{FAKEGPU} xid clear"),
    "corrected": (
        f"{FAKEGPU} set 1 ecc-corrected-volatile=7 ecc-corrected-aggregate=900",
        f"{FAKEGPU} set 1 ecc-corrected-volatile= ecc-corrected-aggregate=",
    ),
    "long-ago": (
        f"{FAKEGPU} set 1 ecc-uncorrected-aggregate=2 remapped-rows-uncorrected=1",
        f"{FAKEGPU} set 1 ecc-uncorrected-aggregate= remapped-rows-uncorrected=",
    ),
    "power-cap": (
        f"{FAKEGPU} set 1 throttle-reasons=0x4",
        f"{FAKEGPU} set 1 throttle-reasons=",
    ),
}


def _instead(script: str) -> str:
    """Shell that puts a script in the place of NVIDIA's runtime, which it may call."""
    return f"mv {_RUNTIME} {_KEPT}; cat >{_RUNTIME} <<'END'\n{script}END\nchmod 755 {_RUNTIME}"


def _greedy(change: str) -> str:
    """The same, with a change that is made to each container's spec first."""
    return _instead(f"""#!/usr/bin/python3 -IS
import json, os, sys
if "create" in sys.argv:
    path = sys.argv[sys.argv.index("--bundle") + 1] + "/config.json"
    spec = json.load(open(path))
    {change}
    json.dump(spec, open(path, "w"))
os.execv("{_KEPT}", [sys.argv[0], *sys.argv[1:]])
""")


# What no version, file or sensor shows: shell by the check that turns red in containers alone.
INVISIBLE = {
    "lease": _greedy(
        'spec["process"]["env"] = [e.split("=GPU-")[0] + "=all" if "VISIBLE_DEVICES=GPU-" in e '
        'else e for e in spec["process"]["env"]]'
    ),
    "device-cgroup": _greedy(
        'spec["linux"]["resources"]["devices"].append('
        '{"allow": True, "type": "c", "major": 195, "access": "rwm"})'
    ),
    "disjoint": _instead(f"""#!/bin/sh
case "$*" in *create*disjoint-1*) exit 1 ;; esac
exec {_KEPT} "$@"
"""),
}
RUNTIME_BACK = f"mv {_KEPT} {_RUNTIME}"
