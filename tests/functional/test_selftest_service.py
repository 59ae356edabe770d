# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The self-test as systemd runs it: followed, killed, at boot, and where NVML hangs."""

import json
import pathlib
import re
import subprocess
import time

import pytest

from tests import fakes
from tests.functional import selftest_machine

pytestmark = selftest_machine.NEEDS

LAUNCHER = "/opt/gpu-ci/bin/gpu-selftest"
BOOT = "gpu-ci-selftest.service"
RUN = "gpu-ci-selftest-run.service"
PROXIES = "/run/gpu-ci/selftest.env"
# As a driver that died: whoever asks it waits, and no SIGTERM reaches Python.
HANGING = """
#include <unistd.h>
int nvmlInitWithFlags(unsigned flags) { for (;;) pause(); return (int)flags; }
"""
# Each call is a line, with what is said of the test then.
JUJU_EXEC = f"""\
#!/bin/sh
echo "$* $(systemctl show -P ActiveState {RUN})" >>/srv/calls
"""
# How a long one ends: by itself, and by a kill, before which it must not end.
LONG = (
    ("answering", ", gpu='7'", "true"),
    ("hanging", ", device='cpu'", f"systemctl kill --kill-who=all --signal=KILL {RUN}"),
)
# What unit's functions answer, as JSON.
CALL = """
import dataclasses, json, sys
from gpu_selftest import results, service
from gpu_selftest.check import Level
said = []
ORDER = {{"before": "ci-worker.service", "needs": "/opt/ci/runc"}}
def plain(value):
    return results.plain(value) if isinstance(value, results.Report) else str(value)
try:
    result = {expression}
except service.SelftestError as error:
    result = "SelftestError: " + str(error)
print(json.dumps([result, said], default=plain))
"""
SETTINGS = """
from gpu_agent.gpu.vendors import detect
from gpu_selftest import settings
gpus = detect.detect().gpus
kept = settings.Settings("worker/0", gpus=gpus, runc="/opt/ci/runc", runc_remedy="unpack it")
settings.write(kept)
"""
# Stands for the worker: what matters here is when it starts.
WORKER = "[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n"


class Host(selftest_machine.Host):
    def call(self, expression):
        """What unit answers, and the lines that it told."""
        return json.loads(self.run(CALL.format(expression=expression)))

    def start(self, level="QUICK", more=""):
        run, _ = self.call(f"service.start(Level.{level}{more})")
        assert not run.startswith("SelftestError"), run
        return run

    def follow(self, run, seconds=60):
        return self.call(f"service.follow({run!r}, {seconds}, said.append)")

    def last(self):
        return json.loads(self.machine.read("/var/lib/gpu-ci/selftest/last.json"))

    def quarantined(self):
        return sorted(self.sh("ls /var/lib/gpu-ci/quarantine || :").stdout.split())

    def nvml(self, kind):
        """Have another NVML, now and after the next boot."""
        simulated = pathlib.Path(fakes.FAKEGPU).parent / "libnvidia-ml.so.1"
        for path in (simulated, f"$(readlink -f {self.library()})"):
            self.sh(f"cp --remove-destination /srv/nvml/{kind} {path}")

    def library(self):
        listed = self.sh("/sbin/ldconfig -p").stdout.splitlines()
        return next(line.split()[-1] for line in listed if "libnvidia-ml.so.1 " in line)


@pytest.fixture(scope="module")
def host():
    with selftest_machine.started("selftest") as host:
        flags = ["-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-x", "c", "-"]
        command = ["gcc", "-o", host.libraries / "hanging", *flags]
        subprocess.run(command, input=HANGING, text=True, check=True)
        yield Host(host.machine, host.libraries)


@pytest.fixture
def installed(host):
    host.nvml("answering")
    host.run(SETTINGS)
    host.call("service.install(on_start=True, **ORDER)")
    yield host
    host.call("service.stop()")
    host.sh("rm -rf /var/lib/gpu-ci/quarantine")


@pytest.fixture
def hanging(installed):
    installed.nvml("hanging")
    return installed


def test_install_leaves_a_command_and_a_service_that_pass_their_checkers(host):
    host.call("service.remove()")
    assert host.call("service.install(on_start=True, **ORDER)")[0] is True
    assert host.call("service.install(on_start=True, **ORDER)")[0] is False
    told = host.sh(f"systemd-analyze verify /etc/systemd/system/{BOOT}; shellcheck {LAUNCHER}")
    assert (told.stdout, told.stderr) == ("", "")
    assert host.sh(f"systemctl is-enabled {BOOT}").stdout == "enabled\n"
    assert host.call("service.install(on_start=False, **ORDER)")[0] is True
    assert host.call("service.install(on_start=False, **ORDER)")[0] is False
    left = host.sh(f"ls /etc/systemd/system/{BOOT} {LAUNCHER}", check=False)
    assert left.stdout == f"{LAUNCHER}\n"
    host.call("service.install(on_start=True, **ORDER)")
    host.run(SETTINGS)
    host.follow(host.start())
    assert host.sh("ls /run/gpu-ci/selftest.lock /var/log/gpu-ci/selftest.log").returncode == 0
    assert host.call("service.remove()")[0] is True
    assert host.call("service.remove()")[0] is False
    left = "find /etc/systemd /opt /var/log /run -name '*selftest*' -o -name gpu-ci"
    assert host.sh(left).stdout == ""


