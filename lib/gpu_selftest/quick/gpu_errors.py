# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Judge the errors that a GPU, its driver and the kernel log report. Without side effects."""

import typing

from gpu_agent.gpu.vendors.nvidia.xid import Message, Severity, meaning
from gpu_agent.model import recovery_action as recovery
from gpu_selftest.check import Outcome, Said
from gpu_selftest.quick.gpu_case import NOT_TOLD, Case

# More corrected errors than these are a sign of wear (Azure/azurehpc-health-checks, ECC check).
_MANY_CORRECTED: typing.Final = 20_000_000
_MANY_CORRECTED_SRAM: typing.Final = 10_000
# The same for rows and pages that were replaced by spare ones; there are 64 spare pages.
_MANY_REMAPPED_ROWS: typing.Final = 512
_MANY_RETIRED_PAGES: typing.Final = 62


def ecc(case: Case) -> Said:
    """Judge memory errors since the driver was loaded that ECC could not correct."""
    found = case.health
    if found.ecc is False:
        return Said(Outcome.SKIPPED, "ECC is off on this GPU")
    uncorrected, corrected = found.uncorrected_volatile, found.corrected_volatile
    if uncorrected is None:
        return NOT_TOLD
    life = (
        f"{found.corrected_aggregate or 0} corrected and {found.uncorrected_aggregate or 0} "
        "uncorrected in its life"
    )
    if uncorrected:
        text = f"uncorrected ECC errors: {uncorrected} since the driver was loaded; {life}"
        return Said(Outcome.FAILED, text, uncorrected, case.reset)
    if corrected is not None and corrected > _MANY_CORRECTED:
        text = f"corrected ECC errors: {corrected} since the driver was loaded; {life}"
        return Said(Outcome.WARNING, text, uncorrected, f"Watch it. If it grows: {case.replace}")
    text = f"none uncorrected, {corrected or 0} corrected since the driver was loaded; {life}"
    return Said(Outcome.PASSED, text, uncorrected)


def sram_ecc(case: Case) -> Said:
    """Judge errors of caches and registers, which recent drivers report."""
    sram = case.health.sram
    if sram is None:
        return NOT_TOLD
    now, life = sram.uncorrected_volatile, sram.uncorrected_aggregate
    if sram.threshold_exceeded:
        text = f"SRAM errors above NVIDIA's limit: {life} uncorrected in its life"
        return Said(Outcome.FAILED, text, now, case.replace)
    if now:
        text = f"uncorrected SRAM errors: {now} since the driver was loaded, {life} in its life"
        return Said(Outcome.FAILED, text, now, case.reset)
    text = f"none uncorrected since the driver was loaded, {life} in its life"
    if life or sram.corrected_volatile > _MANY_CORRECTED_SRAM:
        text += f"; {sram.corrected_volatile} corrected"
        return Said(Outcome.WARNING, text, now, f"Watch it. If it grows: {case.replace}")
    return Said(Outcome.PASSED, text, now)


def remapped_rows(case: Case) -> Said:
    """Judge the rows of memory that were replaced by spare ones; from Ampere on."""
    rows = case.health.remapped_rows
    if rows is None:
        return NOT_TOLD
    uncorrected, count = rows.uncorrected, rows.corrected + rows.uncorrected
    seen = f"{count} rows remapped, {uncorrected} of them for uncorrected errors"
    if rows.failed:
        text = f"row remapping failed: {seen}"
        return Said(Outcome.FAILED, text, uncorrected, case.replace)
    if uncorrected > _MANY_REMAPPED_ROWS:
        text = f"too many remapped rows: {seen}"
        return Said(Outcome.FAILED, text, uncorrected, case.replace)
    if rows.pending:
        # NVIDIA allows new work then; the GPU health service decides what to do about it.
        text = f"row remapping waits for a reset: {seen}"
        return Said(Outcome.WARNING, text, uncorrected, case.reset)
    return Said(Outcome.PASSED, seen if count else "no row was ever remapped", uncorrected)


def retired_pages(case: Case) -> Said:
    """Judge the pages of memory that are out of use; before Ampere."""
    pages, pending = case.health.retired_pages, case.health.retired_pages_pending
    if pages is None and pending is None:
        return NOT_TOLD
    seen = f"{pages or 0} pages retired"
    if (pages or 0) >= _MANY_RETIRED_PAGES:
        text = f"too many retired pages: {pages} of at most 64"
        return Said(Outcome.FAILED, text, pages, case.replace)
    if pending:
        text = f"page retirement waits for a reset: {seen}"
        return Said(Outcome.FAILED, text, pages, case.reset)
    return Said(Outcome.PASSED, seen, pages)


def recovery_action(case: Case) -> Said:
    """Judge the recovery that the driver requests; recent drivers report it."""
    action = case.health.recovery_action
    if action is None:
        return NOT_TOLD
    if not action:
        return Said(Outcome.PASSED, "the driver requests none", "none")
    words = recovery.WORDS.get(action, f"action {action}")
    text = f"recovery needed: the driver requests {words}"
    if action == recovery.COLD_START:
        remedy = f"Power the machine off and on; {case.again}"
    else:
        remedy = case.reset if action in recovery.RESETS else case.reboot
    return Said(Outcome.FAILED, text, words, remedy)


def xid(case: Case) -> Said:
    """Judge the Xids in the kernel log that the GPU has not recovered from."""
    if case.log.problem:
        text = (
            f"the kernel log can't be read ({case.log.problem}), which is normal in a "
            "container: see recovery-action instead"
        )
        return Said(Outcome.SKIPPED, text)
    address = case.gpu.pci_address
    messages, standing = case.log.of(address), case.log.standing(address)
    codes = ", ".join(str(code) for code in sorted({one.code for one in messages})) or "none"
    for severity, outcome in (
        (Severity.FATAL, Outcome.FAILED),
        (Severity.WARNING, Outcome.WARNING),
    ):
        these = [one for one in standing if meaning(one)[0] is severity]
        if these:
            return Said(outcome, _told(these), codes, _after_xid(case, these[0]))
    since = "since the machine started" if case.log.complete else "in what is left of the log"
    text = f"no Xid {since}"
    if messages:
        _, words = meaning(messages[-1])
        text = f"none that requires action; Xid {messages[-1].code}: {words}"
        if standing != messages:
            text = f"the driver has recovered since Xid {codes}"
    return Said(Outcome.PASSED, text, codes)


def _told(messages: list[Message]) -> str:
    """Describe Xids: the first kind in full, since it mostly is the cause of the others."""
    first = messages[0]
    times = sum(one.code == first.code for one in messages)
    others = sorted({one.code for one in messages} - {first.code})
    text = f"Xid {first.code}: {meaning(first)[1]}"
    if times > 1:
        text += f", {times} times"
    if others:
        text += f"; then Xid {', '.join(map(str, others))}"
    return text


def _after_xid(case: Case, message: Message) -> str:
    severity, _ = meaning(message)
    if severity is Severity.WARNING:
        return (
            f"Look up Xid {message.code} in NVIDIA's catalogue "
            "(https://docs.nvidia.com/deploy/xid-errors/); if it comes again, test the GPU: "
            f"`juju run {case.settings.unit} gpu-selftest level=burn-in gpu={case.gpu.uuid}`"
        )
    return (
        f"{case.reboot}. The kernel log keeps an Xid until then. If it comes again, or the GPU "
        f"is still missing after a power-off: {case.replace}"
    )
