# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The storm itself, on the machine: all who use its GPUs at once, some of them killed.

    python driver.py COUNT SEED

What came of it goes to stdout as JSON: what each wanted, whether it was killed, what it said, what
`gpu-leases` said meanwhile, and who waited although there was a GPU for it.
"""

import concurrent.futures
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import threading
import time

from gpu_agent.availability import lease_report as leases

AT_ONCE = 6
# In seconds. Those who wait look twice a second, on a machine that is busy with this.
PATIENCE = 20
# One that hangs is ended then.
LONGEST = 300
KINDS = ("step", "gpu-run", "podman", "docker")
INDEXES = {one["id"]: str(one["index"]) for one in json.loads(leases.as_json())["devices"]}
HOME = pathlib.Path("/srv/storm/fly")
FLY = (str(HOME / "fly"), "-t", "lab")
ROOTFS = "/srv/lab/rootfs"
BUNDLE = "/run/containerd/io.containerd.runtime.v2.task/concourse/{}/config.json"
BUILD = re.compile(r"executing build (\d+)")


class One:
    """Somebody who wants GPUs: so many, or these by their indexes."""

    def __init__(self, number, kind, dice):
        self.name, self.kind = f"storm-{number}-{kind}", kind
        self.count = dice.choice((1, 1, 1, 2))
        # No task of Concourse's names a GPU.
        named = kind != "step" and self.count == 1 and dice.random() < 0.4
        self.named = [dice.randrange(2)] if named else []
        self.length = dice.randrange(100, 1500)
        # gpu-run holds for what is left behind; of the others that is ended with them.
        self.left = dice.choice((0, 0, 1500 if kind == "gpu-run" else 600_000))
        self.killed = dice.random() < 0.3
        self.after, self.by_engine = dice.random() * 3, dice.random() < 0.5
        # Killed between create and start, podman leaves a container that has its minute to start.
        self.by_engine |= kind == "podman"
        self.status, self.said, self.build, self.process = None, "", "", None

    def command(self):
        own = [self.name, str(self.length), str(self.left)]
        if self.kind == "step":
            return [*FLY, "execute", "-c", self.task(own), "--tag", "gpu"]
        if self.kind == "gpu-run":
            wish = ["--gpu", str(self.named[0])] if self.named else ["--gpus", str(self.count)]
            user = ["setpriv", "--reuid", "alice", "--regid", "alice", "--init-groups", "--"]
            return [*user, "gpu-run", *wish, "--", f"{ROOTFS}/bin/hold", f"{ROOTFS}/held", *own]
        if self.kind == "podman":
            many = ["-e", f"GPU_COUNT={self.count}"]
            if self.named:
                many = ["--device", f"/dev/nvidia{self.named[0]}"]
        elif self.named:
            many = ["--gpus", f"device={self.named[0]}"]
        else:
            many = ["--gpus", "all" if self.count == 2 else "1"]
        binds = ["-v", f"{ROOTFS}/held:/held", "-v", "/srv/storm/bin:/storm:ro"]
        image = ["lab.test/plain", "/storm/hold", "/held"]
        before = ["--rm", "--init=false"] if self.kind == "docker" else ["--rm"]
        return [self.kind, "run", *before, "--name", self.name, *many, *binds, *image, *own]

    def task(self, own):
        """Path of the task's file; STORM tells whose a container is that has no process yet."""
        path = HOME / f"{self.name}.yml"
        params = {"GPU_COUNT": "all" if self.count == 2 else "1", "STORM": self.name}
        run = {"path": "/bin/hold", "args": ["/held", *own]}
        task = {"platform": "linux", "rootfs_uri": f"raw://{ROOTFS}", "params": params, "run": run}
        path.write_text(json.dumps(task))
        return str(path)

    def run(self):
        timer = threading.Timer(self.after, self.kill)
        if self.killed:
            timer.start()
        self.process = subprocess.Popen(
            self.command(), env={**os.environ, "HOME": str(HOME)},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        limit = threading.Timer(LONGEST, self.process.kill)
        limit.start()
        try:
            for line in self.process.stdout:
                self.said += line
                if self.kind == "step" and (found := BUILD.match(line)):
                    self.build = found[1]
            self.status = self.process.wait()
        finally:
            limit.cancel()
            timer.cancel()
            timer.join() if self.killed else None

    def kill(self):
        """As somebody does who is in the way of his engine, or by it."""
        if not self.by_engine:
            self.kill_process()
        elif self.kind in ("docker", "podman"):
            call([self.kind, "kill", self.name])
        elif self.kind == "step":
            while not self.build and self.is_there():
                time.sleep(0.1)
            call([*FLY, "abort-build", "-b", self.build or "0"])
        else:
            self.kill_process()

    def kill_process(self):
        """What a task runs, as for want of memory; of others, and of one that waits, its client.

        The build goes on without its fly.
        """
        own = [pid for pid, (name, _) in holding().items() if name == self.name]
        if self.kind == "step" and own:
            for pid in own:
                kill(pid)
        elif self.is_there():
            self.process.kill()

    def is_there(self):
        return self.process is None or self.process.poll() is None


def call(command):
    return subprocess.run(
        command, env={**os.environ, "HOME": str(HOME)},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, timeout=120, check=False,
    )  # fmt: skip


def kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def holding():
    """Who runs by now, by its process: its name, and its control groups."""
    found = {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "comm").read_text() == "hold\n":
                words = (folder / "cmdline").read_bytes().decode().split("\0")
                found[int(folder.name)] = (words[2], (folder / "cgroup").read_text())
        except (FileNotFoundError, ProcessLookupError, IndexError):
            pass
    return found


def served(seen):
    """The waiters for whom there is a GPU, as their elders leave it."""
    left, given, found = {one["id"] for one in seen["devices"] if one["state"] == "free"}, 0, []
    for one in seen["queue"]:
        if one["count"] <= len(left) - given and left.issuperset(one["named"]):
            found.append(one["container"])
            given += 0 if one["named"] else one["count"]
            left -= {*one["named"]}
        elif one["kept"] and one["named"]:
            left -= {*one["named"]}
        elif one["kept"]:
            break
    return found


class Watch:
    """What gpu-leases says meanwhile; now and then it kills one who waits."""

    def __init__(self, dice):
        self.over, self.dice = threading.Event(), dice
        self.who, self.leased, self.looks, self.seen = set(), {}, 0, 0
        self.faults, self.shot, self.fits_since = [], [], {}

    def run(self):
        while not self.over.wait(0.3):
            before = holding()
            try:
                seen = json.loads(leases.as_json())
            except leases.LeaseError as error:
                self.faults.append(str(error))
                continue
            self.look(seen)
            self.compare(before, seen)

    def look(self, seen):
        self.looks += 1
        self.who |= {(one["kind"], one["who"]) for one in seen["containers"].values()}
        now = time.monotonic()
        self.fits_since = {name: self.fits_since.get(name, now) for name in served(seen)}
        for name, since in self.fits_since.items():
            if now - since > PATIENCE:
                self.faults.append(f"{name} waits, and there is a GPU for it: {seen}")
                self.fits_since[name] = now
        if seen["queue"] and self.dice.random() < 0.04:
            self.shoot()

    def compare(self, before, seen):
        """Each that runs is in the control group of the holder that gpu-leases calls so."""
        for pid, (name, group) in before.items():
            holders = [key for key in seen["containers"] if key in group]
            if not holders:
                if holding().get(pid) == (name, group):
                    self.faults.append(f"{name} runs in {group}, and gpu-leases has none: {seen}")
                continue
            key, kind = holders[0], name.split("-", 2)[2]
            one = seen["containers"][key]
            words = {"step": f"container {key}", "gpu-run": "gpu-run of alice: hold"}
            if not one["who"].startswith(words.get(kind, f'{kind} container "{name}"')):
                self.faults.append(f"{name} is called {one}")
            self.seen += 1
            self.leased[name] = "".join(sorted(INDEXES[gpu] for gpu in one["gpus"]))

    def shoot(self):
        with open("/run/gpu-ci/leases/leases.json") as file:
            waiters = json.load(file)["waiters"]
        for one in waiters[:1]:
            words = one["who"] or task_of(one["container"])
            if words and kill(one["call"][0]):
                self.shot.append(words)


def task_of(handle):
    """The name of whose task a container is that has no process yet; empty if it is gone."""
    try:
        with open(BUNDLE.format(handle)) as file:
            variables = json.load(file)["process"]["env"]
    except FileNotFoundError:
        return ""
    return next(one.partition("=")[2] for one in variables if one.startswith("STORM="))


def settled():
    """Whether nobody has a GPU in use or waits for one, within a minute."""
    for _ in range(240):
        seen = json.loads(leases.as_json())
        if not seen["queue"] and not any(one["in_use"] for one in seen["containers"].values()):
            return True
        time.sleep(0.25)
    return False


def main(count, seed):
    dice, begun = random.Random(seed), time.monotonic()
    everybody = [One(number, KINDS[number % 4], dice) for number in range(count)]
    dice.shuffle(everybody)
    watch = Watch(random.Random(seed + 1))
    with concurrent.futures.ThreadPoolExecutor(1) as beside:
        watching = beside.submit(watch.run)
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            done = [pool.submit(one.run) for one in everybody]
        watch.over.set()
    faults = [repr(each.exception()) for each in (watching, *done) if each.exception()]
    is_settled = settled()
    keys = ("name", "kind", "count", "named", "killed", "status", "said")
    print(
        json.dumps(
            {
                "everybody": [{key: getattr(one, key) for key in keys} for one in everybody],
                "who": sorted(watch.who), "looks": watch.looks, "shot": watch.shot,
                "seen": watch.seen, "leased": watch.leased,
                "seconds": round(time.monotonic() - begun),
                "faults": watch.faults + faults, "settled": is_settled,
                "left": json.loads(leases.as_json()),
            }
        )
    )  # fmt: skip


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
