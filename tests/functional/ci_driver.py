# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Run inside a machine: calls the rooms as the charm does, and tells what they did.

A call is a JSON object: its name, its arguments and, to die as a killed hook does, the number of
the change after which. The answer is one too: the result, what was said, the commands run.
"""

import collections
import dataclasses
import hashlib
import json
import os
import pathlib
import pkgutil
import re
import sys
import time

from ci.concourse.api import api, build_info
from ci.concourse.api import worker_view as registered
from ci.concourse.options.encryption import Keys
from ci.concourse.options.web import OPTIONS, WebOptions
from ci.concourse.options.web_values import Settings
from ci.concourse.options.worker import WorkerSettings
from ci.concourse.plan.model import ReleasePlan, WebPlan, WorkerPlan
from ci.concourse.web import local_postgresql, web
from ci.concourse.worker import worker
from ci.concourse.worker.keys import WorkerKeys
from machine import files, process
from machine import systemd as services
from options.certificates import Tls
from relations.model import Database, WebSecrets
from relations.worker_view import digest, fingerprint
from tests.functional.forked_calls import serve

CHANGES = [
    *((files, name) for name in ("ensure_file", "ensure_directory", "ensure_absent")),
    *((files, name) for name in ("ensure_symlink", "remove_if_empty", "move")),
    (process, "run"),
    (services, "signal"),
]
TYPES = {
    "release": ReleasePlan,
    "worker": WorkerPlan,
    "worker settings": WorkerSettings,
    "web": WebPlan,
    "web settings": Settings,
    "database": Database,
    "secrets": WebSecrets,
    "tls": Tls,
    "keys": Keys,
}
DIED = 137
# Commands that change nothing.
LOOKS = (
    "systemctl show",
    "worker/overlay_probe.py",
    "dpkg-query",
    "SELECT 'role'",
    "SELECT 1",
)


def value(raw):
    """A plan of its JSON, lists as tuples."""
    if isinstance(raw, list):
        return tuple(map(value, raw))
    if not isinstance(raw, dict):
        return raw
    kind = raw.pop("type")
    given = {name: value(one) for name, one in raw.items()}
    if kind == "web":
        given.setdefault("wanted", default_options())
    if kind == "options":
        return dataclasses.replace(default_options(), **given)
    return TYPES[kind](**given)


def default_options():
    """Return the web's options of an operator who has set none."""
    defaults = {option.name: option.default for option in OPTIONS}
    return WebOptions(**{option.field: option.value(defaults) for option in OPTIONS})


def is_look(command):
    return any(look in command for look in LOOKS)


def watch(commands, die_at):
    """Note each command; end right after change number `die_at`, as a killed hook does."""
    count = collections.Counter()

    def watched(change):
        def call(*args, **kwargs):
            if change is run:
                commands.append(" ".join(args[0]))
            if change is signal:
                commands.append(" ".join(("signal", *args)))
            result = change(*args, **kwargs)
            if result is False or (change is run and is_look(" ".join(args[0]))):
                return result
            if die_at == count["changes"]:
                os._exit(DIED)
            count["changes"] += 1
            return result

        return call

    run, signal = process.run, services.signal
    for module, name in CHANGES:
        setattr(module, name, watched(getattr(module, name)))


def snapshot():
    """All that the rooms keep, and whether each service runs with what its settings say."""
    found = {}
    for root in ("/etc/concourse", "/opt/concourse", "/etc/systemd/system", "/var/lib/gpu-ci"):
        for path in sorted(pathlib.Path(root).rglob("*")):
            status = path.lstat()
            # A release has 100 MB: what is written anew has another time.
            content = f"{status.st_size} {status.st_mtime_ns}".encode()
            if path.is_file() and root != "/opt/concourse":
                content = path.read_bytes()
            digest = hashlib.sha256(content).hexdigest()
            found[str(path)] = f"{status.st_mode:o} {status.st_uid} {digest}"
    for part in ("web", "worker"):
        settings = pathlib.Path(f"/etc/concourse/{part}.env").read_text()
        wanted = re.search(r"GPUCI_REVISION=\S+", settings).group()
        pid = services.main_pid(f"concourse-{part}.service")
        found[part] = wanted.encode() in pathlib.Path(f"/proc/{pid}/environ").read_bytes()
    return found


