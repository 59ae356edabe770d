# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""NVIDIA's container toolkit from NVIDIA's repository: one version, which nothing else moves.

NVIDIA renews the subkeys of its key, so the key is fetched, and taken only if its primary key has
the fingerprint that is pinned here.
"""

import collections.abc
import dataclasses
import json
import logging
import pathlib
import time
import typing

from gpu_agent import paths
from gpu_agent.diagnosis import machine as facts
from gpu_agent.diagnosis import toolkit_versions as toolkit_policy
from gpu_agent.model.host import Packaged
from host import apt_sources as rival_sources
from host import openpgp
from host.package_manager import Packages, Progress
from machine import download, files, packages, repositories
from plan.model import ToolkitPlan

# All at one version: their dependencies on each other use `=` since 1.18.
PACKAGES: typing.Final = (
    "nvidia-container-toolkit",
    "nvidia-container-toolkit-base",
    "libnvidia-container-tools",
    "libnvidia-container1",
)
# Of NVIDIA's primary key, which lasts while its subkeys change: ten public installers pin it, one
# checked it against https://nvidia.github.io/libnvidia-container/gpgkey (2026-05-03), and it has
# signed stable/deb/amd64/InRelease of 2026-09-18 (NVIDIA/libnvidia-container 69f4ab79).
FINGERPRINT: typing.Final = "C95B321B61E88C1809C4F759DDCAE044F796ECB0"

_OWNER: typing.Final = "toolkit"
_NAME: typing.Final = "nvidia-container-toolkit"
_BASE: typing.Final = "nvidia-container-toolkit-base"
# NVIDIA's key has about 4 KiB.
_KEY_BOUNDS: typing.Final = download.Bounds(size=256 << 10, seconds=120.0)
# How long, in seconds, a toolkit that is installed waits until a key that has expired, which it
# does not need, is asked for again.
_PATIENCE: typing.Final = 86400
# apt_preferences(5): above 1000 even a downgrade is made; below 0 nothing is installed.
_ALWAYS, _NEVER = 1001, -1
_NVIDIA: typing.Final = "https://nvidia.github.io/"
# What NVIDIA's repository has and no distribution.
_LIKE_NVIDIA: typing.Final = "nvidia-container-* libnvidia-container* nvidia-docker*"

_log = logging.getLogger(__name__)


class ToolkitError(packages.PackageError):
    """The toolkit can't be had as planned. The text says why, with the next step."""


@dataclasses.dataclass(frozen=True)
class _Key:
    """The repository's key as it was taken.

    Attributes:
        text: ASCII-armoured.
        given: by option, and not fetched.
        expires: seconds since the epoch; 0: never.
        sought: when it was fetched, or that last failed; the same unit.
    """

    text: str = ""
    given: bool = False
    expires: int = 0
    sought: float = 0.0

    @property
    def expired(self) -> bool:
        return 0 < self.expires <= time.time()


@dataclasses.dataclass(frozen=True)
class _Record:
    """What must not be forgotten.

    Attributes:
        key: the one in use.
        previous: the version before the one that is on trial; empty where none is.
        bad: versions that no container worked with.
    """

    key: _Key = _Key()
    previous: str = ""
    bad: tuple[str, ...] = ()


class Repositories(typing.Protocol):
    """The charm's repositories of apt, as machine.repositories handles them."""

    def ensure(self, repository: repositories.Repository) -> bool:
        """Add a repository."""
        ...

    def remove(self, name: str) -> bool:
        """Remove a repository."""
        ...

    def uris(self) -> list[str]:
        """Return the addresses of the repositories."""
        ...


class Openpgp(typing.Protocol):
    """The reader of keys, as host.openpgp."""

    def read(self, text: str) -> openpgp.SigningKey:
        """Return the key in a text."""
        ...

    def alone(self, text: str) -> tuple[str, str]:
        """Return a key's fingerprint, and its text without anything else."""
        ...