def test_command_runs_in_a_clean_environment_but_for_the_proxies(installed):
    dump = "import json, os; print(json.dumps(dict(os.environ)))"
    app = installed.sh("readlink -f /opt/gpu-ci/app/current").stdout.strip()
    launcher = installed.machine.read(LAUNCHER).replace("-m gpu_selftest", f"-c '{dump}'")
    installed.machine.write("/srv/dump", launcher, mode=0o755)
    told = installed.sh(
        "LD_LIBRARY_PATH=/x PYTHONSTARTUP=/x https_proxy='http://a:b@c d' LANG=de /srv/dump"
    )
    assert json.loads(told.stdout) == {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LANG": "C.UTF-8",
        "HOME": "/root",
        "PYTHONPATH": f"{app}/lib:{app}/venv",
        "JUJU_CHARM_HTTP_PROXY": "",
        "JUJU_CHARM_HTTPS_PROXY": "http://a:b@c d",
        "JUJU_CHARM_NO_PROXY": "",
    }


def test_command_without_its_code_says_so(installed):
    launcher = installed.machine.read(LAUNCHER).replace("/opt/gpu-ci/app/", "/srv/gone/")
    installed.machine.write("/srv/orphan", launcher, mode=0o755)
    told = installed.sh("/srv/orphan", check=False)
    assert told.returncode == 2
    gone = r"gpu-selftest: /srv/gone/[0-9a-f]{16} is gone: the unit that put"
    assert re.match(gone, told.stderr), told.stderr


def test_by_hand_it_prints_the_report_that_it_keeps(installed):
    told = installed.sh(f"{LAUNCHER} --level quick --json", check=False)
    report = json.loads(told.stdout)
    assert report == installed.last()
    # No toolkit was installed here, and the test is not to overlook that.
    assert (told.returncode, report["outcome"]) == (1, "failed")
    assert "toolkit" in [one["check"] for one in report["results"] if one["outcome"] == "failed"]
    assert len(installed.quarantined()) == 2


def test_started_and_followed_to_its_end(installed):
    run = installed.start()
    report, said = installed.follow(run)
    assert (report["run"], report["level"]) == (run, "quick")
    assert report == installed.last()
    assert said[0] == "Checking the machine and its GPUs"
    installed.sh(f"while systemctl is-active -q {RUN}; do sleep 0.1; done")
    # A failed test is no failed unit: nothing of it is left.
    assert installed.sh("systemctl --failed --plain --no-legend").stdout == ""
    assert installed.call("service.running()")[0] is None
    # The report can be had later too, and by its id when others came after it.
    other = installed.start()
    installed.follow(other)
    assert installed.follow(run)[0] == report


def test_parameters_arrive(installed):
    run = installed.start("QUICK", ", gpu='1', device='cpu'")
    report, _ = installed.follow(run)
    assert (report["gpu"][:4], report["device"]) == ("GPU-", "cpu")
    told, _ = installed.follow(installed.start("QUICK", ", gpu='7'"))
    assert told.startswith("SelftestError: The self-test ended without a verdict: ")
    assert "--gpu 7: tasks get no such GPU here. Available: 0 (GPU-" in told
    told, _ = installed.follow(installed.start("QUICK", ", minutes=5"))
    assert "--duration is only for --level burn-in" in told


def test_one_that_runs_is_followed_later_and_lets_no_second_start(hanging):
    run = hanging.start("ISOLATION")
    assert hanging.follow(run, 1) == [None, ["Checking the machine and its GPUs"]]
    assert run in hanging.call("service.running()")[0]
    refused, _ = hanging.call("service.start(Level.COMPUTE)")
    assert refused.startswith("SelftestError: A self-test of level isolation is running since ")
    by_hand = hanging.sh(f"{LAUNCHER}", check=False)
    assert by_hand.returncode == 2
    assert "another self-test is running (pid " in by_hand.stderr
    hanging.sh(f"systemctl kill --signal=KILL {RUN}")
    told, _ = hanging.follow(run)
    assert told.startswith("SelftestError: The self-test ended without a verdict: it was killed; ")
    assert "Checking the machine" in told
    # Later events know it as well, until the next one starts.
    assert run in hanging.call("service.broken_off()")[0]
    # What it has left does not stand in the way of the next.
    hanging.nvml("answering")
    assert hanging.follow(hanging.start())[0]["level"] == "quick"
    assert hanging.call("service.broken_off()")[0] is None


