# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Our runtime in podman's and Docker's configuration, and those as they were afterwards."""

import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import types

import pytest
from ops import testing

from ci.concourse import agent_view
from gpu_agent.engines import registry as registration
from gpu_agent.engines.docker import json_edit as json_text
from gpu_agent.engines.docker.daemon_json import _MADE, DaemonJson
from gpu_agent.engines.docker.engine import Docker
from gpu_agent.engines.engine import Engine, EngineError, EnginesPlan
from gpu_agent.engines.front import Front
from gpu_agent.engines.podman.config import Config
from gpu_agent.model.keep import Keep
from machine.process import Completed
from plan.agent_view import AgentView
from tests.killing import killed_at
from tests.unit.situations import gpu_unit, make_plan, state, tsa

OURS = {"path": "/opt/gpu-ci/engines/gpu-ci"}
# How people set such files out.
TEXTS = (
    None,
    "{}",
    "{}\n",
    "{ }\n",
    '{"log-driver": "journald"}',
    '{\n  "log-driver": "journald",\n  "dns":   [ "10.0.0.2" ]\n}\n',
    '{\n\t"dns": [],\n\n\t"runtimes": {\n\t\t"nvidia": {"path": "x", "args": []}\n\t}\n}\n',
    '{"runtimes": {"a": {"path": "a"}, "b": {"path": "}"}}, "debug": true}',
    '{\n    "debug": true ,\n    "default-runtime":"gpu-ci-not",\n    "\\u0072untimes" : { }\n}',
    '{\r\n "debug": true,\r\n "experimental": false\r\n}\r\n',
)


class Daemon:
    """Docker's answers: it knows of a runtime what its file says outright, as on SIGHUP."""

    def __init__(self, config):
        self.config = config
        self.code, self.text, self.calls = 0, "", []
        self.told = {}

    def run(self, argv, **_):
        self.calls.append(" ".join(argv[:2]))
        if "--validate" in argv:
            return Completed(self.code, self.text, "")
        if self.text != "deaf" and self.config.exists():
            found = json.loads(self.config.read_text())
            self.told |= {
                key: found[key] for key in ("runtimes", "default-runtime") if key in found
            }
        runtimes, default = self.told.get("runtimes", {}), self.told.get("default-runtime", "runc")
        return Completed(0, f"{json.dumps(runtimes)} {default}\n", "")


@pytest.fixture
def podman(tmp_path):
    return Config(tmp_path / "conf")


@pytest.fixture
def site(tmp_path):
    """A Docker that takes every file."""
    (tmp_path / "etc").mkdir()
    return Daemon(tmp_path / "etc/docker/daemon.json")


@pytest.fixture
def docker(site, tmp_path):
    note = tmp_path / "gpu-ci/daemon.json"
    return DaemonJson(site.config, note, "/usr/bin/{}".format, site.run, lambda _: True, 0)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("default", [False, True])
def test_another_key_and_back(docker, text, default):
    """Every letter of others stays, and in the end the file is as it was."""
    if default and "gpu-ci-not" in (text or ""):
        return
    new = docker.merged(text, default=default)
    before, after = json.loads(text or "{}"), json.loads(new)
    assert after["runtimes"].pop("gpu-ci") == OURS
    assert after.pop("runtimes") == before.pop("runtimes", {})
    assert (after.pop("default-runtime", "") == "gpu-ci") is default or not default
    before.pop("default-runtime", None)
    assert after == before
    assert docker.merged(new, default=default) == new
    back = docker.without(new)
    if "{ }" in (text or "") and "untimes" in text:
        # Whether somebody had a table without a runtime can't be told, and means nothing.
        assert "gpu-ci/" not in back
    else:
        assert back == (_MADE if text is None else text)
    assert (
        docker.merged(docker.merged(text, default=True), default=False)
        == (docker.merged(text, default=False))
        if "gpu-ci-not" not in (text or "")
        else True
    )


@pytest.mark.parametrize(
    ("text", "default", "said"),
    [
        ("[]", False, "is not a JSON object"),
        ('{"debug": true', False, "is not JSON"),
        ("{} // mine", False, "is not JSON"),
        ('{"runtimes": {}, "runtimes": {"x": {}}}', False, "it has 'runtimes' twice"),
        (
            '{"runtimes": {"gpu-ci": {"path": "/other"}}}',
            False,
            "has another runtime named gpu-ci",
        ),
        ('{"runtimes": []}', False, "has another runtime named gpu-ci"),
        ('{"default-runtime": "nvidia"}', True, "default runtime to nvidia: remove that"),
        ('{"default-runtime": "runc"}', True, "default runtime to runc: remove that"),
    ],
)
def test_what_is_there_is_never_overwritten(docker, text, default, said):
    docker.config.parent.mkdir()
    docker.config.write_text(text)
    with pytest.raises(EngineError, match=said):
        docker.ensure(default=default)
    assert docker.config.read_text() == text
    assert not docker.remove()
    assert docker.config.read_text() == text


