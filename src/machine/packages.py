# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Packages of the distribution. What was installed for us is written down, so that it can go."""

import json
import logging
import pathlib
import re
import typing

from machine import files, process

_RECORD: typing.Final = pathlib.Path("/var/lib/gpu-ci/packages.json")
_ENVIRONMENT: typing.Final = {"DEBIAN_FRONTEND": "noninteractive", "NEEDRESTART_MODE": "l"}

# Another package manager may be at work for minutes, such as unattended-upgrades.
_LOCK_WAIT: typing.Final = 300
_TIMEOUT: typing.Final = 1800.0
_APT: typing.Final = (
    "/usr/bin/apt-get", "--yes", "--no-install-recommends",
    "-o", f"DPkg::Lock::Timeout={_LOCK_WAIT}", "-o", "Dpkg::Options::=--force-confold",
)  # fmt: skip

_log = logging.getLogger(__name__)


class _Install(typing.TypedDict):
    """One installation: the packages asked for, and all that it brought new to the machine."""

    asked: list[str]
    new: list[str]


def ensure_installed(*names: str) -> bool:
    """Have packages installed. Return True if any was missing.

    Raises:
        machine.process.CommandError: if apt can't install them.
    """
    installed = _installed(names)
    missing = [name for name in names if name not in installed]
    if not missing:
        return False
    _end_interruption()
    try:
        _apt("update")
    except process.CommandError as error:
        _log.warning("package lists may be old: %s", error)
    simulated = _apt("install", "--simulate", *missing)
    new = re.findall(r"^Inst (\S+) \(", simulated, re.MULTILINE)
    # Written before the first file lands: what a killed hook has half installed is ours too.
    _write([*_read(), {"asked": missing, "new": new}])
    _apt("install", *missing)
    return True


def remove_installed(*names: str) -> bool:
    """Purge what was installed for us (for these names; by default all) and nobody else needs.

    Returns:
        Whether there was anything to remove.
    """
    record = _read()
    ours = [entry for entry in record if not names or set(names) & set(entry["asked"])]
    if not ours:
        return False
    candidates = {name for entry in ours for name in entry["new"]}
    here = sorted(_installed(tuple(candidates)))
    if here:
        process.run(["/usr/bin/apt-mark", "auto", *here], timeout=_TIMEOUT, env=_ENVIRONMENT)
        simulated = _apt(
            "autoremove", "--simulate",
            "-o", "APT::AutoRemove::RecommendsImportant=false",
            "-o", "APT::AutoRemove::SuggestsImportant=false",
        )  # fmt: skip
        unneeded = set(re.findall(r"^Remv (\S+)", simulated, re.MULTILINE))
        gone = sorted(unneeded & set(here))
        if gone:
            _end_interruption()
            _apt("purge", *gone)
    _write([entry for entry in record if entry not in ours])
    return True


def _installed(names: tuple[str, ...]) -> set[str]:
    if not names:
        return set()
    shown = process.run(
        ["/usr/bin/dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *names],
        timeout=60,
        check=False,
        told=False,
    )
    lines = (line.split(" ") for line in shown.stdout.splitlines())
    return {name for name, status in lines if status == "installed"}


def _end_interruption() -> None:
    """Finish what a hook, or apt, was killed in: dpkg does nothing else before."""
    process.run(
        ["/usr/bin/dpkg", "--configure", "-a"], timeout=_TIMEOUT, env=_ENVIRONMENT, check=False
    )


def _apt(*arguments: str) -> str:
    return process.run([*_APT, *arguments], timeout=_TIMEOUT, env=_ENVIRONMENT).stdout


def _read() -> list[_Install]:
    text = files.read_text(_RECORD)
    return json.loads(text) if text else []


def _write(record: list[_Install]) -> None:
    if not record:
        files.ensure_absent(_RECORD)
        return
    files.ensure_directory(_RECORD.parent)
    files.ensure_file(_RECORD, json.dumps(record, indent=1))
