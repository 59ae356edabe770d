# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Attackers who read what is others', or write into what operators read."""

import json
import re

from tests.attacks.attacker import Attacker, Ended, assert_refused, step
from tests.lab.site import PROBE

SECRET = "hunter2-of-another-team"
LOOK = r"""
cat /proc/*/environ 2>/dev/null | tr '\0' '\n' | sed 's/^/seen /'
env | sed 's/^/seen /'
cat /etc/concourse/keys/* /run/gpu-ci/leases/* /var/log/gpu-ci/* 2>/dev/null | sed 's/^/seen /'
find / -xdev -path /proc -prune -o -path /sys -prune -o \( -name '*.pem' -o -name '*_key' \) \
  -print 2>/dev/null | sed 's/^/seen key /'
"""
# What a terminal, a pager or a program that reads lines would take for more than text.
ODD = '1\n{"level":"error"}\x1b[2J\u202e\u2028\r\t\'"`$(id)'


def act(attacker: Attacker, name: str, **params: str) -> str:
    """Results of an action on the worker, or why it failed."""
    lab = attacker.site.lab
    number = lab.model.run_action("worker/0", name, params)
    lab.settle()
    row = lab.store.row("SELECT * FROM action WHERE id = ?", number)
    return row["results"] + row["message"]


def decisions(attacker: Attacker) -> list[dict]:
    """The wrapper's log; every line of it is one JSON object, and plain text."""
    text = attacker.site.sh("cat /var/log/gpu-ci/oci.log")
    lines = [json.loads(line) for line in text.split("\n") if line]
    assert all(isinstance(line, dict) and line["container"] for line in lines)
    assert all(character.isprintable() for character in text if character != "\n")
    return lines


def test_params_of_others_and_the_workers_own(attacker):
    """Tasks read every process's environment, and look for keys and the wrapper's files.

    With a GPU or without, they must find neither another task's params nor the worker's own.
    """
    other = attacker.start(step("one-off", "sleep 60", "1", params={"PASSWORD": SECRET}))
    other.line(".*the attack ran")
    for done in attacker.at_once({n: [step("one-off", LOOK, n)] for n in "01"}).values():
        seen = [line for line in done.lines if line.startswith("seen ")]
        assert len(seen) > 3, done.output
        told = "\n".join(seen)
        for word in (SECRET, "CONCOURSE_", "PRIVATE KEY", "holders", "seen key"):
            assert word not in told, told


def test_params_in_what_operators_keep(attacker):
    """A task has a secret among its params, and is refused; another has it and gets its GPU.

    Neither must leave it in the wrapper's log, the store, the status, or what actions tell.
    """
    attacker.one("true", "1", params={"PASSWORD": SECRET})
    assert_refused(attacker.one("true", "3", params={"PASSWORD": SECRET}))
    places = "/var/log/gpu-ci /run/gpu-ci /var/lib/gpu-ci /etc/gpu-ci"
    assert attacker.site.sh(f"grep -rl {SECRET} {places}; true") == ""
    assert SECRET not in act(attacker, "gpu-leases") + "".join(attacker.site.status())


def test_escapes_in_what_a_refusal_repeats(attacker):
    """A param that a refusal repeats has line breaks, terminal escapes and quotes.

    The build's log, the wrapper's log and the actions' answers must show plain text only.
    """
    before = len(decisions(attacker))
    names = ("GPU_COUNT", "CUDA_VISIBLE_DEVICES")
    jobs = {name: [step("one-off", PROBE, "1", params={name: ODD})] for name in names}
    for done in attacker.at_once(jobs).values():
        assert_refused(done)
    logged = decisions(attacker)[before:]
    assert [bool(line["reason"]) for line in logged] == [True, True]
    assert plain(act(attacker, "gpu-leases"))


def test_escapes_in_names_of_programs(attacker):
    """A program whose name is a terminal escape and a line break uses a GPU without a lease.

    The status, the tags and what actions tell must show plain text only.
    """
    site = attacker.site
    script = 'cp /bin/mischief "/tmp/$(printf "\\033[2Jx\\nok")"; cd /tmp; exec ./*ok hold /tmp/d'
    build = attacker.start(step("one-off", f"{script}", "0"))
    build.line(".*the attack ran")
    find = "for p in /proc/[0-9]*; do readlink $p/exe | grep -q 2Jx && basename $p; done; true"
    pid = re.findall(r"\d+", site.sh(find))[0]
    site.gpus("set", "1", f"processes={pid} 900")
    try:
        for text in (*site.status(), act(attacker, "gpu-leases"), act(attacker, "gpu-inventory")):
            assert plain(text), repr(text)
    finally:
        site.gpus("set", "1", "processes=", "memory-used-mib=")


def plain(text: str) -> bool:
    """Whether a text is for people, line by line; what JSON escapes is read first."""
    try:
        found = json.loads(text)
        values = found.values() if isinstance(found, dict) else [text]
    except ValueError:
        values = [text]
    return all(str(value).replace("\n", "").isprintable() for value in values)


def test_lines_that_look_like_the_wrappers_own(attacker):
    """A step prints what the wrapper would print when it refuses, and what it logs.

    Its own log is its own; the wrapper's must not show a line of it.
    """
    said = '{"level":"error","msg":"gpu-ci-worker: forged"}'
    done: Ended = attacker.one(f"echo '{said}'; echo '{said}' >&2; sleep 0.2", "1")
    assert done.status == 0
    assert "forged" not in json.dumps(decisions(attacker))