def test_docker_has_it_and_has_it_no_more(site, docker):
    assert docker.ensure(default=True)
    assert json.loads(docker.config.read_text()) == {
        "runtimes": {"gpu-ci": OURS}, "default-runtime": "gpu-ci"
    }  # fmt: skip
    assert site.calls == ["/usr/bin/dockerd --validate", "/usr/bin/docker info"]
    assert not docker.ensure(default=True)
    assert docker.ensure(default=False)
    assert site.told["default-runtime"] == "runc"
    assert docker.remove()
    assert site.told["runtimes"] == {}, "a daemon that runs would go on with what is no more"
    assert not docker.config.parent.exists()
    assert not docker.remove()


@pytest.fixture
def killed(docker):
    """A hook that is killed between the file and the signal by which Docker reads it."""

    def reload(_):
        raise KeyboardInterrupt

    return dataclasses.replace(docker, reload=reload)


def test_a_hook_killed_while_docker_reads_leaves_nothing(docker, killed):
    docker.config.parent.mkdir()
    docker.config.write_text('{"debug": true}')
    docker.ensure(default=True)
    with pytest.raises(KeyboardInterrupt):
        killed.remove()
    assert docker.config.read_text() != '{"debug": true}'
    assert docker.remove()
    assert docker.config.read_text() == '{"debug": true}'
    assert not docker.note.exists()


def test_what_a_person_has_written_after_a_killed_hook_stays(docker, killed):
    docker.config.parent.mkdir()
    docker.config.write_text("{}")
    with pytest.raises(KeyboardInterrupt):
        killed.ensure(default=False)
    docker.config.write_text('{"debug": true}')
    docker.remove()
    assert docker.config.read_text() == '{"debug": true}'


@pytest.mark.parametrize("default", [False, True])
def test_docker_is_told_what_a_killed_hook_has_not_told_it(site, docker, killed, default):
    with pytest.raises(KeyboardInterrupt):
        killed.ensure(default=default)
    assert "runtimes" not in site.told
    assert docker.ensure(default=default)
    assert site.told["runtimes"] == {"gpu-ci": OURS}
    assert not docker.ensure(default=default)


def test_a_link_to_the_file_its_mode_its_group_and_odd_bytes_stay(docker, tmp_path):
    docker.config.parent.mkdir()
    place = tmp_path / "kept/docker.json"
    place.parent.mkdir()
    place.write_bytes(b'{"labels": ["\xe9"]}')
    place.chmod(0o640)
    os.chown(place, -1, 4711)
    docker.config.symlink_to(place)
    for change in (lambda: docker.ensure(default=False), docker.remove):
        assert change()
        assert docker.config.readlink() == place
        found = place.stat()
        assert (found.st_mode & 0o777, found.st_gid) == (0o640, 4711)
    assert place.read_bytes() == b'{"labels": ["\xe9"]}'
    assert [one.name for one in place.parent.iterdir()] == ["docker.json"]


def test_a_folder_in_its_place_is_said_and_is_nothing_of_ours(docker):
    docker.config.mkdir(parents=True)
    with pytest.raises(EngineError, match="is a folder: remove it"):
        docker.ensure(default=False)
    assert not docker.remove()


@pytest.mark.parametrize(("code", "text"), [(1, "merge: unknown keys"), (0, "deaf")])
def test_a_docker_that_refuses_has_its_file_back(site, docker, code, text):
    """Whether it says so before, or goes on without our runtime."""
    docker.config.parent.mkdir()
    docker.config.write_text('{"debug": true}')
    site.code, site.text = code, text
    with pytest.raises(EngineError):
        docker.ensure(default=False)
    assert docker.config.read_text() == '{"debug": true}'
    assert [path.name for path in docker.config.parent.iterdir()] == ["daemon.json"]


def test_an_old_docker_can_not_look_before(site, docker):
    site.code, site.text = 125, "unknown flag: --validate"
    assert docker.ensure(default=False)


def test_without_docker_the_operator_reads_what_to_do(docker):
    absent = dataclasses.replace(docker, program=lambda _: "")
    with pytest.raises(EngineError, match=r"apt-get install docker\.io"):
        absent.ensure(default=False)


