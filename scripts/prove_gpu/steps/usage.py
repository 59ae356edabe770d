# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A known load, as figures, clock reasons, usage record and the search for foreign use see it."""

import statistics
import time

from gpu_agent.availability import external_processes, residual_memory
from gpu_agent.gpu.vendors.nvidia import nvml, nvml_metrics
from gpu_agent.model import clock_reasons
from gpu_agent.model.card import Card, Figures
from gpu_agent.model.inventory import Gpu, Inventory
from gpu_agent.model.observations import Holding
from gpu_agent.reporting.receipts.account import Account, Sample, throttles
from gpu_runtime.unavailable import EXTERNAL
from prove_gpu import rig
from prove_gpu.proof import NotRunError, Proof

# The load's memory, more than what an idle GPU may have taken (residual_memory), as a part of all
# memory and in MiB; and how much a CUDA context takes in addition.
_PART, _MIB, _CONTEXT = 0.05, 2048, 2048
_SECONDS = 14
_COPIES = {
    "within_gbps": "copies within the GPU, read and written",
    "to_device_gbps": "copies from the host, pinned",
    "to_host_gbps": "copies to the host, pinned",
}
# Seconds that a killed process's memory may take at most: external_processes looks again after
# them, and a GPU that is not free then does not go to a task.
_SETTLE = 2
# How long is waited for it, in seconds.
_MOST = 10
_REASONS = {
    clock_reasons.IDLE: "idle",
    clock_reasons.APPLICATION_CLOCKS: "clocks as set",
    clock_reasons.SOFTWARE_POWER_CAP: "power cap",
    clock_reasons.HARDWARE_SLOWDOWN: "hardware slowdown",
    clock_reasons.SOFTWARE_THERMAL: "software thermal slowdown",
    clock_reasons.HARDWARE_THERMAL: "hardware thermal slowdown",
    clock_reasons.POWER_BRAKE: "power brake",
}


def usage(proof: Proof) -> None:
    """Load a GPU for some seconds, and look at it as the health service does."""
    found, gpu = _gpu()
    with nvml.session() as binding:
        device = nvml_metrics.find(binding, gpu.uuid, gpu.pci_address)
        idle = nvml_metrics.read(device)
        proof.equal("foreign use before the load", (), _foreign(found))
        account, began = _account(gpu)
        samples = [Sample(_boottime(), idle)]
        reasons: list[int] = []
        mib = max(_MIB, int(gpu.memory_mib * _PART))
        with rig.load(gpu.uuid, mib, _SECONDS) as load:
            pid = load.pid
            for name, words in _COPIES.items():
                proof.figure(words, load.said[0][name], "GB/s")
            foreign: tuple[tuple[str, str], ...] = ()
            end = time.monotonic() + _SECONDS - 2
            while time.monotonic() < end:
                time.sleep(1)
                now = Sample(_boottime(), nvml_metrics.read(device))
                account.look(gpu.uuid, samples[-1], now, alone=True)
                samples.append(now)
                if now.figures.reasons is not None:
                    reasons.append(now.figures.reasons)
                if len(samples) == 4:
                    foreign = _foreign(found)
            while load.read():
                pass
            load.wait(20)
        over = _boottime()
        account.close(over, {gpu.uuid: samples[-1]})
        held = over - began
        _judge(proof, samples, pid, idle, mib)
        _judge_reasons(proof, reasons)
        _judge_receipt(proof, account, samples, held)
        proof.check(
            "foreign use during the load",
            [one for one, _ in foreign] == [gpu.uuid],
            "this GPU",
            foreign,
        )
        free = rig.until(lambda: not _is_on(device, pid, idle), 5)
        proof.check(
            "it is gone from the figures after its end", free is not None, "within 5 s", free
        )
    proof.equal("foreign use after the load", (), _foreign(found))


def _gpu() -> tuple[Inventory, Gpu]:
    found = rig.inventory()
    whole = [gpu for gpu in found.gpus if not gpu.mig_enabled]
    if not whole:
        raise NotRunError("MIG is on for every GPU")
    gpu = whole[0]
    used = nvml.uses([gpu.uuid]).get(gpu.uuid)
    if used and (used.computing or used.drawing):
        raise NotRunError(f"processes {used.computing + used.drawing} use GPU {gpu.index}")
    return found, gpu


def _account(gpu: Gpu) -> tuple[Account, float]:
    cards = (Card(gpu.uuid, gpu.index, gpu.pci_address, gpu.model, gpu.devices),)
    began = _boottime()
    holding = Holding("prove-usage", "", gpu.devices, began, in_use=True)
    return Account.opened(holding, cards, began, "2026-01-01T00:00:00Z"), began


def _foreign(found: Inventory) -> tuple[tuple[str, str], ...]:
    """Return the GPUs in use without a lease, each with the cause."""
    said = external_processes.look(found, dict, dict)
    return tuple((uuid, cause.describe()) for uuid, cause in said if cause.kind == EXTERNAL)


