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
import random
import signal
import subprocess
import sys
import threading
import time
import uuid

from oci import leases

AT_ONCE = 6
# In seconds. Those who wait look twice a second, on a machine that is busy with this.
PATIENCE = 20
KINDS = ("step", "gpu-run", "podman", "docker")
UUIDS = [device["id"] for device in json.loads(leases.as_json())["devices"]]
CTR = ("ctr", "-a", "/srv/storm/sock", "-n", "concourse")
HOLD = "/srv/storm/bin/hold"


class One:
    """Somebody who wants GPUs: so many, or these by their indexes."""

    def __init__(self, number, kind, dice):
        self.name, self.kind = f"storm-{number}-{kind}", kind
        self.handle = str(uuid.UUID(int=dice.getrandbits(128), version=4))
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
        self.status, self.said, self.disturbed = None, "", False

    def command(self):
        own = [self.name, str(self.length), str(self.left)]
        if self.kind == "gpu-run":
            wish = ["--gpu", str(self.named[0])] if self.named else ["--gpus", str(self.count)]
            user = ["setpriv", "--reuid", "alice", "--regid", "alice", "--init-groups", "--"]
            return [*user, "gpu-run", *wish, "--", HOLD, "/srv/storm/held", *own]
        if self.kind == "step":
            return [
                *CTR,
                "task",
                "exec",
                "--exec-id",
                "task",
                self.handle,
                "/hold",
                "/scratch",
                *own,
            ]
        if self.kind == "podman":
            many = ["-e", f"GPU_COUNT={self.count}"]
            if self.named:
                many = ["--device", f"/dev/nvidia{self.named[0]}"]
        elif self.named:
            many = ["--gpus", f"device={self.named[0]}"]
        else:
            many = ["--gpus", "all" if self.count == 2 else "1"]
        binds = ["-v", "/srv/storm/held:/held", "-v", "/srv/storm/bin:/storm:ro"]
        image = ["lab.test/plain", "/storm/hold", "/held"]
        before = ["--rm", "--init=false"] if self.kind == "docker" else ["--rm"]
        return [self.kind, "run", *before, "--name", self.name, *many, *binds, *image, *own]

    def make_step(self):
        with open("/srv/storm/task.json") as file:
            text = file.read().replace("HANDLE", self.handle)
        spec = json.loads(text)
        spec["process"]["env"].append(f"GPU_COUNT={self.count}")
        path = f"/srv/storm/{self.handle}.json"
        with open(path, "w") as file:
            json.dump(spec, file)
        return call([*CTR, "run", "-d", "--null-io", "--config", path, self.handle])

    def run(self):
        timer = threading.Timer(self.after, self.kill)
        if self.killed:
            timer.start()
        try:
            if self.kind == "step":
                made = self.make_step()
                if made.returncode:
                    self.status, self.said = made.returncode, made.stdout
                    return
            self.process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True,
            )  # fmt: skip
            self.said = self.process.communicate(timeout=300)[0]
            self.status = self.process.returncode
        finally:
            timer.cancel()
            timer.join() if self.killed else None
            self.tidy()

    def kill(self):
        """As somebody does who is in the way of his engine, or by it."""
        if self.by_engine and self.kind in ("docker", "podman"):
            call([self.kind, "kill", self.name])
        elif self.by_engine and self.kind == "step":
            call([*CTR, "task", "kill", "-s", "KILL", self.handle])
        elif hasattr(self, "process"):
            self.process.kill()

    def tidy(self):
        if self.kind == "step":
            call([*CTR, "task", "kill", "-s", "KILL", self.handle])
            call([*CTR, "task", "delete", "-f", self.handle])
            call([*CTR, "container", "delete", self.handle])


def call(command):
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, timeout=120, check=False,
    )  # fmt: skip


class Watch(threading.Thread):
    """What gpu-leases says meanwhile; now and then it kills one who waits."""

    def __init__(self, dice):
        super().__init__()
        self.over, self.dice = threading.Event(), dice
        self.who, self.looks, self.faults, self.shot = set(), 0, [], []
        self.fits_since = {}

    def run(self):
        while not self.over.wait(0.3):
            try:
                self.look(json.loads(leases.as_json()))
            except leases.LeaseError as error:
                self.faults.append(str(error))

    def look(self, seen):
        self.looks += 1
        self.who |= {(one["kind"], one["who"]) for one in seen["containers"].values()}
        free = {one["id"] for one in seen["devices"] if one["state"] == "free"}
        fits = {}
        for first in seen["waiters"][:1]:
            if len(free) >= first["count"] and free.issuperset(first["named"]):
                fits[first["container"]] = self.fits_since.get(
                    first["container"], time.monotonic()
                )
        for name, since in fits.items():
            if time.monotonic() - since > PATIENCE:
                self.faults.append(f"{name} waits, and there is a GPU for it: {seen}")
                fits[name] = time.monotonic()
        self.fits_since = fits
        if seen["waiters"] and self.dice.random() < 0.04:
            self.shoot()

    def shoot(self):
        with open("/run/gpu-ci/leases/leases.json") as file:
            waiters = json.load(file)["waiters"]
        for one in waiters[:1]:
            try:
                os.kill(one["call"][0], signal.SIGKILL)
                self.shot.append(f"{one['who']} {one['container']}")
            except ProcessLookupError:
                pass


def settled():
    """Whether nobody has a GPU in use or waits for one, within a minute."""
    for _ in range(240):
        seen = json.loads(leases.as_json())
        if not seen["waiters"] and not any(one["in_use"] for one in seen["containers"].values()):
            return True
        time.sleep(0.25)
    return False


def main(count, seed):
    dice = random.Random(seed)
    everybody = [One(number, KINDS[number % 4], dice) for number in range(count)]
    dice.shuffle(everybody)
    watch = Watch(random.Random(seed + 1))
    watch.start()
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        done = [pool.submit(one.run) for one in everybody]
    watch.over.set()
    watch.join()
    faults = [repr(each.exception()) for each in done if each.exception()]
    is_settled = settled()
    keys = ("name", "kind", "handle", "count", "named", "killed", "status", "said")
    print(
        json.dumps(
            {
                "everybody": [{key: getattr(one, key) for key in keys} for one in everybody],
                "who": sorted(watch.who), "looks": watch.looks, "shot": watch.shot,
                "faults": watch.faults + faults, "settled": is_settled,
                "left": json.loads(leases.as_json()),
            }
        )
    )  # fmt: skip


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
