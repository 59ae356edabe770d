# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Which release of Concourse this unit should have, and whether it suits its web. Pure."""

import re

from ci.concourse.plan.model import ReleasePlan
from ci.concourse.upstream import OLDEST, PINNED_SHA256, RELEASES, tarball, works_with
from gpu_agent.model import versions
from options.part import Part
from plan.problems import Problem, Reason, problem
from plan.state import UnitState


def make(state: UnitState, problems: list[Problem]) -> ReleasePlan | None:
    """The release that is to be here; without one, what stands against it is in `problems`."""
    options, architecture = state.options, state.machine.architecture
    if state.release_failed:
        problems.append(problem(Reason.RELEASE_FAILED, text=state.release_failed))
    if state.tarball is None:
        problems.append(Problem(Reason.RESOURCE_UNKNOWN))
        return None
    if Part.RELEASE in options.frozen:
        return None
    version = options.release.version
    sha256 = options.release.sha256 or _pinned(version, architecture)
    if not state.tarball and (theirs := _followed(state, problems)):
        version, sha256 = theirs, _pinned(theirs, architecture) or options.release.sha256
    if not sha256 and not state.tarball:
        url = f"{options.release.mirror or RELEASES}/{tarball(version, architecture)}"
        about = {"version": version, "architecture": architecture, "url": url}
        problems.append(problem(Reason.NO_CHECKSUM, **about))
        return None
    webs = () if options.has_web else state.tsa.versions
    mirror = options.release.mirror
    attach = f"juju attach-resource {state.application} concourse=<release tarball>"
    is_named = bool(sha256) and sha256 == options.release.sha256
    return ReleasePlan(
        version, architecture, sha256, state.tarball, mirror, webs, attach, is_named
    )


def version(state: UnitState) -> str:
    """Which Concourse will run; empty for a tarball, whose is known once it is unpacked."""
    if state.installed or state.tarball:
        return state.installed
    wanted = make(state, [])
    return wanted.version if wanted else state.options.release.version


def against_web(state: UnitState) -> Problem | None:
    """What keeps this unit's worker from serving its web, if the releases of both do."""
    ours = version(state)
    for theirs in state.tsa.versions:
        if ours and not works_with(ours, theirs):
            how = f"juju config {state.application} concourse-version={theirs}"
            if state.tarball:
                how = f"juju attach-resource {state.application} concourse=<tarball of {theirs}>"
            return problem(Reason.WEB_IS_OTHER_RELEASE, theirs=theirs, ours=ours, how=how)
    return None


def _pinned(release: str, architecture: str) -> str:
    return PINNED_SHA256.get(release, "") if architecture == "amd64" else ""


def _followed(state: UnitState, problems: list[Problem]) -> str:
    """The version of the web that this worker is to follow; empty: its own option counts.

    Where several webs are being upgraded that is the newest: a worker serves older ones of the
    same API too.
    """
    options, theirs = state.options, state.tsa.versions
    own = options.release.version
    if not options.release.follows_web or options.has_web or not theirs:
        return ""
    newest = max(theirs, key=versions.numbers)
    if newest == own:
        return ""
    if not re.fullmatch(r"[0-9]+(\.[0-9]+){2}", newest):
        why = "no release X.Y.Z"
    elif versions.numbers(newest) < versions.numbers(OLDEST):
        why = f"older than {OLDEST}, the oldest that this charm supports"
    elif not _pinned(newest, state.machine.architecture) and not options.release.sha256:
        why = "a release whose checksum this charm doesn't know, see concourse-sha256"
    else:
        return newest
    problems.append(problem(Reason.WEB_NOT_FOLLOWED, theirs=newest, why=why, ours=own))
    return ""