def _judge(proof: Proof, samples: list[Sample], pid: int, idle: Figures, mib: int) -> None:
    """Judge the figures; the first second and the last are not whole ones of load."""
    figures = [sample.figures for sample in samples[2:]]
    proof.equal("failures during the load", set(), {one.failure for one in figures} - {""})
    busy = statistics.median(one.busy or 0 for one in figures)
    proof.check("busy, in percent", busy >= 50, "at least 50", busy)
    used = [one.memory_used_mib for one in figures if one.memory_used_mib is not None]
    if used and idle.memory_used_mib is not None:
        more = max(used) - idle.memory_used_mib
        within = mib <= more <= mib + _CONTEXT
        proof.check("memory of the load, in MiB", within, f"{mib} to {mib + _CONTEXT}", more)
        proof.figure("memory of a CUDA context", more - mib, "MiB")
    else:
        proof.left_out("memory of the load", "this GPU does not report it")
    pids = {one for each in figures for one in each.pids or ()}
    if rig.sees_all_processes():
        proof.equal("processes on the GPU", {pid}, pids)
    else:
        why = f"in a PID namespace NVML may number them otherwise: {sorted(pids)}, here {pid}"
        proof.left_out("processes on the GPU", why)
        proof.check("number of processes on the GPU", len(pids) <= 1, "at most 1", len(pids))
    watts = [one.power_w for one in figures if one.power_w is not None]
    if watts and idle.power_w is not None:
        most = max(watts)
        proof.check("power under load, in W", most > idle.power_w, f"over {idle.power_w}", most)
    clocks = [one.sm_clock_mhz for one in figures if one.sm_clock_mhz]
    heat = [one.temperature for one in figures if one.temperature is not None]
    for name, values, unit in (
        ("power", watts, "W"), ("SM clock", clocks, "MHz"), ("temperature", heat, "°C"),
    ):  # fmt: skip
        if values:
            proof.figure(f"{name} under load, highest", max(values), unit)


def _judge_reasons(proof: Proof, reasons: list[int]) -> None:
    under_load = reasons[1:]
    if not under_load:
        proof.left_out("reasons for a lower clock", "this GPU does not report them")
        return
    idle = sum(bool(one & clock_reasons.IDLE) for one in under_load)
    proof.check("looks that call the loaded GPU idle", idle == 0, 0, idle)
    seen = {words for bit, words in _REASONS.items() if any(one & bit for one in under_load)}
    proof.figure("reasons for a lower clock under load", ", ".join(sorted(seen)) or "none")
    named = {name for one in under_load for name in throttles(one)}
    proof.figure("of these, in the usage record", ", ".join(sorted(named)) or "none")
    known = 0
    for bit in _REASONS:
        known |= bit
    others = {hex(one & ~known) for one in under_load if one & ~known}
    proof.figure("bits without a name here", ", ".join(sorted(others)) or "none")


def _judge_receipt(proof: Proof, account: Account, samples: list[Sample], held: float) -> None:
    (gpu,) = account.receipt("2026-01-01T00:01:00Z", over=True).gpus
    proof.near("usage record: watched, in s", held, gpu.watched_s, 2)
    proof.near("usage record: used, in s", held, gpu.used_s, 3)
    busy = gpu.busy_percent or 0
    proof.check("usage record: busy, in percent", busy >= 50, "at least 50", busy)
    if gpu.memory_peak_mib is not None:
        peak = max(sample.figures.memory_used_mib or 0 for sample in samples)
        proof.equal("usage record: peak of memory, in MiB", peak, gpu.memory_peak_mib)
    watts = [sample.figures.power_w for sample in samples[1:]]
    if gpu.energy_j is None or None in watts:
        proof.left_out("usage record: energy", "this GPU does not report it")
    else:
        # Power draw is a mean of the last second on recent GPUs, an instant on others.
        mean = statistics.mean(one or 0 for one in watts)
        proof.near("usage record: energy, in J", mean * held, gpu.energy_j, mean * held * 0.35)
        proof.figure("energy of the load", round(gpu.energy_j), "J")
    proof.equal("usage record: failure", "", gpu.failed)


def _is_on(device: nvml_metrics.Device, pid: int, idle: Figures) -> bool:
    now = nvml_metrics.read(device)
    more = (now.memory_used_mib or 0) - (idle.memory_used_mib or 0)
    return pid in (now.pids or ()) or more > 64


def killed(proof: Proof) -> None:
    """Kill a process with memory on the GPU, and see how long that memory stays taken."""
    _, gpu = _gpu()
    with nvml.session() as binding:
        device = nvml_metrics.find(binding, gpu.uuid, gpu.pci_address)
        before = nvml_metrics.read(device)
        total, used = before.memory_total_mib, before.memory_used_mib
        if not total or used is None:
            raise NotRunError("this GPU does not report its memory")
        # As large as jobs are: freeing takes time for each page.
        mib = min(total * 3 // 4, total - used - 1024)
        with rig.load(gpu.uuid, mib, 30) as load:
            taken = nvml_metrics.read(device).memory_used_mib or 0
            says = residual_memory.is_taken(taken, total)
            proof.check("memory counts as taken while it lives", says, True, f"{taken} MiB")
            proof.figure("memory of the process", mib, "MiB")
            at = load.kill()
            while time.monotonic() - at < _MOST:
                now = nvml_metrics.read(device)
                if (now.memory_used_mib or 0) <= used + 64 and not now.pids:
                    break
                time.sleep(0.02)
            seconds = time.monotonic() - at
    last = nvml.uses([gpu.uuid])[gpu.uuid]
    proof.near("memory used after its end, in MiB", used, last.used_mib, 64)
    proof.equal("processes after its end", (), last.computing)
    says = residual_memory.is_taken(last.used_mib, total)
    proof.equal("memory counts as taken after its end", False, says)
    proof.check("seconds until it is free", seconds <= _SETTLE, f"at most {_SETTLE}", seconds)
    proof.figure("from the kill until its memory is free", round(seconds, 2), "s")


def _boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