def worker_key():
    """The public half of the worker's key, which is made if there is none."""
    return WorkerKeys().ensure("")


def apply_web(plan, say):
    """Have web as planned, with its database on this machine."""
    return web.apply(plan, local_postgresql.HERE, say)


def apply_worker(plan, say):
    """Have the worker as planned, with its keys on this machine."""
    return worker.apply(plan, WorkerKeys(), say)


def both(web_plan, worker_plan):
    """A web that lets the worker beside it in, and that worker; whether each is well."""
    web_plan = dataclasses.replace(web_plan, worker_keys=(worker_key(),))
    apply_web(web_plan, unheard)
    apply_worker(worker_plan, unheard)
    return web.healthy(), worker.healthy()


def known(name):
    """What web lists of a worker that is running; None if it lists no such worker."""
    try:
        listed = json.loads(api.Api(build_info.SETTINGS, 8.0, api.is_webs).get("/api/v1/workers"))
    except api.WebError:
        return None
    found = (one for one in listed if (one["name"], one["state"]) == (name, "running"))
    return next(found, None)


def seen(name, tags):
    """How web sees a worker that is to have these tags."""
    return [vars(one) for one in (registered.look({name: digest(tags)}) or {}).values()]


def pruned(names):
    """Which of these workers web still lists after it was to forget those that do not run."""
    return sorted(registered.prune(names))


def new_worker_key(worker_plan):
    """Each step that gives the worker's key another's place; whether web lets it in at each."""
    worker_keys = WorkerKeys()
    worker_keys.begin()
    told = [worker.is_connected()]
    web.authorize(worker_keys.every())
    worker_keys.take_turn(tuple(map(fingerprint, web.authorized())))
    apply_worker(worker_plan, unheard)
    told.append(worker.trusted() is not None and worker.is_connected())
    former = worker_keys.shown()
    worker_keys.settle()
    web.authorize(worker_keys.every())
    told.append(worker.is_connected() and former not in web.authorized())
    return told


def unheard(_line):
    """Takes what the rooms say, which other calls tell."""


def in_child(function, arguments, die_at=-1):
    """Call it in a process of its own. Return whether it came to its end."""
    child = os.fork()
    if not child:
        watch([], die_at)
        function(*arguments)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code not in (0, DIED):
        raise ChildProcessError(f"died of itself with {code} (die_at={die_at})")
    return code == 0


def kill_everywhere(function, variants, stride):
    """Switch between two plans, each time killed `stride` changes later and then run again."""
    settled = []
    for variant in variants:
        in_child(function, variant)
        settled.append(snapshot())
    deaths = 0
    differ = []
    while not in_child(function, variants[deaths % 2], deaths * stride):
        in_child(function, variants[deaths % 2])
        now, wanted = snapshot(), settled[deaths % 2]
        differ += [
            f"{deaths}: {path}" for path in now | wanted if now.get(path) != wanted.get(path)
        ]
        differ += [f"{deaths}: {part} is old" for part in ("web", "worker") if not now[part]]
        deaths += 1
    return {"deaths": deaths, "differ": differ}


def answer(asked):
    said, commands = [], []
    function = pkgutil.resolve_name(asked["call"])
    for constant, number in asked.get("constants", {}).items():
        setattr(sys.modules[function.__module__], constant, number)
    more = [said.append] if asked["say"] else []
    if "variants" in asked:
        variants = [[value(raw), *more] for raw in asked["variants"]]
        return kill_everywhere(function, variants, asked["stride"])
    watch(commands, asked["die_at"])
    began = time.monotonic()
    result = function(*(value(raw) for raw in asked["arguments"]), *more)
    told = {"seconds": time.monotonic() - began, "said": said, "commands": commands}
    return {**told, "result": result}


if __name__ == "__main__":
    serve(answer)
