# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Each refusal names the kind of the request: a gpu-run command is not called a task."""

import os
import signal
import types

import pytest

from gpu_agent import paths as installed
from gpu_agent.gpu_run import __main__ as service
from gpu_agent.gpu_run.request import Request
from gpu_runtime import lease_manager as broker
from gpu_runtime import policy, rootfs, signals
from gpu_runtime import queue_messages as line
from gpu_runtime import task_call as wrapper
from gpu_runtime.environment import Variables
from gpu_runtime.grant import Grant
from gpu_runtime.lease_table import CONTAINER, JOB, NOUNS, STEP, Holder, Table, Waiter
from gpu_runtime.policy import Policy
from gpu_runtime.refusal import Refused, failed
from gpu_runtime.unavailable import CORDONED, Unavailable
from tests.unit.grants import AMD_GPUS, NVIDIA, content, in_use

IDS = [device.id for device in NVIDIA.devices]
ASKERS = pytest.mark.parametrize("kind", [CONTAINER, JOB])


def said(work, *arguments):
    with pytest.raises(Refused) as refused:
        work(*arguments)
    return str(refused.value)


def held(name, *gpus):
    """A table with one holder."""
    found = Table({})
    found.holders[name] = Holder("/", [*gpus], [], exclusive=True, since=1.0)
    return found


def is_for(kind, text):
    """Whether it is for this kind: a CI task may be named only as a holder."""
    return NOUNS[kind] in text and "task" not in text.replace("CI task 4f0c", "")


@ASKERS
def test_a_node_that_is_missing(kind):
    nodes = [{**AMD_GPUS[0], "nodes": ["/dev/no-such-node"]}]
    amd = Policy(content(vendor="amd", nvidia_runtime="", gpus=nodes))
    text = said(Grant, amd, amd.devices, kind)
    assert text.startswith(f"this worker could not give this {NOUNS[kind]} its GPU: [Errno 2] ")
    assert is_for(kind, text)
    assert "; rerun the task then" in said(Grant, amd, amd.devices)


@ASKERS
def test_too_few_and_none_of_that_name(kind):
    out = {IDS[0]: Unavailable(CORDONED, "operator", "swapping the fan")}
    for text in (
        str(line.too_few(kind, NVIDIA, {}, 9)),
        str(line.too_few(kind, NVIDIA, out, 2)),
        str(line.too_few(kind, NVIDIA, dict.fromkeys(IDS, in_use("pid 1 (x)")), 1)),
        str(line.not_here(kind, NVIDIA, {}, ["GPU-x"])),
    ):
        assert is_for(kind, text), text
    named = line.not_here(kind, NVIDIA, out, IDS[:1])
    assert named.code == "gpu-unavailable"
    why = "cordoned by the operator: swapping the fan"
    assert str(named).startswith(f"GPU {IDS[0]} is {why}. Available: GPU 1 (")


def test_who_has_what_it_waited_for():
    """Whoever runs pipelines has `fly containers`; all others read whose it is in words."""
    leases = held("4f0c", IDS[0])
    wish = Waiter("me", (1, 1), 1, 0)
    for kind in (CONTAINER, JOB):
        text = str(line.expired(kind, NVIDIA, leases, NVIDIA.devices, wish, 721.0))
        assert "In use: GPU 0 by CI task 4f0c for 12 min. Try again later" in text
    text = str(line.expired(STEP, NVIDIA, leases, NVIDIA.devices, wish, 721.0))
    assert "by container 4f0c for 12 min (see fly containers). Rerun the job" in text


@ASKERS
def test_what_it_has_already_and_may_have_no_more(kind):
    host = types.SimpleNamespace(
        alive=lambda _: True, in_use=lambda *_: True, is_gone=lambda *_: False, looked={}
    )
    request = broker.Request("me", "/", "")
    request.kind = kind
    wish = Waiter("me", (1, 1), 1, 0)
    assert is_for(kind, said(broker._keep, held("me", "GPU-gone"), host, NVIDIA, wish, request))


@ASKERS
def test_a_policy_that_can_not_be_read(kind, tmp_path, monkeypatch):
    path = tmp_path / "policy.json"
    path.write_text("{")
    text = said(policy.read, str(path), NOUNS[kind])
    assert text.startswith(f"GPU policy file {path} is unreadable (")
    monkeypatch.setattr(installed, "POLICY", path)
    asker = service.Run(types.SimpleNamespace(user="alice"), Request())
    again = said(lambda: next(asker._policies()))
    assert again.endswith(" within 5 minutes; run the command again then")
    signal.alarm(0)  # What ends a process of gpu-run that hangs.


def test_what_stands_in_a_containers_way(monkeypatch, tmp_path):
    container = NOUNS[CONTAINER]
    # What is for the runtime that takes this process's place would stay with the tests.
    monkeypatch.setattr(signals, "as_a_child_expects", lambda: None)
    (tmp_path / "root/etc").mkdir(parents=True)
    os.mkfifo(tmp_path / "root/etc/ld.so.conf")
    config = {"root": {"path": "root"}}
    for text in (
        said(rootfs.check_files, config, str(tmp_path), container),
        said(wrapper.become, "/no/such/runtime", [], {}, container),
        said(Variables.apart(["CUDA_VISIBLE_DEVICES=1"], []).check_narrowing, 1, IDS[:1]),
        failed(container),
    ):
        assert is_for(CONTAINER, text), text


def test_a_refusal_is_one_printable_line_and_its_remedy_stands_last():
    text = f"etc/ld.so.conf.d/\x1b[2J\n{'x' * 5000}\u202e: ask its operator"
    said = str(Refused("worker-fault", text))
    assert said.isprintable()
    assert len(said) < 1300
    assert said.startswith("etc/ld.so.conf.d/?[2J?xxx")
    assert said.endswith("?: ask its operator")
