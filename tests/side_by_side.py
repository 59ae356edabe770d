# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Which tests stay together, and which begin first, where several processes run them at once.

`make test` does (pytest-xdist). Without `-n` nothing here is used: one process, in pytest's order.
"""

from xdist.scheduler import LoadScopeScheduling


def _lab(*names: str) -> list[str]:
    return [f"tests/lab/test_{name}.py" for name in names]


# Paths whose tests share one lab, or machine, of minutes: each goes to one process as a whole.
# They begin first, in this order. Every other file is a room of its own, which begins as early as
# its suite stands here.
ROOMS = (
    *_lab("selftest", "drain", "all_in_one", "restart", "gitea"),
    "tests/lab/",
    "tests/attacks/",
    "tests/functional/test_runners.py",
    "tests/functional/test_selftest_isolation.py",
    "tests/functional/test_selftest_service.py",
    "tests/functional/test_prove_gpu.py",
    "tests/functional/test_ownership_machine.py",
    "tests/unit/test_gpu_runtime_leases.py",
    "tests/functional/",
    "",
)
# It leaves a second charm in the tree for a moment, which a lab that begins must not meet.
LAST = "tests/functional/test_pack.py"
# Of `tests/lab/`, the files that use machines of their own and not the lab that is up.
ALONE = _lab(
    *("bare", "bare_changes", "cli", "deploy_lxd", "download", "gitea", "juju_events"),
    *("juju_machines", "layout_refresh", "machines", "no_ci_system", "obstacles", "outfit"),
    "trials",
)
# What begins with a path uses the lab of that name; the first that fits counts. To bring a lab up
# takes half a minute of a processor, and its tests mostly wait: these four take equally long.
# Attacks come after the self-test, since they leave tasks without a GPU until the run ends; storms
# last, which want that too.
SHARED = {
    "tests/lab/test_selftest.py": "selftest and attacks",
    "tests/attacks/": "selftest and attacks",
    "tests/soak/test_line_storm.py": "selftest and attacks",
    "tests/soak/test_restart_storm.py": "selftest and attacks",
    **dict.fromkeys(_lab("all_in_one", "gpu_run", "nested", "outages", "release"), "second lab"),
    **dict.fromkeys(_lab("restart", "secrets", "switch_ci_system", "task_world"), "third lab"),
    **dict.fromkeys(_lab("two_webs", "walk", "watch"), "third lab"),
    "tests/lab/": "lab",
}
# How many times as much of the processors a process with a shared lab gets, which takes longest.
PRECEDENCE = 2


def room(nodeid: str) -> str:
    """The name of what this test has to stay together with."""
    path = nodeid.partition("::")[0]
    if path in ALONE:
        return path
    return next((lab for begin, lab in SHARED.items() if path.startswith(begin)), path)


def turn(nodeid: str) -> int:
    """Where in ROOMS this test stands: the smaller, the earlier it begins."""
    if nodeid.startswith(LAST):
        return len(ROOMS)
    return next(number for number, begin in enumerate(ROOMS) if nodeid.startswith(begin))


class Scheduling(LoadScopeScheduling):
    """Hands each process a whole room at a time."""

    def _split_scope(self, nodeid: str) -> str:
        return room(nodeid)
