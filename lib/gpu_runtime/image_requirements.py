# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Check an image's requirements on driver and GPUs: NVIDIA_REQUIRE_* in its variables.

NVIDIA's toolkit checks them only in its old mode. In jit-cdi, its default since 1.18, the job
starts and fails with `CUDA driver version is insufficient`. The grammar is libnvidia-container's
(src/cli/dsl.c, configure.c): alternatives at spaces, conditions that all must hold at commas, each
of them a rule, an operator and a value. Of several variables all must hold.
"""

from __future__ import annotations

from gpu_runtime.lease_table import readable
from gpu_runtime.refusal import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gpu_runtime.environment import Requirement
    from gpu_runtime.policy import Policy

_LOADED = "/proc/driver/nvidia/version"

# Whether a condition holds if the local value is less than its value, equal, or greater.
_HOLDS = {
    "=": (False, True, False),
    "!=": (True, False, True),
    "!": (True, False, True),  # dsl.c compares as many letters as the operator has
    "<": (True, False, False),
    "<=": (True, True, False),
    ">": (False, False, True),
    ">=": (False, True, True),
}
_OPERATORS = "<>=!"
_VERSION = frozenset("0123456789.")
_LONGEST_READ = 8192  # characters of a requirement, for the number of its alternatives
# A compatibility package works on data center GPUs and some RTX ones (NVIDIA's guide CUDA
# Compatibility, "Forward Compatibility"), and not on these brands.
_WITHOUT_FORWARD = ("geforce", "titan")


def unfit(
    policy: Policy, required: list[Requirement], noun: str, own_drivers: Callable[[], list[str]]
) -> dict[str, str]:
    """Return the devices that do not meet the requirements, by id, each with the reason.

    The reason completes `GPU 0 is ...`. An unknown property of driver or GPU counts as fulfilled,
    as in libnvidia-container.

    Args:
        policy: the worker's devices and its driver.
        required: the requirements, at least one.
        noun: `task` or `container`, for messages.
        own_drivers: returns the versions of libcuda that the image itself has for older drivers
            (package cuda-compat). NVIDIA's hook uses one that is newer than the driver, so the
            driver's CUDA version then does not matter.

    Raises:
        Refused: no device meets the requirements, or one is malformed.
        OSError: the driver or the image cannot be read.
    """
    driver = _loaded() or policy.driver
    # The CUDA version of another driver is not known until the charm rewrites the policy.
    cuda = policy.cuda if driver == policy.driver else ""
    found: dict[str, str] = {}
    refusal: Refused | None = None
    for arch, brand in sorted({(device.arch, device.brand) for device in policy.devices}):
        facts = {"cuda": cuda, "driver": driver, "arch": arch, "brand": brand}
        unmet = _unmet(required, facts, noun)
        if (
            unmet
            and cuda
            and not brand.startswith(_WITHOUT_FORWARD)
            and any(_is_version(own) and _order(own, driver) > 0 for own in own_drivers())
        ):
            unmet = _unmet(required, {**facts, "cuda": ""}, noun)
        if unmet:
            refusal = refusal or _refused(unmet, facts, noun)
            said = f"unfit: {_shown(unmet.name)} is {_shown(unmet.text)}"
            same = (one for one in policy.devices if (one.arch, one.brand) == (arch, brand))
            found |= {device.id: said for device in same}
    if refusal and len(found) == len(policy.devices):
        raise refusal
    return found


def _loaded() -> str:
    """Return the version of the loaded driver; empty if the kernel shows none."""
    try:
        with open(_LOADED, encoding="ascii", errors="replace") as file:
            words = file.readline(4096).split()
    except FileNotFoundError:
        return ""
    return next((word for word in words if "." in word and _is_version(word)), "")


def _unmet(required: list[Requirement], facts: dict[str, str], noun: str) -> Requirement | None:
    """Return the first requirement that does not hold; None if all do.

    Raises:
        Refused: one is malformed.
    """
    for one in required:
        try:
            if not _holds(one.text, facts):
                return one
        except ValueError as error:
            raise Refused(
                "requirement-invalid",
                f"{_shown(one.name)} of this {_owner(one, noun)} contains '{_shown(str(error))}', "
                "which is not a condition on cuda, driver, arch or brand. Correct it, or set the "
                f"{_setting(noun)} NVIDIA_DISABLE_REQUIRE to true",
            ) from error
    return None


def _holds(text: str, facts: dict[str, str]) -> bool:
    """Whether a requirement holds; like dsl.c it reads no further than needed.

    Raises:
        ValueError: a condition is malformed; it is the error's text.
    """
    held = True
    for alternative in filter(None, text.split(" ")):
        for condition in filter(None, alternative.split(",")):
            held = _is_met(condition, facts)
            if not held:
                break
        else:
            break
    return held


def _is_met(condition: str, facts: dict[str, str]) -> bool:
    at = next((place for place, sign in enumerate(condition) if sign in _OPERATORS), 0)
    rule, value = condition[:at].lower(), condition[at:].lstrip(_OPERATORS)
    operator = condition[at : len(condition) - len(value)]
    if rule not in facts or operator not in _HOLDS or not value:
        raise ValueError(condition)
    here = facts[rule]
    if rule == "brand":
        if operator not in ("=", "!=", "!"):
            raise ValueError(condition)
        return not here or _HOLDS[operator][1 if here.lower() == value.lower() else 0]
    if not _is_version(value):
        raise ValueError(condition)
    return not here or _HOLDS[operator][1 + _order(here, value)]


def _is_version(text: str) -> bool:
    return not text.startswith(".") and _VERSION.issuperset(text)


def _order(version: str, other: str) -> int:
    """Return -1, 0 or 1 if a version is before the other, the same, or after it.

    Trailing zeros do not count. Digits are compared as text: there may be thousands.
    """
    first, second = _parts(version), _parts(other)
    return (first > second) - (first < second)


def _parts(version: str) -> list[tuple[int, str]]:
    digits = [part.lstrip("0") for part in version.split(".") if part]
    while digits and not digits[-1]:
        digits.pop()
    return [(len(part), part) for part in digits]


def _refused(unmet: Requirement, facts: dict[str, str], noun: str) -> Refused:
    """Make the refusal if no device meets a requirement, with the required and local values."""
    rules = unmet.text.lower()
    here = [
        (f"CUDA {facts['cuda']}", facts["cuda"]),
        (f"NVIDIA's driver {facts['driver']}", facts["driver"]),
        (f"GPUs of arch {facts['arch']}", facts["arch"] and "arch" in rules),
        (f"GPUs of brand {facts['brand']}", facts["brand"] and "brand" in rules),
    ]
    has = ", ".join(said for said, is_of_it in here if is_of_it)
    return Refused(
        "requirement-unmet",
        f"this {_owner(unmet, noun)} requires {_shown(unmet.text)} ({_shown(unmet.name)}); this "
        f"worker has {has}. Use an image that fits, or a worker with a newer driver. If the image "
        f"works with this driver anyway, set the {_setting(noun)} NVIDIA_DISABLE_REQUIRE to true",
    )


def _owner(one: Requirement, noun: str) -> str:
    return noun if one.authors else f"{noun}'s image"


def _setting(noun: str) -> str:
    return "param" if noun == "task" else "variable"


def _shown(text: str) -> str:
    """Format a requirement for people: its first alternative, and the number of others."""
    first, *others = text[:_LONGEST_READ].split() or [""]
    if len(others) > 1:
        return f"{readable(first)} or one of {len(others)} other combinations"
    return readable(first) + (" or another combination" if others else "")
