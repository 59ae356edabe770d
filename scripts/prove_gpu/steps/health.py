# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Health, figures and events of real GPUs."""

import dataclasses
import select
import time
import xml.etree.ElementTree as ET

from gpu_agent.gpu.probe import driver_probe
from gpu_agent.gpu.vendors.nvidia import nvml, nvml_health, nvml_metrics
from gpu_agent.gpu.vendors.nvidia.nvml_events import Events
from gpu_agent.model import clock_reasons
from gpu_agent.model.card import Card, Figures
from gpu_agent.model.gpu_health import Health
from gpu_agent.model.inventory import Gpu
from gpu_agent.model.observations import Hang, Look
from gpu_agent.model.recovery_action import WORDS
from machine import child_process
from prove_gpu import rig, smi
from prove_gpu.proof import NotRunError, Proof

_ECC = {
    f"ecc.errors.{kind}.{counter}.total": f"{kind}_{counter}"
    for kind in ("corrected", "uncorrected")
    for counter in ("volatile", "aggregate")
}
# How many event sets are made one after another, and how long each is waited for, in ms.
_SETS, _WAIT = 3, 1500
# nvmlEventTypeXidCriticalError of nvml.h.
_XID = 0x8


def health(proof: Proof) -> None:
    """Compare what is read from NVML with what nvidia-smi reports just before and after."""
    found = rig.inventory()
    uuids = [gpu.uuid for gpu in found.gpus]
    before = _smi(proof)
    healths = nvml_health.read(uuids)
    figures = {gpu.uuid: _figures(gpu) for gpu in found.gpus}
    after = _smi(proof) if before else {}
    for gpu in found.gpus:
        told, one = f"GPU {gpu.index}: ", healths[gpu.uuid]
        proof.equal(f"{told}failure", "", one.failure)
        proof.equal(f"{told}first query that failed", "", one.trouble)
        unknown = [name for name, value in dataclasses.asdict(one).items() if value is None]
        proof.figure(f"{told}not reported", ", ".join(unknown) or "nothing")
        _energy(proof, told, figures[gpu.uuid])
        proof.equal(
            f"{told}compute capability, by the inventory",
            gpu.arch,
            ".".join(map(str, one.compute_capability or ())),
        )
        first, last, _ = figures[gpu.uuid]
        proof.equal(f"{told}failure of its figures", "", first.failure + last.failure)
        if gpu.uuid in before and gpu.uuid in after:
            _compare(proof, told, one, before[gpu.uuid], after[gpu.uuid])
            _compare_figures(proof, told, last, after[gpu.uuid])


def _smi(proof: Proof) -> dict[str, tuple[ET.Element, dict[str, str | None]]]:
    """Return the document's part and the ECC counters of each GPU; empty without nvidia-smi."""
    try:
        parts, counters = smi.gpus(smi.document()), smi.query(*_ECC)
    except NotRunError as why:
        proof.left_out("comparison with nvidia-smi", str(why))
        return {}
    limits = smi.first_known("enforced.power.limit")
    reasons = smi.first_known("clocks_event_reasons.active", "clocks_throttle_reasons.active")
    return {
        uuid: (
            parts[uuid],
            {**counters[uuid], "limit": limits.get(uuid), "reasons": reasons.get(uuid)},
        )
        for uuid in parts.keys() & counters.keys()
    }


def _figures(gpu: Gpu) -> tuple[Figures, Figures, float]:
    """Read a GPU's figures twice in one session; return them, and the seconds in between."""
    with nvml.session() as binding:
        device = nvml_metrics.find(binding, gpu.uuid, gpu.pci_address)
        first, began = nvml_metrics.read(device), time.monotonic()
        time.sleep(1)
        return first, nvml_metrics.read(device), time.monotonic() - began


def _energy(proof: Proof, told: str, figures: tuple[Figures, Figures, float]) -> None:
    """Check that the energy counter rises as the power draw says; it counts in steps of 0.1 s."""
    first, last, seconds = figures
    if first.energy_j is None or last.energy_j is None or first.power_w is None:
        proof.left_out(f"{told}energy", "this GPU or its driver does not report it")
        return
    watts = (last.energy_j - first.energy_j) / seconds
    proof.near(
        f"{told}power by the energy counter, in W",
        first.power_w,
        watts,
        max(30, first.power_w / 2),
    )
    proof.figure(f"{told}power when idle", first.power_w, "W")