@dataclasses.dataclass(frozen=True)
class NvidiaToolkit:
    """The toolkit on a machine.

    Attributes:
        record: the file of what must not be forgotten.
        packages: the machine's packages.
        repositories: the charm's repositories.
        openpgp: reads keys.
        fetch: downloads a text.
        bounds: the limits for the download of the key.
        fingerprint: that of the key that is taken.
    """

    record: pathlib.Path = paths.STATE / "toolkit.json"
    packages: Packages = packages
    repositories: Repositories = repositories
    openpgp: Openpgp = openpgp
    fetch: collections.abc.Callable[[str, download.Bounds, str], str] = download.text
    bounds: download.Bounds = _KEY_BOUNDS
    fingerprint: str = FINGERPRINT

    def look(self) -> Packaged:
        """Return what there is of the toolkit as packages.

        Raises:
            machine.packages.PackageError: dpkg can't tell.
        """
        version = self.packages.installed(_BASE).get(_BASE, "")
        # What a killed hook has left is finished by the next one.
        ours = _BASE in (self.packages.owned(_OWNER) if version else self.packages.begun(_OWNER))
        record = self._read()
        # Both are one where the other version could not be had.
        previous = record.previous if record.previous != version else ""
        return Packaged(version, ours, previous, record.bad)

    def ensure(self, plan: ToolkitPlan, progress: Progress) -> bool:
        """Have the toolkit's packages at the planned version, and kept there.

        A pre-installed toolkit of that version is left alone.

        Returns:
            Whether anything was changed.

        Raises:
            machine.packages.PackageError: that can't be done; the text says why and what to do.
            machine.process.CommandError: a program failed in a way that is not foreseen.
        """
        have = self.packages.installed(*PACKAGES)
        ours = self.packages.owned(_OWNER)
        foreign = {name: have[name] for name in PACKAGES if name in have and name not in ours}
        _refuse_others(foreign, plan.version)
        if foreign.keys() == set(PACKAGES):
            return False
        settled = have == dict.fromkeys(PACKAGES, plan.version)
        if not settled:
            _refuse_rival_sources(plan)
        before = self._read().key
        take = self._renewed if settled else self._wanted
        key = take(plan, before, progress)
        try:
            return self._apply(plan, key, ours.get(_BASE, ""), progress)
        except packages.PackageError as error:
            fresh = self._fresher(plan, before, key, progress) if error.signature else None
            if fresh is None:
                raise
            self._apply(plan, fresh, ours.get(_BASE, ""), progress)
            return True

    def roll_back(self, plan: ToolkitPlan, to: str, progress: Progress) -> bool:
        """Go back to another version, and remember the planned one as bad.

        Where that fails, what to go back to stays known: the next hook plans for it.

        Args:
            plan: what was tried.
            to: the version to have instead, such as `1.19.1-1`.
            progress: told what is done.

        Returns:
            Whether anything was changed.

        Raises:
            machine.packages.PackageError, machine.process.CommandError: as `ensure` does.
        """
        record = self._read()
        bad = dict.fromkeys((*record.bad, plan.version))
        self._write(dataclasses.replace(record, previous=to, bad=tuple(bad)))
        return self.ensure(dataclasses.replace(plan, version=to), progress)

    def keep(self) -> bool:
        """End the trial of the installed version, which works. Return True if it was on."""
        record = self._read()
        if record.previous:
            self._write(dataclasses.replace(record, previous=""))
        return bool(record.previous)

    def release(self) -> bool:
        """Give up the repository, its key, the pins and the holds, and forget what was bad.

        The packages stay until the unit goes (machine.packages.remove_installed).

        Returns:
            Whether anything was changed.

        Raises:
            machine.packages.PackageError: a hold can't be taken away.
        """
        changed = self.repositories.remove(_NAME)
        changed |= self.packages.release_holds(_OWNER)
        changed |= files.ensure_absent(self.record)
        return changed

    def _apply(self, plan: ToolkitPlan, key: _Key, before: str, progress: Progress) -> bool:
        """As `ensure`, where `before` is the version of ours that is here; empty if none is."""
        record = self._read()
        leaves = before not in ("", plan.version, *record.bad)
        previous = record.previous or before if leaves else record.previous
        if (record.key, record.previous) != (key, previous):
            self._write(dataclasses.replace(record, key=key, previous=previous))
        changed = self._ensure_repository(plan, key, record, before)
        try:
            changed |= self.packages.ensure(
                _OWNER, dict.fromkeys(PACKAGES, plan.version), progress
            )
        except packages.PackageError as error:
            if not error.passes and not self.packages.owned(_OWNER):
                # A repository that gave nothing must not stand in the way of the machine's others.
                self.repositories.remove(_NAME)
            raise
        if previous == plan.version:
            self.keep()  # What was on trial is gone.
        return changed

    def _ensure_repository(
        self, plan: ToolkitPlan, key: _Key, record: _Record, before: str
    ) -> bool:
        """Have apt know the repository; at a new address not before its lists are to be had."""
        known = self.repositories.uris()
        changed = self.repositories.ensure(_repository(plan, key.text))
        if not before or not known or _uri(plan) in known:
            return changed
        try:
            self.packages.refresh()
        except packages.PackageError:
            # Else the operator's own apt fails over it.
            mirror = known[0].removesuffix(_uri(dataclasses.replace(plan, mirror="")))
            former = dataclasses.replace(plan, version=before, mirror=mirror)
            self.repositories.ensure(_repository(former, record.key.text))
            self._write(record)
            raise
        return changed

    def _wanted(self, plan: ToolkitPlan, have: _Key, progress: Progress) -> _Key:
        """The key to take the packages by: given, as it was taken before, or fetched."""
        if plan.key:
            return self._given(plan, have)
        if have.text and not have.given and not have.expired and self._is_nvidias(have.text):
            return have
        return self._fetched(plan, progress)

    def _is_nvidias(self, text: str) -> bool:
        """Whether a key that was taken is the one that is pinned: an older charm was deceived."""
        try:
            return self.openpgp.alone(text)[0] == self.fingerprint
        except openpgp.KeyUnreadableError:
            return False

    def _renewed(self, plan: ToolkitPlan, have: _Key, progress: Progress) -> _Key:
        """The same where all is installed, so that a key which can't be renewed stops nothing."""
        if not have.expired or have.given or plan.key:
            return self._wanted(plan, have, progress)
        # By the wall clock, as the record lasts over boots. It may have been set back.
        if 0 <= time.time() - have.sought < _PATIENCE:
            return have
        try:
            return self._fetched(plan, progress)
        except ToolkitError as error:
            _log.warning("the toolkit is not changed: %s", error)
            return dataclasses.replace(have, sought=time.time())

    def _fresher(
        self, plan: ToolkitPlan, before: _Key, key: _Key, progress: Progress
    ) -> _Key | None:
        """Return a newer key than the failed one, with a new subkey; None if there is none."""
        if plan.key or key != before:
            return None
        try:
            fresh = self._fetched(plan, progress)
        except ToolkitError as error:
            _log.warning("no newer key of the toolkit's repository: %s", error)
            return None
        return fresh if fresh.text != key.text else None

    def _given(self, plan: ToolkitPlan, have: _Key) -> _Key:
        try:
            if have.given and have.text == self.openpgp.alone(plan.key)[1]:
                return have
            self.packages.ensure_installed("gpg")
            key = self.openpgp.read(plan.key)
        except openpgp.KeyUnreadableError as error:
            raise ToolkitError(
                f"nvidia-toolkit-key can't be used: {error}. Give the public key of "
                f'{plan.mirror}, ASCII-armoured: set nvidia-toolkit-key="$(cat KEY.asc)"'
            ) from error
        return _Key(key.text, given=True, expires=key.expires)

    def _fetched(self, plan: ToolkitPlan, progress: Progress) -> _Key:
        url = f"{plan.mirror}/gpgkey"
        progress("fetching the key of NVIDIA's container toolkit")
        remedy = "Check nvidia-toolkit-mirror, or give the key with nvidia-toolkit-key"
        try:
            text = self.fetch(url, self.bounds, remedy)
        except download.DownloadError as error:
            passes = isinstance(error, download.UnreachableError)
            raise ToolkitError(str(error), passes=passes) from error
        self.packages.ensure_installed("gpg")
        try:
            key = self.openpgp.read(text)
        except openpgp.KeyUnreadableError as error:
            raise ToolkitError(f"{url} is not NVIDIA's key: {error}. {remedy}") from error
        if key.fingerprint != self.fingerprint:
            raise ToolkitError(
                f"{url} is not NVIDIA's key: its fingerprint should be {self.fingerprint} but is "
                f"{key.fingerprint}. Nothing was installed. {remedy}, if that key is your "
                "mirror's own"
            )
        if key.expired:
            day = time.strftime("%Y-%m-%d", time.gmtime(key.expires))
            raise ToolkitError(
                f"NVIDIA's key {url} expired on {day}. Nothing was installed. The next event "
                "tries again; to use another key, set nvidia-toolkit-key"
            )
        return _Key(key.text, expires=key.expires, sought=time.time())

    def _read(self) -> _Record:
        text = files.read_text(self.record)
        if text is None:
            return _Record()
        found = json.loads(text)
        return _Record(_Key(**found["key"]), found["previous"], tuple(found["bad"]))

    def _write(self, record: _Record) -> None:
        files.ensure_directory(self.record.parent)
        files.ensure_file(self.record, json.dumps(dataclasses.asdict(record), indent=1) + "\n")


