# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Whether there is a driver that answers, and what there is beside it."""

import os
import pathlib
import shutil

from gpu_agent.gpu.vendors.nvidia import nvml
from machine import process
from prove_gpu import rig, smi
from prove_gpu.proof import NotRunError, Proof


def answers(proof: Proof) -> None:
    """Ask NVML and nvidia-smi whether they answer."""
    answer = nvml.read()
    proof.check("NVML lists GPUs", bool(answer.gpus), "at least one", len(answer.gpus))
    proof.equal("GPUs that don't answer NVML", [], list(answer.failures))
    proof.figure("driver", answer.driver)
    proof.figure("CUDA, the highest that the driver supports", answer.cuda)
    for gpu in answer.gpus:
        proof.figure(f"GPU {gpu.index}", gpu.model)
        proof.figure(f"GPU {gpu.index}: memory", gpu.memory_mib, "MiB")
        mig = f"on, {len(gpu.mig)} devices" if gpu.mig_enabled else "off"
        proof.figure(f"GPU {gpu.index}: MIG", mig)
    proof.figure("processors", os.cpu_count() or 0)
    proof.figure("all processes of the machine are visible", rig.sees_all_processes())
    proof.figure("/proc/driver/nvidia", pathlib.Path("/proc/driver/nvidia/version").exists())
    try:
        said = process.run([smi.program(), "-L"], timeout=30).stdout
    except NotRunError as why:
        proof.left_out("nvidia-smi", str(why))
    else:
        listed = sum(line.startswith("GPU ") for line in said.splitlines())
        proof.equal("number of GPUs, by nvidia-smi -L", listed, len(answer.gpus))
    # It also makes /dev/nvidia-uvm, which a machine has only once CUDA has run.
    try:
        with rig.load(answer.gpus[0].devices[0], 64, 0) as load:
            proof.check("CUDA starts", load.said[0]["mib"] == 64, "64 MiB", load.said[0]["mib"])
    except (NotRunError, IndexError) as why:
        proof.left_out("CUDA", str(why))
    for name in ("runc", "nvidia-container-runtime", "systemctl"):
        proof.figure(name, shutil.which(name) or "none")