def test_podman_has_a_file_of_ours(podman):
    assert podman.ensure(default=True)
    assert podman.drop_in.read_text().splitlines()[1:] == [
        "[engine]", 'runtime = "gpu-ci"', "[engine.runtimes]",
        'gpu-ci = ["/opt/gpu-ci/engines/gpu-ci"]',
    ]  # fmt: skip
    assert not podman.ensure(default=True)
    assert podman.ensure(default=False)
    assert "[engine]\n" not in podman.drop_in.read_text()
    assert podman.remove()
    assert not podman.drop_in.parent.parent.exists()
    assert not podman.remove()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[engine]\nruntime = "kata"\n', "default runtime to kata"),
        ('[engine.runtimes]\ngpu-ci = ["/other"]\n', "another runtime named gpu-ci"),
        ("[engine", "cannot be read"),
    ],
)
@pytest.mark.parametrize("name", ["containers.conf", "containers.conf.d/90-mine.conf"])
def test_podmans_operator_comes_first(podman, text, said, name):
    path = podman.folder / name
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(EngineError, match=said):
        podman.ensure(default=True)
    assert path.read_text() == text
    assert not podman.drop_in.exists()


@pytest.fixture
def calls():
    """The calls of the front and of engines, in their order."""
    return []


def note(calls, name):
    return lambda **words: bool(calls.append((name, *words.values())))


def stub_front(calls):
    return types.SimpleNamespace(
        path=pathlib.Path("/nowhere"),
        apply=note(calls, "front.apply"),
        remove=note(calls, "front.remove"),
    )


def stubs(calls, *, in_use=False):
    return tuple(
        Engine(
            name,
            note(calls, f"{name}.ensure"),
            note(calls, f"{name}.remove"),
            lambda runtime: in_use,
            note(calls, f"{name}.leave_socket"),
        )
        for name in ("one", "two")
    )


def test_only_named_engines_know_it(calls):
    given = stubs(calls), stub_front(calls)
    registration.ensure(EnginesPlan(("one",), ("one",), runc="/r"), *given)
    registration.ensure(EnginesPlan(("two",), nvidia=False), *given)
    assert calls == [
        ("front.apply", True, "/r"), ("one.ensure", True), ("two.remove",),
        ("front.apply", False, ""), ("one.remove",), ("two.ensure", False),
    ]  # fmt: skip
    calls.clear()
    registration.ensure(Keep.AS_IS, *given)
    assert calls == []
    registration.ensure(None, *given)
    # The runtime goes when nobody knows it any more.
    assert calls == [("one.remove",), ("two.remove",), ("front.remove",)]


def test_an_engine_leaves_the_socket_only_to_a_ci_system_that_needs_it(calls):
    given = stubs(calls), stub_front(calls)
    registration.ensure(EnginesPlan(("one",), socket_taken=True), *given)
    assert calls == [
        *(("front.apply", True, ""), ("one.leave_socket",), ("one.ensure", False)),
        ("two.remove",),
    ]
    calls.clear()
    # Without that CI system the engine keeps what it has until it is removed.
    registration.ensure(EnginesPlan(("one",)), *given)
    assert calls == [("front.apply", True, ""), ("one.ensure", False), ("two.remove",)]


def test_docker_has_a_containerd_until_after_it_has_the_runtime(calls, tmp_path):
    unit, file = (
        types.SimpleNamespace(
            ensure=note(calls, f"{name}.ensure"),
            remove=note(calls, f"{name}.remove"),
            program=lambda _: "/usr/sbin/dockerd",
        )
        for name in ("unit", "file")
    )
    docker = Docker(unit, file)
    docker.ensure(default=True)
    docker.leave_socket()
    docker.remove()
    assert calls == [
        ("file.ensure", True), ("unit.ensure",), ("file.remove",), ("unit.remove",)
    ]  # fmt: skip


def test_beside_concourse_docker_is_installed_without_the_containerd_of_its_package(calls):
    file = types.SimpleNamespace(program=lambda _: "")
    with pytest.raises(EngineError, match="sudo systemctl mask containerd; sudo apt-get install"):
        Docker(types.SimpleNamespace(), file).leave_socket()


def test_the_runtime_is_not_away_for_a_moment_while_its_containers_run(calls, tmp_path):
    front = Front(tmp_path / "gpu-ci", tmp_path / "config")
    front.config.mkdir()
    runc = tmp_path / "runc"
    runc.touch()
    front.path.write_text(f"#!/bin/sh\n# A comment\n\nrunc='{runc}'\nexec x\n")
    engines = stubs(calls, in_use=True)
    step = 1
    while killed_at(step, lambda: registration.remove(engines, front)):
        assert os.path.lexists(front.path)
        step += 1
    assert step > 2
    assert front.path.readlink() == runc
    assert not front.config.exists()
    assert not registration.remove(engines, front)