def _compare(
    proof: Proof,
    told: str,
    one: Health,
    before: tuple[ET.Element, dict[str, str | None]],
    after: tuple[ET.Element, dict[str, str | None]],
) -> None:
    part, row = after
    ecc = {"Enabled": True, "Disabled": False}.get(smi.text(part, "ecc_mode/current_ecc") or "")
    proof.equal(f"{told}ECC", ecc, one.ecc)
    for field, name in _ECC.items():
        count, value = row[field], getattr(one, name)
        proof.equal(f"{told}ECC errors, {name}", count and int(count), value)
    total = smi.number(part, "fb_memory_usage/total")
    proof.near(f"{told}memory in MiB", total, one.memory_mib, 1)
    widths = [
        smi.number(seen[0], "pci/pci_gpu_link_info/link_widths/current_link_width")
        for seen in (before, after)
    ]
    proof.check(f"{told}PCIe lanes", one.pcie_width in widths, widths, one.pcie_width)
    most = smi.number(part, "pci/pci_gpu_link_info/link_widths/max_link_width")
    if most is None or one.pcie_width_max is None:
        proof.equal(f"{told}most PCIe lanes", most, one.pcie_width_max)
    else:
        within = 0 < one.pcie_width_max <= most
        proof.check(f"{told}most PCIe lanes", within, f"at most {most:g}", one.pcie_width_max)
    proof.near(
        f"{told}temperature in °C", smi.number(part, "temperature/gpu_temp"), one.temperature, 8
    )
    margin = smi.number(part, "temperature/gpu_temp_tlimit")
    if margin is not None:
        proof.near(f"{told}margin in °C", margin, one.temperature_margin, 8)
    mode = {"Enabled": True, "Disabled": False}.get(smi.text(part, "persistence_mode") or "")
    proof.equal(f"{told}persistence mode", mode, one.persistence)
    _compare_memory_errors(proof, told, one, part)
    action = smi.text(part, "gpu_recovery_action")
    if action is not None:
        none = one.recovery_action == 0
        words = WORDS.get(one.recovery_action or 0, one.recovery_action)
        proof.check(f"{told}recovery action", (action == "None") == none, action, words)
    bits = [int(text, 16) for seen in (before, after) if (text := seen[1]["reasons"])]
    if bits:
        # A GPU may fall idle between two looks; everything else has to be one of theirs.
        seen = -1 if one.reasons is None else one.reasons
        ok = seen >= 0 and any((seen ^ bit) & ~clock_reasons.IDLE == 0 for bit in bits)
        shown = None if one.reasons is None else hex(one.reasons)
        proof.check(f"{told}reasons for a lower clock", ok, [*map(hex, bits)], shown)
    clock = smi.number(part, "max_clocks/sm_clock")
    proof.equal(f"{told}highest clock in MHz", clock and int(clock), one.sm_clock_max_mhz)
    limit = row["limit"]
    proof.near(f"{told}power limit in W", float(limit) if limit else None, one.power_limit_w, 1)


def _compare_memory_errors(proof: Proof, told: str, one: Health, part: ET.Element) -> None:
    rows = one.remapped_rows
    for name, path in (("corrected", "remapped_row_corr"), ("uncorrected", "remapped_row_unc")):
        count = smi.number(part, f"remapped_rows/{path}")
        value = rows and getattr(rows, name)
        proof.equal(f"{told}remapped rows, {name}", None if count is None else int(count), value)
    for name, path in (("pending", "remapped_row_pending"), ("failed", "remapped_row_failure")):
        flag = {"Yes": True, "No": False}.get(smi.text(part, f"remapped_rows/{path}") or "")
        proof.equal(f"{told}remapped rows, {name}", flag, rows and getattr(rows, name))
    counts = [
        smi.number(part, f"retired_pages/{cause}/retired_count")
        for cause in ("multiple_single_bit_retirement", "double_bit_retirement")
    ]
    pages = None if None in counts else int(sum(count or 0 for count in counts))
    proof.equal(f"{told}retired pages", pages, one.retired_pages)


