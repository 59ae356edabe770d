# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""How cgroups are found. What machines are is in test_juju_machines.py, which has one."""

import shutil
import threading

from tests.lab import cgroups


def test_control_groups_are_found_while_others_come_and_go(tmp_path, monkeypatch):
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    ours = tmp_path / "memory/here/lab-1-web-0"
    (ours / "system.slice/lab-1-inner").mkdir(parents=True)
    (ours / "cgroup.procs").write_text("12\n34\n")
    over = threading.Event()

    def churn():
        while not over.is_set():
            for place in (tmp_path / "memory", ours):
                (place / "other/one/two").mkdir(parents=True)
                shutil.rmtree(place / "other")

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(300):
            assert cgroups.find("lab-1") == [ours]
            assert cgroups.processes([ours]) == {12, 34}
    finally:
        over.set()
        thread.join()
