#!/usr/bin/python3 -I
# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The stand-in's fly: the few commands that the lab uses, for the stand-in's web only."""

import argparse
import base64
import json
import os
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

POLL_SECONDS = 0.2
FLYRC = Path(os.environ.get("HOME", "/"), ".flyrc")


def call(target, method, path, document=None, patience=0):
    """One request to the stand-in's own API; what it answers, or exit with its words.

    A web that cannot be reached is tried again for ``patience`` seconds.
    """
    request = urllib.request.Request(
        f"{target['api']}/standin/{path}",
        method=method,
        data=None if document is None else json.dumps(document).encode(),
        headers={"Authorization": f"Basic {target['token']}"},
    )
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(request, timeout=70) as reply:
            return json.load(reply)
    except urllib.error.HTTPError as error:
        sys.exit(f"error: {json.load(error).get('error', error)}")
    except OSError as error:
        if patience > 0:
            time.sleep(1)
            return call(target, method, path, document, patience - 1)
        sys.exit(f"error: could not reach the Concourse server at {target['api']}: {error}")


def follow(target, number):
    """Print the build's log until it ends; return its exit status as fly does."""
    since = 0
    while True:
        events = call(target, "GET", f"builds/{number}/events?since={since}", patience=30)
        since = events["last"]
        sys.stdout.buffer.write(events["text"].encode("latin-1"))
        sys.stdout.buffer.flush()
        if events["status"] != "started" and not events["text"]:
            print(events["status"], flush=True)
            other = {"succeeded": 0, "failed": 1, "errored": 2, "aborted": 3}
            return events["exit_status"] or other[events["status"]]
        time.sleep(POLL_SECONDS)


def login(target, options):
    targets = json.loads(FLYRC.read_text())["targets"] if FLYRC.exists() else {}
    targets[options.target] = target
    call(target, "GET", "user")
    FLYRC.touch(0o600)
    FLYRC.write_text(json.dumps({"targets": targets}))
    print("logging in to team 'main'\n\ntarget saved")


def execute(target, options):
    task = {"task": Path(options.config).read_text(), "tags": options.tag}
    build = call(target, "POST", "builds", task)["id"]
    print(f"executing build {build} at {target['api']}/builds/{build}", flush=True)
    return follow(target, build)


def watch(target, options):
    return follow(target, options.build)


def workers(target, options):
    rows = call(target, "GET", "workers")
    if options.json:
        print(json.dumps(rows))
        return
    for row in rows:
        tags = ", ".join(row["tags"]) or "none"
        print(f"{row['name']}  {row['platform']}  {tags}  {row['state']}  {row['version']}")


def builds(target, _options):
    print(json.dumps(call(target, "GET", "builds")))


def set_pipeline(target, options):
    config = {"config": Path(options.config).read_text()}
    call(target, "PUT", f"pipelines/{options.pipeline}", config)
    print("configuration updated")


def unpause_pipeline(target, options):
    call(target, "PUT", f"pipelines/{options.pipeline}/unpause")
    print(f"unpaused '{options.pipeline}'")


def trigger_job(target, options):
    pipeline, _, job = options.job.partition("/")
    build = call(target, "POST", f"pipelines/{pipeline}/jobs/{job}/builds")["id"]
    print(f"started {options.job} #{build}", flush=True)
    return follow(target, build) if options.watch else 0


def abort_build(target, options):
    call(target, "PUT", f"builds/{options.build}/abort")
    print("build successfully aborted")


def hijack(target, options):
    asked = {"step": options.step, "args": options.command_line}
    done = call(target, "POST", f"builds/{options.build}/hijack", asked)
    if "error" in done:
        print(done["error"], file=sys.stderr)
        return 255
    sys.stdout.write(done["output"])
    return done["exit"]


def parser():
    main = argparse.ArgumentParser(prog="fly", description=__doc__)
    main.add_argument("-t", "--target", required=True)
    commands = main.add_subparsers(dest="command", required=True)

    def command(action):
        added = commands.add_parser(action.__name__.replace("_", "-"))
        added.set_defaults(action=action)
        return added

    one = command(login)
    one.add_argument("-c", "--concourse-url", required=True)
    one.add_argument("-u", "--username", required=True)
    one.add_argument("-p", "--password", required=True)
    one = command(execute)
    one.add_argument("-c", "--config", required=True)
    one.add_argument("--tag", action="append", default=[])
    command(watch).add_argument("-b", "--build", required=True)
    command(workers).add_argument("--json", action="store_true")
    listing = command(builds)
    listing.add_argument("--json", action="store_true", required=True)
    # All of them are listed; fly itself stops at 50.
    listing.add_argument("-c", "--count", type=int)
    one = command(set_pipeline)
    one.add_argument("-n", "--non-interactive", action="store_true")
    one.add_argument("-p", "--pipeline", required=True)
    one.add_argument("-c", "--config", required=True)
    command(unpause_pipeline).add_argument("-p", "--pipeline", required=True)
    one = command(trigger_job)
    one.add_argument("-j", "--job", required=True)
    one.add_argument("-w", "--watch", action="store_true")
    command(abort_build).add_argument("-b", "--build", required=True)
    one = command(hijack)
    one.add_argument("-b", "--build", required=True)
    one.add_argument("-s", "--step", required=True)
    one.add_argument("command_line", nargs="+", metavar="command")
    return main


def main():
    options = parser().parse_args()
    if options.command == "login":
        token = base64.b64encode(f"{options.username}:{options.password}".encode()).decode()
        url = options.concourse_url.rstrip("/")
        target = {"api": url, "team": "main", "token": token}
    else:
        known = json.loads(FLYRC.read_text())["targets"] if FLYRC.exists() else {}
        if options.target not in known:
            sys.exit(f"error: unknown target: {options.target}: fly -t {options.target} login ...")
        target = known[options.target]
    return options.action(target, options)


if __name__ == "__main__":
    sys.exit(main())
