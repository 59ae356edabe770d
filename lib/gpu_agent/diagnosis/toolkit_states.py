# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The states of NVIDIA's container toolkit, as a table: the first row that applies counts. Pure.

scripts/tables writes this table to docs/reference/status.md.
"""

import typing

from gpu_agent.diagnosis import toolkit_versions as toolkit_policy
from gpu_agent.diagnosis.facts import Facts, HostState, Kind, unfixed
from gpu_agent.model import versions

_UPDATE: typing.Final = "install nvidia-container-toolkit {safe} or newer"
_REPLACES: typing.Final = "replaces its own toolkit by {wanted}; a pre-installed one stays"


def _version(facts: Facts) -> str:
    return facts.toolkit.version if facts.toolkit else ""


def _is_too_old(version: str) -> bool:
    return bool(version) and toolkit_policy.is_too_old(version)


def _is_vulnerable(version: str) -> bool:
    return bool(version) and bool(toolkit_policy.advisories(version))


def _is_refused(facts: Facts, version: str) -> bool:
    return _is_vulnerable(version) and not facts.options.allow_vulnerable_toolkit


def _is_rolled_back(facts: Facts) -> bool:
    wanted, packaged = facts.wanted_toolkit, facts.packaged
    return wanted in packaged.bad and wanted != packaged.version


OF_AN_OPTION: typing.Final = ("chosen-toolkit-too-old", "chosen-toolkit-vulnerable")
"""The codes of states in which an option cannot be applied, and the toolkit here stays in use."""

TABLE: typing.Final = (
    HostState(
        "no-toolkit-needed",
        Kind.FINE,
        "A task with GPUs of another vendor than NVIDIA needs only their nodes and groups.",
        lambda facts: not facts.vendor.grant.by_runtime,
    ),
    HostState(
        "chosen-toolkit-too-old",
        Kind.BLOCKS,
        "nvidia-container-toolkit-version names a version that cannot be used.",
        lambda facts: _is_too_old(facts.chosen_toolkit),
        "nvidia-container-toolkit-version={chosen} is too old, as before {oldest} CDI annotations "
        "can bypass the GPU policy",
        "juju config {application} nvidia-container-toolkit-version={good}",
        "keeps the toolkit unchanged",
    ),
    HostState(
        "chosen-toolkit-vulnerable",
        Kind.BLOCKS,
        "As chosen-toolkit-too-old, for a version below the fix of a known CVE.",
        lambda facts: _is_refused(facts, facts.chosen_toolkit),
        "nvidia-container-toolkit-version={chosen} has known vulnerabilities ({gravest_chosen})",
        "juju config {application} nvidia-container-toolkit-version={good}, or to accept them, "
        "juju config {application} allow-vulnerable-toolkit=true",
        "keeps the toolkit unchanged",
    ),
    HostState(
        "toolkit-missing",
        Kind.BLOCKS,
        "nvidia-container-runtime is not installed.",
        lambda facts: facts.toolkit is None,
        "nvidia-container-runtime is missing",
        _UPDATE,
        "installs {wanted}, or nvidia-container-toolkit-version",
    ),
    HostState(
        "toolkit-version-unreadable",
        Kind.BLOCKS,
        "The program is not NVIDIA's runtime, or is broken.",
        lambda facts: not versions.numbers(_version(facts)),
        "cannot read the version of {runtime}",
        _UPDATE,
        _REPLACES,
    ),
    HostState(
        "toolkit-too-old",
        Kind.BLOCKS,
        "This version obeys annotations that request devices, and this cannot be turned off.",
        lambda facts: _is_too_old(_version(facts)),
        "nvidia-container-runtime {toolkit} is too old, as before {oldest} CDI annotations can "
        "bypass the GPU policy",
        _UPDATE,
        _REPLACES,
    ),
    HostState(
        "toolkit-vulnerable",
        Kind.BLOCKS,
        "The version is below the fix of a known CVE; status names the worst.",
        lambda facts: _is_refused(facts, _version(facts)),
        "nvidia-container-runtime {toolkit} has known vulnerabilities ({gravest})",
        f"{_UPDATE}, or to accept them, juju config {{application}} allow-vulnerable-toolkit=true",
        _REPLACES,
    ),
    HostState(
        "toolkit-ready",
        Kind.FINE,
        "The toolkit is installed and can be used.",
        lambda _: True,
        charm="keeps its own toolkit at {wanted}, or at nvidia-container-toolkit-version",
    ),
)

NOTES: typing.Final = (
    HostState(
        "toolkit-vulnerable-allowed",
        Kind.NOTE,
        "allow-vulnerable-toolkit=true permits a version below the fix of a known CVE.",
        lambda facts: facts.vendor.grant.by_runtime and _is_vulnerable(_version(facts)),
        "vulnerable toolkit {toolkit} is allowed ({gravest})",
    ),
    HostState(
        "toolkit-faulty",
        Kind.NOTE,
        "This version breaks something for tasks, see the table of versions.",
        lambda facts: facts.vendor.grant.by_runtime and bool(unfixed(_version(facts))),
        "toolkit {toolkit}: {breaks}",
    ),
    HostState(
        "toolkit-untested",
        Kind.NOTE,
        "The charm was not tested with this version; the self-test has tested it here.",
        lambda facts: (
            facts.vendor.grant.by_runtime and toolkit_policy.is_untested(_version(facts))
        ),
        "toolkit {toolkit} is newer than {tested}, the newest tested",
        charm="runs the self-test of level isolation before tasks use it",
    ),
    HostState(
        "toolkit-rolled-back",
        Kind.NOTE,
        "No container started with the wanted version.",
        lambda facts: facts.vendor.grant.by_runtime and _is_rolled_back(facts),
        "toolkit {wanted} was rolled back: no container started with it",
        charm="has restored the previous version, and does not try this one again",
    ),
)
