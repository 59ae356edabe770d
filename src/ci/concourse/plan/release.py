# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Chooses the release of Concourse for this unit, and compares it with that of its web. Pure."""

import re

from ci.concourse.plan.model import ReleasePlan
from ci.concourse.upstream import (
    OLDEST,
    PINNED_SHA256,
    RELEASE,
    RELEASES,
    tarball,
    works_with,  # fmt: skip
)
from gpu_agent.model import versions
from options.part import Part
from plan.problems import Problem, Reason, problem
from plan.state import UnitState


def make(state: UnitState, problems: list[Problem]) -> ReleasePlan | None:
    """Return the wanted release; None with the reason added to `problems` if there is none."""
    options, architecture = state.options, state.machine.architecture
    if state.release_failed:
        problems.append(problem(Reason.RELEASE_FAILED, text=state.release_failed))
    if state.tarball is None:
        problems.append(Problem(Reason.RESOURCE_UNKNOWN))
        return None
    if Part.RELEASE in options.frozen:
        return None
    version, named = options.release.chosen
    if not version:
        version = _of_web(state, problems)
    sha256 = named or _pinned(version, architecture)
    if not sha256 and not state.tarball:
        url = f"{options.release.mirror or RELEASES}/{tarball(version, architecture)}"
        about = {"version": version, "architecture": architecture, "url": url}
        problems.append(problem(Reason.NO_CHECKSUM, **about))
        return None
    webs = () if options.has_web else state.tsa.versions
    mirror = options.release.mirror
    attach = f"juju attach-resource {state.application} concourse=<release tarball>"
    is_named = bool(named)
    return ReleasePlan(
        version, architecture, sha256, state.tarball, mirror, webs, attach, is_named
    )


def version(state: UnitState) -> str:
    """Return which Concourse will run; empty for a tarball that is not unpacked yet."""
    if state.installed or state.tarball:
        return state.installed
    wanted = make(state, [])
    return wanted.version if wanted else state.options.release.chosen[0] or RELEASE


def against_web(state: UnitState) -> Problem | None:
    """Return the problem if web does not schedule on the release of this unit's worker."""
    ours = version(state)
    for theirs in state.tsa.versions:
        if ours and not works_with(ours, theirs):
            how = f"juju config {state.application} {_setting(state, theirs)}"
            if state.tarball:
                how = f"juju attach-resource {state.application} concourse=<tarball of {theirs}>"
            return problem(Reason.WEB_IS_OTHER_RELEASE, theirs=theirs, ours=ours, how=how)
    return None


def _pinned(release: str, architecture: str) -> str:
    return PINNED_SHA256.get(release, "") if architecture == "amd64" else ""


def _setting(state: UnitState, release: str) -> str:
    """Return the setting of concourse-version for a release."""
    known = _pinned(release, state.machine.architecture)
    return f"concourse-version={release}" + ("" if known else "@sha256:<checksum>")


def _of_web(state: UnitState, problems: list[Problem]) -> str:
    """Return the release for a unit without one of its own: that of its web, if it can be had."""
    if not _followed(state):
        return RELEASE
    about = not_followed(state)
    if about and not works_with(about["ours"], about["theirs"]):
        problems.append(problem(Reason.WEB_NOT_FOLLOWED, **about))
    return about["ours"] if about else _followed(state)


def _followed(state: UnitState) -> str:
    """Return the release of the web that this worker follows; empty if it follows none.

    If several webs are being upgraded, the worker follows the newest: it serves older ones of the
    same API too.
    """
    options = state.options
    if options.has_web or options.release.chosen[0] or state.tarball != "":
        return ""
    return max(state.tsa.versions, key=versions.numbers, default="")


def not_followed(state: UnitState) -> dict[str, str]:
    """Return why this worker cannot run the release of its web; empty if it can, or need not.

    The keys are the values of the status: `theirs`, `why`, `ours`, `how`. The worker then stays on
    its release.
    """
    newest, architecture = _followed(state), state.machine.architecture
    if not newest or Part.RELEASE in state.options.frozen:
        return {}
    own = state.installed if _pinned(state.installed, architecture) else RELEASE
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
