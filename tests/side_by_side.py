# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Which tests stay together, and which begin first, where several processes run them at once.

`make test` does (pytest-xdist). Without `-n` nothing here is used: one process, in pytest's order.
"""

from xdist.scheduler import LoadScopeScheduling

# Beginnings of paths, in the order in which their tests begin: what takes longest first.
ORDER = (
    "tests/lab/test_selftest.py",
    "tests/attacks/",
    "tests/lab/",
    "tests/functional/test_selftest_isolation.py",
    "tests/unit/test_gpuci_leases.py",
    "tests/functional/",
    "",
)
# It leaves a second charm in the tree for a moment, which a lab that begins must not meet.
LAST = "tests/functional/test_pack.py"
# Of `tests/lab/`, the files that use machines of their own and not the lab that is up.
ALONE = tuple(
    f"tests/lab/test_{name}.py"
    for name in (
        *("cli", "download", "juju_commands", "juju_events", "juju_machines", "juju_refusals"),
        *("juju_semantics", "kernel_log", "machines", "outfit", "vendors"),
    )
)
# Tests that share one lab of minutes go to one process as a whole. The attacks come after the
# self-test's faults, in the same lab: they leave its options as no other test finds them.
UNDER_ATTACK = ("tests/lab/test_selftest.py", "tests/attacks/")
LAB = "tests/lab/"


def room(nodeid: str) -> str:
    """The name of what this test has to stay together with; else its file."""
    path = nodeid.partition("::")[0]
    if path.startswith(UNDER_ATTACK):
        return "the lab that is attacked"
    return LAB if path.startswith(LAB) and path not in ALONE else path


def turn(nodeid: str) -> int:
    """Where in ORDER this test stands: the smaller, the earlier it begins."""
    if nodeid.startswith(LAST):
        return len(ORDER)
    return next(number for number, begin in enumerate(ORDER) if nodeid.startswith(begin))


class Scheduling(LoadScopeScheduling):
    """Hands each process a whole room at a time."""

    def _split_scope(self, nodeid: str) -> str:
        return room(nodeid)