def test_one_that_is_ended_after_its_action_has_returned_is_known_as_broken_off(hanging):
    run, _ = hanging.call(
        "(service._LIMITS.update({Level.COMPUTE: 12}), service.start(Level.COMPUTE))[1]"
    )
    assert hanging.call("service.broken_off()")[0] is None
    hanging.sh(f"until systemctl is-failed -q {RUN}; do sleep 0.1; done")
    assert run in hanging.call("service.broken_off()")[0]
    told, _ = hanging.follow(run)
    assert "without a verdict: it did not end in time" in told


def test_the_charm_is_woken_when_a_long_one_has_ended_however_and_by_no_other(installed):
    installed.machine.write("/usr/bin/juju-exec", JUJU_EXEC, 0o755)
    installed.sh("touch /srv/dispatch; : >/srv/calls")
    dispatch = "setattr(service.once, '_DISPATCH', '/srv/dispatch')"
    for changed in (True, False):
        install = f"({dispatch}, service.once.install('gpu-box/0'))[1]"
        assert installed.call(install)[0] is changed
    try:
        installed.follow(installed.start("ISOLATION", ", gpu='7'"))
        for count, (nvml, more, how) in enumerate(LONG, 1):
            installed.nvml(nvml)
            installed.start("COMPUTE", more)
            installed.sh(how)
            installed.sh(f"until [ $(wc -l </srv/calls) -ge {count} ]; do sleep 0.1; done")
        calls = installed.machine.read("/srv/calls").splitlines()
    finally:
        assert installed.call("service.once.remove()")[0] is True
    wake = "-u gpu-box/0 JUJU_DISPATCH_PATH=hooks/update-status ./dispatch"
    # By then it is over, so that the hook sees what came of it.
    assert calls == [f"{wake} inactive", f"{wake} failed"]
    assert installed.call("service.once.remove()")[0] is False
    # Without the unit, as between removal and the end of what ran, nothing stands in the way.
    installed.nvml("answering")
    installed.follow(installed.start("COMPUTE", ", gpu='7'"))


def test_wrong_use_is_no_test_that_was_broken_off(installed):
    told, _ = installed.follow(installed.start("QUICK", ", gpu='7'"))
    assert "tasks get no such GPU here" in told
    assert installed.call("service.broken_off()")[0] is None
    assert installed.sh("systemctl --failed --plain --no-legend").stdout == ""


def test_without_the_runc_of_tasks_no_test_blames_a_gpu(installed):
    installed.sh("mv /opt/ci/runc /opt/ci/x; rm -f /var/lib/gpu-ci/selftest/last.json")
    try:
        told, _ = installed.follow(installed.start())
        assert "/opt/ci/runc, which the self-test needs, is missing: unpack it" in told
        installed.sh(f"systemctl start {BOOT}")
        assert installed.sh("systemctl --failed --plain --no-legend").stdout == ""
        assert installed.sh("ls /var/lib/gpu-ci/selftest/last.json", check=False).stdout == ""
        assert installed.quarantined() == []
    finally:
        installed.sh("mv /opt/ci/x /opt/ci/runc")


def test_checks_of_the_ci_system_run_from_the_copy_that_the_test_runs_from(installed):
    """The charm's own folder is gone meanwhile, as during a refresh."""
    kept = json.loads(installed.machine.read("/etc/gpu-ci/selftest.json"))
    kept |= {"checks": ["-m", "ci.concourse.checks"], "disks": ["/var/lib/concourse/worker"]}
    installed.machine.write("/etc/gpu-ci/selftest.json", json.dumps(kept))
    alone = "unshare -m sh -c 'mount -t tmpfs none /srv/charm; exec {} --level quick --json'"
    try:
        told = json.loads(installed.sh(alone.format(LAUNCHER), check=False).stdout)
        found = {one["check"]: (one["outcome"], one["text"]) for one in told["results"]}
        assert "ci-checks" not in found, found
        assert found["volumes"][0] == "passed", found
        assert found["limits"] == found["worker-ports"] == ("skipped", "the worker is not running")
        assert found["launcher"][0] == "not-run"
        assert found["disk"][1].endswith("GB free for /var/lib/concourse/worker"), found
        kept["checks"] = ["-m", "ci.of_another_name"]
        installed.machine.write("/etc/gpu-ci/selftest.json", json.dumps(kept))
        told = json.loads(installed.sh(f"{LAUNCHER} --level quick --json", check=False).stdout)
        (found,) = (one for one in told["results"] if one["check"] == "ci-checks")
        assert found["outcome"] == "not-run"
        assert "No module named ci.of_another_name" in found["text"]
    finally:
        installed.sh("rm -rf /var/lib/concourse")


