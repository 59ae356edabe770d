# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""GPUs that are handed over all the time, while the processes that look before are killed."""

import concurrent.futures
import contextlib
import json
import os
import resource
import signal
import threading
import time

import looks
from worker import STORE, finish

# How many descriptors a look finds beside what is there: it takes seconds then.
_OPEN = 3000
_TASKS, _AT_ONCE = 18, 4
# Nothing but this task may have the GPU meanwhile.
STEP = """
for node in /dev/dri/renderD*; do
    mkdir "/tmp/held-${node##*/}" || echo "$node" >>/tmp/twice
done
sleep 1
for node in /dev/dri/renderD*; do rmdir "/tmp/held-${node##*/}"; done
"""


def _looking():
    """The processes that look now, as the store says."""
    try:
        found = json.loads((STORE / "leases.json").read_text())["holders"].values()
    except FileNotFoundError:
        return set()
    return {entry["handing"][0][0] for entry in found if entry.get("handing")}


def no_gpu_is_held_twice_while_who_looks_is_killed(worker):
    nodes = [f"/dev/dri/renderD{200 + minor}" for minor in (5, 7)]
    os.makedirs("/dev/dri", exist_ok=True)
    for node, minor in zip(nodes, (5, 7), strict=True):
        if not os.path.exists(node):
            looks.make_node(node, 1, minor)
    worker.policy(
        vendor="intel", nvidia_runtime="", gpus=[*map(looks.gpu_of, range(2), nodes)],
        wait_timeout=600,
    )  # fmt: skip
    killed, over = set(), threading.Event()

    def kill():
        while not over.wait(0.2):
            # Every second one: a look that is not killed is to come to its end too.
            for pid in sorted(_looking() - killed):
                killed.add(pid)
                if len(killed) % 2:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)

    def task(number):
        handle = f"t{number}"
        began = time.monotonic()
        said, code = finish(worker.creating(handle), 600)
        took = time.monotonic() - began
        ran = not code and worker.exec(handle, STEP)
        return said, code, ran, round(took, 1)

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(most, _OPEN + 1000),) * 2)
    descriptors = [os.open("/dev/null", os.O_RDONLY) for _ in range(_OPEN)]
    killer = threading.Thread(target=kill)
    killer.start()
    try:
        with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
            ended = list(pool.map(task, range(_TASKS)))
    finally:
        over.set()
        killer.join()
        for descriptor in descriptors:
            os.close(descriptor)
    refused = [said for said, code, _, _ in ended if code and "exit status 137" not in said]
    looks.tell(
        note=f"{len(killed)} looks, every second one killed; {sum(not e[1] for e in ended)} of "
        f"{_TASKS} tasks ran; the longest create took {max(e[3] for e in ended)} s"
    )
    assert not refused, refused
    assert len(killed) > 2, "too few looks were killed"
    assert all(ran == ("", 0) for _, code, ran, _ in ended if not code), ended
    assert not (worker.rootfs / "tmp/twice").exists()
    for handle in ("last1", "last2"):
        worker.create(handle)
    assert len({*map(tuple, worker.holders().values())}) == 2, worker.holders()
