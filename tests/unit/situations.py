# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the charm's door is tested with: units in their situations, and rooms that only note."""

import dataclasses
import pathlib

from ops import testing

import found
import plan
from ci import keys
from gpu.inventory import Gpu, Inventory, State, Vendor

ROOT = pathlib.Path(__file__).parents[2]
WORKER_KEY = keys.public_key_line(keys.generate_private_key())
HOST_PEM = keys.generate_private_key()
HOST_KEY = keys.public_key_line(HOST_PEM)
GPUS = tuple(
    Gpu(
        index=index,
        uuid=f"GPU-0000000{index}-1111-2222-3333-444444444444",
        vendor=Vendor.NVIDIA,
        model="NVIDIA A100-SXM4-80GB",
        memory_mib=81920,
        pci_address=f"0000:0{index + 1}:00.0",
        minor=index,
    )
    for index in range(2)
)


EMPTY = pathlib.Path("/dev/null")


@dataclasses.dataclass
class Rooms:
    """What the charm asked of its rooms, and what they answer."""

    calls: list[str] = dataclasses.field(default_factory=list)
    inventory: Inventory = Inventory(State.READY, GPUS, driver="580.95.05", cuda="13.0")
    machine: found.Machine = found.Machine(
        "amd64", found.Toolkit("/usr/bin/nvidia-container-runtime", "1.20.0")
    )
    worker: plan.WorkerPlan | None = None
    web: plan.WebPlan | None = None
    gpu: plan.GpuPlan | None = None
    leaving: bool = False

    def keep(self, part, name):
        def call(wanted, *_):
            setattr(self, part, wanted)
            self.calls.append(name)

        return call

    def note(self, name, answer=None):
        def call(*_, **__):
            self.calls.append(name)
            return answer

        return call


@dataclasses.dataclass(frozen=True)
class Release:
    version: str = "8.3.0"


def tsa(endpoint="worker-tsa", interface="concourse-tsa", **data):
    good = {
        "tsa-host": "10.0.0.5:2222",
        "tsa-public-key": HOST_KEY,
        "concourse-version": "8.3.0",
    }
    given = {key.replace("_", "-"): value for key, value in data.items()}
    remote = {key: value for key, value in {**good, **given}.items() if value}
    return testing.Relation(
        endpoint, interface=interface, remote_app_name="web", remote_units_data={0: remote}
    )


def workers(*keys_, endpoint="web-tsa", interface="concourse-tsa"):
    units = {n: {"worker-public-key": key} if key else {} for n, key in enumerate(keys_)}
    return testing.Relation(
        endpoint, interface=interface, remote_app_name="worker", remote_units_data=units
    )


def database(**data):
    return testing.Relation(
        "postgresql",
        remote_app_name="postgresql",
        remote_app_data=data
        or {"endpoints": "10.0.0.9:5432", "username": "u", "password": "p w'$\""},
    )


def state(mode="worker", relations=(), leader=True, **config):
    options = {"deployment-mode": mode}
    options.update({key.replace("_", "-"): value for key, value in config.items()})
    return testing.State(
        config=options,
        relations=[testing.PeerRelation("peers"), *relations],
        leader=leader,
        resources=[testing.Resource(name="concourse", path=EMPTY)],
    )
