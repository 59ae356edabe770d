# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""For each state of a host, by its code: facts that are in it."""

import dataclasses

from gpu_agent.diagnosis.facts import Facts, Options
from gpu_agent.model.host import Driver, Packaged, Toolkit
from gpu_agent.model.inventory import Inventory, State
from tests.unit.situations import GPUS, RUNTIME, TOOLKIT

CARD, SECOND = "0000:01:00.0", "0000:02:00.0"
NOW, NEXT = "6.8.0-59-generic", "6.8.0-60-generic"
METAL = Driver(kernel=NOW, next_kernel=NOW)
OLD, NEW = "580.54.01", "580.65.06"
# As after an installation by the charm, and as after its packages were upgraded.
INSTALLED = dataclasses.replace(
    METAL, modules=((NOW, NEW),), library=NEW, branch="580-server", version=NEW, ours=True
)
LOADED = dataclasses.replace(INSTALLED, loaded=NEW)
UPGRADED = dataclasses.replace(INSTALLED, loaded=OLD)
CONTAINER = Driver(container=True, kernel=NOW, loaded=NEW)
BOUND = dataclasses.replace(CONTAINER, bound=True, library=NEW)
REFUSED = "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service"


def facts(state=State.READY, driver=LOADED, toolkit=TOOLKIT, packaged=None, **options):
    """What is found on a worker; detail as the rooms that look write it."""
    given = {name: options.pop(name) for name in ("vendor", "detail") if name in options}
    given.setdefault("vendor", "nvidia")
    if state is State.READY:
        given |= {"gpus": GPUS}
    else:
        given.setdefault("detail", CARD)
    instance = options.pop("instance", "")
    return Facts(
        inventory=Inventory(state, driver=driver.loaded, **given),
        driver=driver,
        toolkit=toolkit,
        packaged=packaged or Packaged(),
        options=chosen(**options),
        unit="worker/0",
        instance=instance,
    )


def chosen(**changes):
    """The options' defaults with these changes."""
    defaults = {
        "gpu_vendor": "auto", "gpu_driver": "auto", "may_reboot": False,
        "toolkit_version": "", "allow_vulnerable_toolkit": False,
    }  # fmt: skip
    return Options(**defaults | changes)


def changed(driver, **values):
    return dataclasses.replace(driver, **values)


def runtime(version):
    return Toolkit(RUNTIME, version)


GPU_ROWS = {
    "no-gpu-of-vendor": facts(State.NO_GPU, vendor="amd", detail="", gpu_vendor="amd"),
    "no-gpu": facts(State.NO_GPU, METAL, detail=""),
    "gpu-passthrough": facts(State.VFIO, METAL),
    "gpu-not-passed": facts(
        State.NOT_PASSED, CONTAINER, instance="juju-a1b2-0", detail=f"{CARD}, {SECOND}"
    ),
    "no-driver-on-host": facts(State.NOUVEAU, changed(CONTAINER, loaded="")),
    "reboot-needed-nouveau": facts(State.NOUVEAU, INSTALLED),
    "nouveau": facts(State.NOUVEAU, METAL),
    "no-kernel-driver": facts(State.NO_DRIVER, METAL, vendor="amd"),
    "module-unsigned": facts(
        State.NO_DRIVER, changed(INSTALLED, refused=REFUSED, secure_boot=True)
    ),
    "module-refused": facts(
        State.NO_DRIVER, changed(INSTALLED, refused="No such device", secure_boot=True)
    ),
    "gpu-not-driven": facts(State.NO_DRIVER, LOADED),
    "module-not-loaded-secure-boot": facts(
        State.NO_DRIVER, changed(INSTALLED, ours=False, secure_boot=True)
    ),
    "module-not-loaded": facts(State.NO_DRIVER, INSTALLED),
    "reboot-needed-kernel": facts(
        State.NO_DRIVER, changed(INSTALLED, next_kernel=NEXT, modules=((NEXT, NEW),))
    ),
    "module-missing": facts(State.NO_DRIVER, changed(INSTALLED, modules=())),
    "no-driver": facts(State.NO_DRIVER, METAL),
    "lxd-libraries-missing": facts(State.NO_LIBRARY, BOUND),
    "container-libraries-missing": facts(State.NO_LIBRARY, CONTAINER),
    "library-missing": facts(State.NO_LIBRARY, changed(METAL, loaded=NEW)),
    "lxd-libraries-differ": facts(State.MISMATCH, BOUND, detail=f"{NEW} and {OLD}"),
    "container-libraries-differ": facts(
        State.MISMATCH,
        changed(CONTAINER, version=OLD, library=OLD),
        detail=f"{NEW} and {OLD}",
    ),
    "reboot-needed": facts(State.MISMATCH, UPGRADED),
    "module-behind": facts(
        State.MISMATCH, changed(UPGRADED, next_kernel=NEXT, modules=((NEXT, OLD),))
    ),
    "libraries-differ": facts(
        State.MISMATCH, changed(METAL, loaded=OLD), detail=f"{OLD} and {NEW}"
    ),
    "driver-hangs": facts(State.HUNG, detail="no answer within 20 s"),
    "nvml-failed": facts(State.NVML_ERROR, detail="Unknown Error"),
    "not-in-kfd": facts(State.NO_KFD, METAL, vendor="amd"),
    "gpus-ready-lxd": facts(driver=BOUND),
    "gpus-ready": facts(),
}
TOOLKIT_ROWS = {
    "no-toolkit-needed": facts(vendor="intel", toolkit=None),
    "chosen-toolkit-too-old": facts(
        toolkit=None, toolkit_version="1.9.0-1", allow_vulnerable_toolkit=True
    ),
    "chosen-toolkit-vulnerable": facts(
        packaged=Packaged("1.20.0-1", ours=True), toolkit_version="1.17.8-1"
    ),
    "toolkit-missing": facts(toolkit=None),
    "toolkit-version-unreadable": facts(toolkit=runtime("")),
    "toolkit-too-old": facts(toolkit=runtime("1.12.1"), allow_vulnerable_toolkit=True),
    "toolkit-vulnerable": facts(toolkit=runtime("1.17.7")),
    "toolkit-ready": facts(),
}
NOTES = {
    "reboot-pending": facts(driver=UPGRADED),
    "other-branch-installed": facts(gpu_driver="595-server"),
    "gpu-driver-ignored": facts(
        driver=changed(LOADED, ours=False, branch="", version=""), gpu_driver="580"
    ),
    "next-boot-without-module": facts(driver=changed(LOADED, next_kernel=NEXT)),
    "next-boot-without-module-of-others": facts(
        driver=changed(LOADED, next_kernel=NEXT, ours=False, branch="", version="")
    ),
    "toolkit-vulnerable-allowed": facts(toolkit=runtime("1.17.7"), allow_vulnerable_toolkit=True),
    "toolkit-faulty": facts(toolkit=runtime("1.17.1"), allow_vulnerable_toolkit=True),
    "toolkit-untested": facts(toolkit=runtime("1.21.0")),
    "toolkit-rolled-back": facts(packaged=Packaged("1.19.1-1", ours=True, bad=("1.20.0-1",))),
}