def _refuse_others(foreign: collections.abc.Mapping[str, str], version: str) -> None:
    for name, have in foreign.items():
        if have == version:
            continue
        refused = toolkit_policy.advisories(have) or toolkit_policy.is_too_old(have)
        take = "" if refused else f"set nvidia-container-toolkit-version={have}, or "
        raise ToolkitError(
            f"{name} {have} is on this machine, which this charm did not install and leaves as it "
            f"is, but {version} is wanted: {take}remove it with sudo apt-get remove "
            f"{' '.join(foreign)}"
        )


def _refuse_rival_sources(plan: ToolkitPlan) -> None:
    found = rival_sources.naming(_uri(plan), "/", facts.architecture())
    if found:
        raise ToolkitError(
            f"{found[0]} names {_uri(plan)} with a key of its own, and apt refuses to work with "
            "two keys for one repository (Conflicting values set for option Signed-By): put it "
            f"aside with sudo mv {found[0]} {found[0]}.disabled"
        )


def _uri(plan: ToolkitPlan) -> str:
    return f"{plan.mirror}/stable/deb/{facts.architecture()}"


def _repository(plan: ToolkitPlan, key: str) -> repositories.Repository:
    # apt can pin all of a host, not of a repository, and a mirror's may have the distribution too.
    others = "*" if plan.mirror.startswith(_NVIDIA) else _LIKE_NVIDIA
    return repositories.Repository(
        name=_NAME,
        uri=_uri(plan),
        suites="/",
        key=key,
        pins=((" ".join(PACKAGES), plan.version, _ALWAYS), (others, "", _NEVER)),
    )
