# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Chooses the release of Concourse for this unit, and compares it with that of its web. Pure."""

import re

from ci.concourse import upstream
from ci.concourse.options.table import chosen
from ci.concourse.plan import messages
from ci.concourse.plan.model import ReleasePlan, found
from ci.concourse.upstream import (
    OLDEST,
    PINNED_SHA256,
    RELEASE,
    RELEASES,
    works_with,  # fmt: skip
)
from gpu_agent.model import versions
from options.part import Part
from plan.messages import Level, Line
from plan.state import UnitState


def make(state: UnitState, problems: list[Line]) -> ReleasePlan | None:
    """Return the wanted release; None with the reason added to `problems` if there is none."""
    options, architecture = state.options, state.machine.architecture
    tarball = found(state).tarball
    if why := found(state).failed:
        problems.append(Line(Level.BLOCKED, "release-rolled-back", why))
    if tarball is None:
        problems.append(messages.line("resource-unknown", **state.names))
        return None
    if Part.RELEASE in options.frozen:
        return None
    release = chosen(options).release
    version, named = release.chosen
    if not version:
        version = _of_web(state, problems)
    sha256 = named or _pinned(version, architecture)
    if not sha256 and not tarball:
        url = f"{release.mirror or RELEASES}/{upstream.tarball(version, architecture)}"
        about = {"version": version, "architecture": architecture, "url": url}
        problems.append(messages.line("no-checksum", **about, **state.names))
        return None
    webs = () if options.has_web else found(state).tsa.versions
    attach = f"juju attach-resource {state.application} concourse=<release tarball>"
    is_named = bool(named)
    return ReleasePlan(
        version, architecture, sha256, tarball, release.mirror, webs, attach, is_named
    )


def version(state: UnitState) -> str:
    """Return which Concourse will run; empty for a tarball that is not unpacked yet."""
    if found(state).installed or found(state).tarball:
        return found(state).installed
    wanted = make(state, [])
    return wanted.version if wanted else chosen(state.options).release.chosen[0] or RELEASE


def against_web(state: UnitState) -> Line | None:
    """Return the problem if web does not schedule on the release of this unit's worker."""
    ours = version(state)
    for theirs in found(state).tsa.versions:
        if ours and not works_with(ours, theirs):
            how = f"juju config {state.application} {_setting(state, theirs)}"
            if found(state).tarball:
                how = f"juju attach-resource {state.application} concourse=<tarball of {theirs}>"
            return messages.line("web-is-other-release", theirs=theirs, ours=ours, how=how)
    return None


def _pinned(release: str, architecture: str) -> str:
    return PINNED_SHA256.get(release, "") if architecture == "amd64" else ""


def _setting(state: UnitState, release: str) -> str:
    """Return the setting of concourse-version for a release."""
    known = _pinned(release, state.machine.architecture)
    return f"concourse-version={release}" + ("" if known else "@sha256:<checksum>")


def _of_web(state: UnitState, problems: list[Line]) -> str:
    """Return the release for a unit without one of its own: that of its web, if it can be had."""
    if not _followed(state):
        return RELEASE
    about = not_followed(state)
    if about and not works_with(about["ours"], about["theirs"]):
        problems.append(messages.line("web-not-followed", **about))
    return about["ours"] if about else _followed(state)


def _followed(state: UnitState) -> str:
    """Return the release of the web that this worker follows; empty if it follows none.

    If several webs are being upgraded, the worker follows the newest: it serves older ones of the
    same API too.
    """
    named = chosen(state.options).release.chosen[0]
    if state.options.has_web or named or found(state).tarball != "":
        return ""
    return max(found(state).tsa.versions, key=versions.numbers, default="")


def not_followed(state: UnitState) -> dict[str, str]:
    """Return why this worker cannot run the release of its web; empty if it can, or need not.

    The keys are the values of the status: `theirs`, `why`, `ours`, `how`. The worker then stays on
    its release.
    """
    newest, architecture = _followed(state), state.machine.architecture
    if not newest or Part.RELEASE in state.options.frozen:
        return {}
    installed = found(state).installed
    own = installed if _pinned(installed, architecture) else RELEASE
    config = f"juju config {state.application}"
    how = f"to stay, {config} concourse-version={own}"
    if not re.fullmatch(r"[0-9]+(\.[0-9]+){2}", newest):
        why = "not a release X.Y.Z"
    elif versions.numbers(newest) < versions.numbers(OLDEST):
        why = f"older than {OLDEST}, the oldest supported one"
    elif _pinned(newest, architecture) or not _pinned(own, architecture):
        return {}
    else:
        why, how = "its checksum is unknown", f"{config} {_setting(state, newest)}; {how}"
    return {"theirs": newest, "why": why, "ours": own, "how": how}
