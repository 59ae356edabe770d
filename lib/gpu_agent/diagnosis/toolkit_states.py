# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The states of NVIDIA's container toolkit, as a table: the first row that applies counts. Pure.

docs/reference/host-states.md is made of it: .venv/bin/python scripts/tables.
"""

import typing

from gpu_agent.diagnosis import toolkit_versions as toolkit_policy
from gpu_agent.diagnosis.facts import Facts, HostState, Kind, unmended
from gpu_agent.model import versions

_UPDATE: typing.Final = "install nvidia-container-toolkit {safe} or newer"
_FOREIGN: typing.Final = "of its own: installs {wanted}; one that somebody else installed stays"


def _version(facts: Facts) -> str:
    return facts.toolkit.version if facts.toolkit else ""


def _is_too_old(version: str) -> bool:
    return bool(version) and toolkit_policy.is_too_old(version)


def _is_vulnerable(version: str) -> bool:
    return bool(version) and bool(toolkit_policy.advisories(version))


def _is_refused(facts: Facts, version: str) -> bool:
    return _is_vulnerable(version) and not facts.options.allow_vulnerable_toolkit


def _is_taken_back(facts: Facts) -> bool:
    wanted, packaged = facts.wanted_toolkit, facts.packaged
    return wanted in packaged.bad and wanted != packaged.version


TABLE: typing.Final = (
    HostState(
        "no toolkit needed",
        Kind.FINE,
        "AMD's and Intel's GPUs: a task needs their nodes and groups alone.",
        lambda facts: not facts.is_nvidias,
    ),
    HostState(
        "chosen toolkit too old",
        Kind.BLOCKS,
        "nvidia-container-toolkit-version names a version that can't be used.",
        lambda facts: _is_too_old(facts.chosen_toolkit),
        "nvidia-container-toolkit-version '{chosen}' is too old: before {oldest} annotations get "
        "GPUs past this charm",
        "juju config {application} nvidia-container-toolkit-version={good}",
        "leaves the toolkit as it is",
    ),
    HostState(
        "chosen toolkit vulnerable",
        Kind.BLOCKS,
        "The same, and it is below the fix of a known CVE.",
        lambda facts: _is_refused(facts, facts.chosen_toolkit),
        "nvidia-container-toolkit-version '{chosen}' has known vulnerabilities ({gravest_chosen})",
        "juju config {application} nvidia-container-toolkit-version={good}, or accept them: juju "
        "config {application} allow-vulnerable-toolkit=true",
        "leaves the toolkit as it is",
    ),
    HostState(
        "toolkit missing",
        Kind.BLOCKS,
        "There is no nvidia-container-runtime.",
        lambda facts: facts.toolkit is None,
        "nvidia-container-runtime is missing",
        _UPDATE,
        "installs {wanted}, or the version of nvidia-container-toolkit-version",
    ),
    HostState(
        "toolkit without a version",
        Kind.BLOCKS,
        "It is no runtime of NVIDIA's, or a broken one.",
        lambda facts: not versions.numbers(_version(facts)),
        "{runtime} --version tells no version",
        _UPDATE,
        _FOREIGN,
    ),
    HostState(
        "toolkit too old",
        Kind.BLOCKS,
        "It heeds annotations that ask for devices, and can't be told not to.",
        lambda facts: _is_too_old(_version(facts)),
        "nvidia-container-runtime {toolkit} is too old: before {oldest} annotations get GPUs past "
        "this charm",
        _UPDATE,
        _FOREIGN,
    ),
    HostState(
        "toolkit vulnerable",
        Kind.BLOCKS,
        "It is below the fix of a known CVE; status names the gravest.",
        lambda facts: _is_refused(facts, _version(facts)),
        "nvidia-container-runtime {toolkit} has known vulnerabilities ({gravest})",
        f"{_UPDATE}, or accept them: juju config {{application}} allow-vulnerable-toolkit=true",
        _FOREIGN,
    ),
    HostState(
        "toolkit ready",
        Kind.FINE,
        "It is there, and may be used.",
        lambda _: True,
        charm="keeps its own at {wanted}, or the version of nvidia-container-toolkit-version",
    ),
)

NOTES: typing.Final = (
    HostState(
        "toolkit vulnerable, and allowed",
        Kind.NOTE,
        "allow-vulnerable-toolkit=true lets a version below the fix of a known CVE be used.",
        lambda facts: facts.is_nvidias and _is_vulnerable(_version(facts)),
        "vulnerable toolkit {toolkit} is allowed: {cves}",
    ),
    HostState(
        "toolkit harmful",
        Kind.NOTE,
        "That version breaks something for tasks, as the table of versions says.",
        lambda facts: facts.is_nvidias and bool(unmended(_version(facts))),
        "toolkit {toolkit} has a fault: {breaks}",
    ),
    HostState(
        "toolkit newer than tested",
        Kind.NOTE,
        "Nobody has tried the wrapper with it; the self-test has.",
        lambda facts: facts.is_nvidias and toolkit_policy.is_untested(_version(facts)),
        "toolkit {toolkit} is newer than {tested}, the newest tested",
        charm="tests it with the level isolation before tasks get it",
    ),
    HostState(
        "toolkit taken back",
        Kind.NOTE,
        "No container worked with the version that is wanted.",
        lambda facts: facts.is_nvidias and _is_taken_back(facts),
        "toolkit {wanted} was taken back: no container worked with it",
        charm="went back to the version before, and leaves that one alone",
    ),
)
