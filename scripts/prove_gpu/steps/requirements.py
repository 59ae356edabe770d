# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Requirements of images, judged against the real driver and GPUs."""

import pathlib
import tempfile

from gpu_agent.model.inventory import Inventory
from gpu_runtime import image_requirements
from gpu_runtime.environment import Variables
from gpu_runtime.policy import Policy
from gpu_runtime.refusal import Refused
from prove_gpu import rig, smi
from prove_gpu.proof import NotRunError, Proof

_LOADED = pathlib.Path("/proc/driver/nvidia/version")


def requirements(proof: Proof) -> None:
    """Judge conditions that hold, and conditions that do not hold, on this machine."""
    found = rig.inventory()
    driver, cuda, arch = _told(proof, found)
    major, branch = int(cuda.split(".")[0]), int(driver.split(".")[0])
    gpu = found.gpus[0]
    with tempfile.TemporaryDirectory() as folder:
        _, policy = rig.write_policy(pathlib.Path(folder), found)
    fits = [
        f"cuda>={cuda}", f"cuda>={major}.0", "cuda>=11.0", f"cuda={cuda}", f"cuda<{major + 1}.0",
        f"driver>={driver}", f"driver={driver}", f"driver={driver}.0", f"driver>={branch}",
        f"driver<{branch + 1}", f"arch>={arch}", f"arch={arch}", "arch>=3.5",
        f"cuda>={major + 1}.0 driver>={branch}", f"brand={gpu.brand},driver>={branch}",
        f"cuda>={cuda},driver={driver},arch={arch}", f"CUDA>={cuda}",
        # As text each of these would be on the other side.
        "cuda<100.0", "cuda>9.0", "driver<1000", "arch<100.0",
    ]  # fmt: skip
    unmet = [
        f"cuda>={major + 1}.0", f"cuda<{cuda}", f"cuda>{cuda}", f"cuda!={cuda}",
        f"driver>{driver}", f"driver<{driver}", f"driver>={branch + 1}", "driver<1",
        f"arch>{arch}", f"arch<{arch}", f"brand!={gpu.brand}",
        f"cuda>={cuda},driver<{driver}", f"cuda>={major + 1}.0 driver<{driver}",
        "driver>=1000", "cuda<9.0",
    ]  # fmt: skip
    if not gpu.brand:
        fits = [text for text in fits if "brand" not in text]
        unmet = [text for text in unmet if "brand" not in text]
        proof.left_out("brand", "this driver does not report it")
    cases = {
        **dict.fromkeys(fits, "fits"),
        **dict.fromkeys(unmet, "requirement-unmet"),
        **dict.fromkeys(("cuda>=x", "os=linux", "cuda", "brand>=tesla"), "requirement-invalid"),
    }
    for text, expected in cases.items():
        said = _judged(policy, [f"NVIDIA_REQUIRE_CUDA={text}"])
        proof.equal(f"NVIDIA_REQUIRE_CUDA={text}", expected, said)
    impossible = f"NVIDIA_REQUIRE_CUDA=cuda>={major + 1}.0"
    proof.equal(
        "NVIDIA_DISABLE_REQUIRE=true",
        "requires nothing",
        _judged(policy, [impossible, "NVIDIA_DISABLE_REQUIRE=true"]),
    )
    for version, expected in ((f"{cuda}.1", "fits"), (f"{major + 1}.0.0", "requirement-unmet")):
        said = _judged(policy, [f"CUDA_VERSION={version}"])
        proof.equal(f"an image with CUDA_VERSION={version}", expected, said)
    forward = not gpu.brand.startswith(("geforce", "titan"))
    proof.equal(
        "an image with a newer libcuda of its own",
        "fits" if forward else "requirement-unmet",
        _judged(policy, [impossible], own=f"{branch + 100}.0"),
    )
    proof.equal(
        "an image with an older libcuda of its own",
        "requirement-unmet",
        _judged(policy, [impossible], own=f"{branch - 1}.0"),
    )
    if _LOADED.exists():
        # The loaded driver counts, not the one that was there when the policy was written.
        policy.driver = "1.0"
        proof.equal(
            "the loaded driver, with another one in the policy",
            "fits",
            _judged(policy, [f"NVIDIA_REQUIRE_CUDA=driver={driver}"]),
        )
    else:
        proof.left_out("the loaded driver", f"{_LOADED} does not exist here")


def _told(proof: Proof, found: Inventory) -> tuple[str, str, str]:
    """Return driver, CUDA version and compute capability, by nvidia-smi where it reports them."""
    driver, cuda, arch = found.driver, found.cuda, found.gpus[0].arch
    try:
        first = smi.query("driver_version")[found.gpus[0].uuid]
        driver = first["driver_version"] or driver
        cuda = smi.text(smi.document(), "cuda_version") or cuda
        arch = smi.first_known("compute_cap").get(found.gpus[0].uuid) or arch
    except NotRunError as why:
        proof.left_out("the driver's version by nvidia-smi", str(why))
    if not (driver and cuda and arch):
        raise NotRunError(f"driver {driver!r}, CUDA {cuda!r}, arch {arch!r}: one is not known")
    return driver, cuda, arch


def _judged(policy: Policy, variables: list[str], own: str = "") -> str:
    """Return `fits`, the refusal's code, or how many GPUs of several do not fit."""
    required = Variables(variables).required()
    if not required:
        return "requires nothing"
    try:
        said = image_requirements.unfit(
            policy, required, "task", lambda: [own] if own else list[str]()
        )
    except Refused as refusal:
        return refusal.code
    return f"{len(said)} GPUs do not fit" if said else "fits"
