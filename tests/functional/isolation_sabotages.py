# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Sabotages of the wrapper and of what it calls, and which checks of isolation see each."""

import pytest

from tests.functional.containerd_worker import RUNTIME

ALL = {
    *("lease", "no-lease", "image-all", "cuda-version-only", "annotation", "volume-mount"),
    *("environment", "exec-environment", "device-cgroup", "disjoint", "reclaim"),
}
NVIDIA_DOORS = {"image-all", "cuda-version-only", "annotation", "volume-mount"}
ALLOCATION = {"disjoint", "reclaim"}
NEED_A_LEASE = NVIDIA_DOORS | ALLOCATION | {"environment", "exec-environment"}
LIB, CONFIG = "/opt/gpu-ci/lib/gpuci", "/etc/gpu-ci/nvidia-container-runtime/config.toml"


def grants_all(machine):
    machine.edit(f"{LIB}/grant.py", '",".join(self.ids) if by_runtime', '"all" if by_runtime')


def grants_none(machine):
    machine.edit(f"{LIB}/grant.py", '",".join(self.ids) if by_runtime', '"void" if by_runtime')


def passes_annotations_on(machine):
    machine.edit(f"{LIB}/container_spec.py", '"cdi.k8s.io/"', '"none/"')
    machine.edit(CONFIG, "annotation-prefixes = []", 'annotation-prefixes = ["cdi.k8s.io/"]')


def takes_every_annotation(machine):
    machine.edit(CONFIG, "annotation-prefixes = []", 'annotation-prefixes = [""]')


def passes_volume_mounts_on(machine):
    machine.edit(f"{LIB}/container_spec.py", '"/var/run/nvidia-c', '"/none')
    name = "accept-nvidia-visible-devices-as-volume-mounts"
    machine.edit(CONFIG, f"{name} = false", f"{name} = true")


def lets_images_choose(machine):
    machine.edit(f"{LIB}/environment.py", "dropped = DOORS | ours.keys()", "dropped = DOORS")
    machine.edit(f"{LIB}/environment.py", "return kept + [", "return [")
    machine.edit(f"{LIB}/environment.py", "in ours.items()]", "in ours.items()] + kept")


def sends_all_to_nvidia(machine):
    line = f'XDG_CONFIG_HOME=/etc/gpu-ci exec {RUNTIME} "$@"'
    machine.edit("/opt/gpu-ci/bin/runc", '    exec "$runc" "$@"', f"    {line}")


def is_the_plain_runtime(machine):
    line = f'#!/bin/sh\nXDG_CONFIG_HOME=/etc/gpu-ci exec {RUNTIME} "$@"\n'
    machine.put("/opt/gpu-ci/bin/runc", line)


def is_the_plain_runc(machine):
    machine.put("/opt/gpu-ci/bin/runc", '#!/bin/sh\nexec /opt/concourse/current/bin/runc "$@"\n')


def forgets_exec(machine):
    machine.edit(f"{LIB}/task_call.py", "replace(path, spec.at_exec(", "str((spec.at_exec(")
    machine.edit(f"{LIB}/task_call.py", "*told), like=path)", "*told)))")


def never_reclaims(machine):
    head = '"""Whether the holder still uses its devices.\n'
    machine.edit(f"{LIB}/holder_usage.py", head, f'"""."""\n        return True\n        {head}')


def leaves_children(machine):
    call = "self._end_calls(holder)\n        # Stored"
    machine.edit(f"{LIB}/holder_usage.py", call, "return True\n        # Stored")


def forgets_holders(machine):
    machine.edit(f"{LIB}/lease_table.py", "if device not in blocked]", "]")


def changing_runc(change):
    """A runc that changes each container's `config` by these lines of Python."""
    return f"""#!/bin/sh
case " $* " in *" create "*)
    /usr/bin/python3 -IS - "$@" <<'END' || exit 1
import json, sys
path = sys.argv[sys.argv.index("--bundle") + 1] + "/config.json"
config = json.load(open(path))
{change}
json.dump(config, open(path, "w"))
END
esac
exec /usr/sbin/runc "$@"
"""


# A runc that allows a container every device.
OPEN_RUNC = changing_runc(
    'config["linux"]["resources"]["devices"].append({"allow": True, "access": "rwm"})'
)


def opens_the_device_cgroup(machine):
    machine.put("/opt/concourse/current/bin/runc", OPEN_RUNC)


# Each with the checks that turn red, and those that can't run then.
SABOTAGES = [
    (grants_all, {"lease"}, NEED_A_LEASE),
    (grants_none, {"lease"}, NEED_A_LEASE),
    (passes_annotations_on, {"annotation"}, set()),
    (lets_images_choose, {"image-all", "environment", "exec-environment"}, set()),
    (sends_all_to_nvidia, {"no-lease"}, set()),
    # A malformed variable then reaches runc, which starts no process with it.
    (forgets_exec, {"environment", "exec-environment"}, set()),
    (never_reclaims, {"reclaim"}, set()),
    (leaves_children, {"reclaim"}, set()),
    # Whoever is given a GPU that is taken finds the killed task's child on it too.
    (forgets_holders, {"disjoint", "reclaim"}, set()),
    (opens_the_device_cgroup, {"device-cgroup"}, set()),
]
# Seen in the same places as some of those: `make soak` runs them.
AS_OTHERS = [
    (is_the_plain_runtime, {"lease", "no-lease"}, NEED_A_LEASE),
    (is_the_plain_runc, {"lease"}, NEED_A_LEASE),
]
WITH_THE_REAL_RUNTIME = [
    (takes_every_annotation, {"annotation"}, set()),
    (passes_volume_mounts_on, {"volume-mount"}, set()),
]


def at_once(sabotages, alone):
    """Those that turn different checks red, together, or each alone: parameters of a test."""
    groups = []
    for sabotage, red, not_run in sabotages:
        fits = [one for one in groups if not (one[1] & red or one[2] or not_run)]
        if alone or not fits:
            groups.append(([sabotage], set(red), not_run))
        else:
            fits[0][0].append(sabotage)
            fits[0][1].update(red)
    return [
        pytest.param(*group, id="+".join(one.__name__ for one in group[0])) for group in groups
    ]