def is_in_use(runtime):
    """Whether a container of any real engine has the runtime at this path."""
    return any(engine.is_in_use(str(runtime)) for engine in registration.ALL)


def in_use_beside(runtime, program, *words, **more):
    """Whether the runtime at this path counts as in use beside such a process."""
    argv = ["sh", "-c", "echo; read line", *words]
    with subprocess.Popen(argv, executable=program, stdin=-1, stdout=-1, **more) as process:
        # Its words can be read a moment after its start alone.
        assert process.stdout.readline() == b"\n"
        return is_in_use(runtime)


@pytest.mark.skipif(os.geteuid() != 0, reason="the package's program is root's")
def test_a_container_of_anybodys_podman_is_known_by_its_monitor(tmp_path):
    ours = str(tmp_path / "gpu-ci")
    assert not is_in_use(ours)
    conmon = shutil.copy("/bin/sh", tmp_path / "conmon")
    assert in_use_beside(ours, conmon, "conmon", "-r", ours)
    assert in_use_beside(ours, conmon, "conmon", "--runtime", ours)
    assert not is_in_use(ours)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")
def test_a_monitor_in_a_system_container_keeps_no_runtime_of_the_machine_around(tmp_path):
    """The same path is another file there; a person's own podman sees the machine's."""
    (tmp_path / "engines").mkdir()
    ours = str(tmp_path / "engines/gpu-ci")
    conmon = shutil.copy("/bin/sh", tmp_path / "conmon")
    words = [conmon, "-c", "echo; read line", "conmon", "-r", ours]
    for mount, expected in ((f"mount -t tmpfs tmpfs {tmp_path / 'engines'}", False), (":", True)):
        argv = ["unshare", "--mount", "sh", "-ec", f'{mount}; exec "$@"', "sh", *words]
        with subprocess.Popen(argv, stdin=-1, stdout=-1) as process:
            assert process.stdout.readline() == b"\n"
            assert is_in_use(ours) is expected


@pytest.mark.skipif(os.geteuid() != 0, reason="it is another user's program")
def test_who_only_calls_himself_a_monitor_keeps_no_runtime(tmp_path):
    ours = str(tmp_path / "gpu-ci")
    assert not in_use_beside(ours, "/bin/sh", "conmon", "-r", ours)
    conmon = shutil.copy("/bin/sh", tmp_path / "conmon")
    assert not in_use_beside(ours, conmon, "conmon", f"-r{ours}")
    assert not in_use_beside(ours, conmon, "conmon", "-r", f"{ours}-other")
    os.chown(conmon, 65534, 65534)
    assert not in_use_beside(ours, conmon, "conmon", "-r", ours)


def test_what_is_planned():
    def planned(**options):
        return make_plan(gpu_unit(options)).engines

    assert planned() is None
    assert planned(**{"container-engines": "docker, podman"}) == EnginesPlan(("docker", "podman"))
    on = {"container-engines": "podman=default"}
    assert planned(**on) == EnginesPlan(("podman",), ("podman",))
    assert planned(**on, **{"enable-gpu": False}) is None
    assert planned(**{"container-engines": "lxd"}) is Keep.AS_IS
    one = {"container-engines": "podman, docker=default"}
    assert planned(**one) == EnginesPlan(("podman", "docker"), ("docker",))


def test_concourse_needs_containerds_socket_and_no_ci_system_does_not():
    for agent, taken in ((agent_view.make("worker", has_web=False), True), (AgentView(), False)):
        unit = gpu_unit({"container-engines": "docker"}, agent=agent)
        assert make_plan(unit).engines.socket_taken is taken


def test_members_are_told_as_json_tells_them():
    text = '{"a": {"b": "}"}, "c" : [1, "{"] }'
    assert [one.name for one in json_text.members(text)] == ["a", "c"]
    assert json_text.without_member(text, 0, "a") == '{"c" : [1, "{"] }'
    assert json_text.without_member(text, 0, "c") == '{"a": {"b": "}"} }'


def test_an_engine_that_can_not_have_it_stops_no_task(context, rooms):
    def refuse(_):
        raise EngineError("daemon.json is not JSON: repair it")

    rooms.hand_in(register_engines=refuse)
    on = {"enable_gpu": True, "container_engines": "docker"}
    after = context.run(context.on.config_changed(), state(relations=[tsa()], **on))
    assert after.unit_status == testing.BlockedStatus("daemon.json is not JSON: repair it")
    assert {"runtime.apply", "worker.apply"} <= set(rooms.calls)