def _compare_figures(
    proof: Proof, told: str, one: Figures, after: tuple[ET.Element, dict[str, str | None]]
) -> None:
    part, row = after
    for name, path in (("total", "total"), ("used", "used")):
        size = smi.number(part, f"fb_memory_usage/{path}")
        value = getattr(one, f"memory_{name}_mib")
        proof.near(f"{told}figures: memory {name} in MiB", size, value, 64)
    drawing = smi.number(
        part,
        "gpu_power_readings/average_power_draw",
        "gpu_power_readings/power_draw",
        "power_readings/power_draw",
        "gpu_power_readings/instant_power_draw",
    )
    by = max(40, (drawing or 0) * 0.4)
    proof.near(f"{told}figures: power in W", drawing, one.power_w, by)
    limit = row["limit"]
    proof.near(
        f"{told}figures: power limit in W", float(limit) if limit else None, one.power_limit_w, 1
    )
    temperature = smi.number(part, "temperature/gpu_temp")
    proof.near(f"{told}figures: temperature in °C", temperature, one.temperature, 8)
    for field in ("corrected", "uncorrected"):
        count = row[f"ecc.errors.{field}.volatile.total"]
        value = getattr(one, f"ecc_{field}")
        proof.equal(f"{told}figures: ECC errors, {field}", count and int(count), value)


def events(proof: Proof) -> None:
    """Make event sets, wait for each, and free each."""
    found = rig.inventory()
    with nvml.session() as binding:
        devices = {
            gpu.uuid: nvml_metrics.find(binding, gpu.uuid, gpu.pci_address) for gpu in found.gpus
        }
        types = {
            uuid: binding.nvmlDeviceGetSupportedEventTypes(device.handle)
            for uuid, device in devices.items()
        }
        for gpu in found.gpus:
            told = f"GPU {gpu.index}: supported event types"
            proof.check(
                told, bool(types[gpu.uuid] & _XID), "Xids among them", hex(types[gpu.uuid])
            )
        for place in range(1, _SETS + 1):
            made = Events(binding, devices)
            proof.equal(f"set {place}: GPUs with events", {*types}, made.watched)
            began = time.monotonic()
            told_of = made.wait(_WAIT)
            waited = time.monotonic() - began
            made.close()
            if told_of:
                proof.left_out(f"set {place}: a whole wait", f"an event came: {told_of}")
                continue
            # A wait that returns at once would make the service use a whole processor.
            proof.near(f"set {place}: seconds of the wait", _WAIT / 1000, waited, 0.5)
        proof.equal(
            "GPUs still answer",
            [],
            [gpu.index for gpu in found.gpus if nvml_metrics.read(devices[gpu.uuid]).failure],
        )


def probe(proof: Proof) -> None:
    """Ask the driver through the health service's child, twice, and end the child."""
    found = rig.inventory()
    cards = [
        Card(gpu.uuid, gpu.index, gpu.pci_address, gpu.model, gpu.devices) for gpu in found.gpus
    ]
    asker = driver_probe.Asker(cards)
    try:
        for place in (1, 2):
            began = time.monotonic()
            seen = _next(asker, 25)
            proof.figure(f"look {place}", round(time.monotonic() - began, 2), "s")
            proof.check(f"look {place}", isinstance(seen, Look), "figures", seen)
            if not isinstance(seen, Look):
                return
            proof.equal(
                f"look {place}: GPUs with figures",
                {card.uuid for card in cards},
                {uuid for uuid, one in seen.figures.items() if not one.failure},
            )
            proof.equal(f"look {place}: missing or gone", set(), {*seen.missing, *seen.gone})
            asker.poll_now()
    finally:
        asker.close()
    gone = rig.until(lambda: child_process.left() == 0, 5)
    proof.check("the child has ended", gone is not None, "within 5 s", gone)


def _next(asker: driver_probe.Asker, seconds: float) -> Look | Hang | None:
    """Return the next look, or a hang; None if neither comes in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for one in asker.turn():
            if isinstance(one, Look | Hang):
                return one
        descriptor = asker.fileno()
        select.select([] if descriptor is None else [descriptor], [], [], 0.2)
    return None