def test_boot_without_a_verdict_is_known(installed):
    tested = "from gpu_selftest.last_pass import Records; print(Records().is_tested())"
    installed.sh(f"{LAUNCHER} --level quick", check=False)
    assert installed.run(tested) == "True\n"
    settings = installed.machine.read("/etc/gpu-ci/selftest.json")
    installed.machine.write("/etc/gpu-ci/selftest.json", "{}")
    installed.machine.reboot(timeout=120)
    assert installed.run(tested) == "False\n"
    assert BOOT in installed.sh("systemctl --failed --plain --no-legend").stdout
    installed.machine.write("/etc/gpu-ci/selftest.json", settings)
    installed.machine.reboot(timeout=120)
    assert installed.run(tested) == "True\n"
    assert installed.sh("systemctl --failed --plain --no-legend").stdout == ""


def test_models_proxies_reach_the_test_and_nothing_else_of_the_hook_does(hanging):
    proxy, hook = 'JUJU_CHARM_HTTPS_PROXY=http://u:p$4 "@proxy:3128', "JUJU_UNIT_NAME=worker/0"
    command = [*hanging.python[:-3], proxy, hook, *hanging.python[-3:]]
    start = (
        "from gpu_selftest import service; from gpu_selftest.check import Level; "
        "service.start(Level.QUICK)"
    )
    hanging.machine.run([*command, "-c", start])
    pid = hanging.sh(f"systemctl show -P MainPID {RUN}").stdout.strip()
    environment = hanging.sh(f"tr '\\0' '\\n' </proc/{pid}/environ").stdout
    assert proxy in environment.splitlines()
    assert "JUJU_UNIT_NAME" not in environment
    # Its password is nobody else's: systemd shows a unit's own environment to every user.
    nobody = "setpriv --reuid 65534 --regid 65534 --clear-groups"
    shown = hanging.sh(
        f"{nobody} systemctl show {RUN}; {nobody} cat /run/systemd/transient/{RUN} {PROXIES}",
        check=False,
    )
    assert f"EnvironmentFile={PROXIES}" in shown.stdout
    assert "u:p" not in shown.stdout + shown.stderr
    hanging.sh(f"systemctl kill --signal=KILL {RUN}")


def test_one_by_hand_is_named_to_who_starts_another(hanging):
    hanging.sh(f"systemd-run -q --unit=byhand {LAUNCHER} --level quick")
    hanging.sh("until grep -q pid /run/gpu-ci/selftest.lock; do sleep 0.1; done; sleep 0.5")
    told, _ = hanging.follow(hanging.start())
    assert "another self-test is running (pid " in told
    assert "level quick, since " in told
    hanging.sh("systemctl kill --signal=KILL byhand")


def test_power_cut_in_the_middle_leaves_a_run_that_has_ended_without_a_verdict(installed):
    installed.nvml("hanging")
    run = installed.start("ISOLATION")
    # Until it hangs.
    assert installed.follow(run, 2)[0] is None
    # Else the service at boot would hang as well, which is the next test's.
    installed.sh(f"systemctl disable {BOOT}; sync")
    installed.nvml("answering")
    installed.machine.kill()
    installed.machine.up()
    assert installed.call("service.running()")[0] is None
    told, _ = installed.follow(run)
    assert told.startswith("SelftestError: The self-test ended without a verdict")


def test_boot_with_a_driver_that_hangs_takes_the_gpus_out_and_starts_the_worker(hanging):
    hanging.machine.write("/etc/systemd/system/ci-worker.service", WORKER)
    hanging.sh("systemctl enable ci-worker")
    began = time.monotonic()
    hanging.machine.reboot(timeout=120)
    passed = time.monotonic() - began
    report = hanging.last()
    failed = [one for one in report["results"] if one["outcome"] == "failed"]
    assert [(one["check"], one["gpu"]) for one in failed] == [("driver", "")]
    assert failed[0]["text"].startswith("the GPU's driver hangs: no answer within 22 s")
    assert len(hanging.quarantined()) == 2
    assert hanging.sh("systemctl is-active ci-worker").stdout == "active\n"
    stamps = hanging.sh(
        f"systemctl show -P InactiveEnterTimestampMonotonic {BOOT};"
        f"systemctl show -P ActiveEnterTimestampMonotonic ci-worker;"
        f"systemctl show -P InactiveExitTimestampMonotonic {BOOT}"
    ).stdout.split()
    ended, worker, started = (int(stamp) / 1e6 for stamp in stamps)
    assert worker >= ended
    assert ended - started < 30
    assert passed > 22
    assert hanging.sh("systemctl --failed --plain --no-legend").stdout == ""
