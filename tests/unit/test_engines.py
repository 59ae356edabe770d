# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Our runtime in podman's and Docker's configuration, and those as they were afterwards."""

import json
import os
import pathlib
import shutil
import subprocess

import pytest
from ops import testing

from gpu_agent.engines import front
from gpu_agent.engines import registry as registration
from gpu_agent.engines.docker import containerd_unit as docker_unit
from gpu_agent.engines.docker import daemon_json as docker
from gpu_agent.engines.docker import engine as docker_engine
from gpu_agent.engines.docker import json_edit as json_text
from gpu_agent.engines.engine import Engine, EngineError, EnginesPlan
from gpu_agent.engines.podman import config as podman
from gpu_agent.model.keep import Keep
from machine import files, systemd
from machine import process as machine_process
from machine.process import Completed
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


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A machine's files in a folder, with a Docker that takes every file."""
    monkeypatch.setattr(docker, "CONFIG", tmp_path / "etc/docker/daemon.json")
    monkeypatch.setattr(podman, "DROP_IN", tmp_path / "conf/containers.conf.d/gpu-ci.conf")
    monkeypatch.setattr(podman, "_FOLDER", tmp_path / "conf/containers.conf.d")
    monkeypatch.setattr(podman, "_MAIN", tmp_path / "conf/containers.conf")
    (tmp_path / "etc").mkdir()
    monkeypatch.setattr(docker, "program", lambda name="dockerd": f"/usr/bin/{name}")
    monkeypatch.setattr(docker, "_NOTE", tmp_path / "gpu-ci/daemon.json")
    said = {"code": 0, "text": "", "runs": True, "calls": []}

    def run(argv, **_):
        """Docker's answers: it knows of a runtime what its file says outright, as on SIGHUP."""
        said["calls"].append(" ".join(argv[:2]))
        if "--validate" in argv:
            return Completed(said["code"], said["text"], "")
        if said["text"] != "deaf" and docker.CONFIG.exists():
            found = json.loads(docker.CONFIG.read_text())
            said.update(
                {key: found[key] for key in ("runtimes", "default-runtime") if key in found}
            )
        runtimes, default = said.get("runtimes", {}), said.get("default-runtime", "runc")
        return Completed(0, f"{json.dumps(runtimes)} {default}\n", "")

    monkeypatch.setattr(machine_process, "run", run)
    monkeypatch.setattr(systemd, "reload", lambda _: said["runs"])
    monkeypatch.setattr(docker, "_PATIENCE", 0)
    return said


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("default", [False, True])
def test_another_key_and_back(text, default):
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
        assert back == (docker._MADE if text is None else text)
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
def test_what_is_there_is_never_overwritten(site, text, default, said):
    docker.CONFIG.parent.mkdir()
    docker.CONFIG.write_text(text)
    with pytest.raises(EngineError, match=said):
        docker.ensure(default=default)
    assert docker.CONFIG.read_text() == text
    assert not docker.remove()
    assert docker.CONFIG.read_text() == text


def test_docker_has_it_and_has_it_no_more(site):
    assert docker.ensure(default=True)
    assert json.loads(docker.CONFIG.read_text()) == {
        "runtimes": {"gpu-ci": OURS}, "default-runtime": "gpu-ci"
    }  # fmt: skip
    assert site["calls"] == ["/usr/bin/dockerd --validate", "/usr/bin/docker info"]
    assert not docker.ensure(default=True)
    assert docker.ensure(default=False)
    assert site["default-runtime"] == "runc"
    assert docker.remove()
    assert site["runtimes"] == {}, "a daemon that runs would go on with what is no more"
    assert not docker.CONFIG.parent.exists()
    assert not docker.remove()


def kill(change, monkeypatch, **words):
    """Have a hook killed between the file and the signal by which Docker reads it."""

    def killed(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(systemd, "reload", killed)
        with pytest.raises(KeyboardInterrupt):
            change(**words)


def test_a_hook_killed_while_docker_reads_leaves_nothing(site, monkeypatch):
    docker.CONFIG.parent.mkdir()
    docker.CONFIG.write_text('{"debug": true}')
    docker.ensure(default=True)
    kill(docker.remove, monkeypatch)
    assert docker.CONFIG.read_text() != '{"debug": true}'
    assert docker.remove()
    assert docker.CONFIG.read_text() == '{"debug": true}'
    assert not docker._NOTE.exists()


def test_what_a_person_has_written_after_a_killed_hook_stays(site, monkeypatch):
    docker.CONFIG.parent.mkdir()
    docker.CONFIG.write_text("{}")
    kill(docker.ensure, monkeypatch, default=False)
    docker.CONFIG.write_text('{"debug": true}')
    docker.remove()
    assert docker.CONFIG.read_text() == '{"debug": true}'


@pytest.mark.parametrize("default", [False, True])
def test_docker_is_told_what_a_killed_hook_has_not_told_it(site, monkeypatch, default):
    kill(docker.ensure, monkeypatch, default=default)
    assert "runtimes" not in site
    assert docker.ensure(default=default)
    assert site["runtimes"] == {"gpu-ci": OURS}
    assert not docker.ensure(default=default)


def test_a_link_to_the_file_its_mode_its_group_and_odd_bytes_stay(site, tmp_path):
    docker.CONFIG.parent.mkdir()
    place = tmp_path / "kept/docker.json"
    place.parent.mkdir()
    place.write_bytes(b'{"labels": ["\xe9"]}')
    place.chmod(0o640)
    os.chown(place, -1, 4711)
    docker.CONFIG.symlink_to(place)
    for change in (lambda: docker.ensure(default=False), docker.remove):
        assert change()
        assert docker.CONFIG.readlink() == place
        found = place.stat()
        assert (found.st_mode & 0o777, found.st_gid) == (0o640, 4711)
    assert place.read_bytes() == b'{"labels": ["\xe9"]}'
    assert [one.name for one in place.parent.iterdir()] == ["docker.json"]


def test_a_folder_in_its_place_is_said_and_is_nothing_of_ours(site):
    docker.CONFIG.mkdir(parents=True)
    with pytest.raises(EngineError, match="is a folder: remove it"):
        docker.ensure(default=False)
    assert not docker.remove()


@pytest.mark.parametrize(("code", "text"), [(1, "merge: unknown keys"), (0, "deaf")])
def test_a_docker_that_refuses_has_its_file_back(site, code, text):
    """Whether it says so before, or goes on without our runtime."""
    docker.CONFIG.parent.mkdir()
    docker.CONFIG.write_text('{"debug": true}')
    site.update(code=code, text=text)
    with pytest.raises(EngineError):
        docker.ensure(default=False)
    assert docker.CONFIG.read_text() == '{"debug": true}'
    assert [path.name for path in docker.CONFIG.parent.iterdir()] == ["daemon.json"]


def test_an_old_docker_can_not_look_before(site):
    site.update(code=125, text="unknown flag: --validate")
    assert docker.ensure(default=False)


def test_without_docker_the_operator_reads_what_to_do(site, monkeypatch):
    monkeypatch.setattr(docker, "program", lambda _name="dockerd": "")
    with pytest.raises(EngineError, match=r"apt-get install docker\.io"):
        docker.ensure(default=False)


def test_podman_has_a_file_of_ours(site):
    assert podman.ensure(default=True)
    assert podman.DROP_IN.read_text().splitlines()[1:] == [
        "[engine]", 'runtime = "gpu-ci"', "[engine.runtimes]",
        'gpu-ci = ["/opt/gpu-ci/engines/gpu-ci"]',
    ]  # fmt: skip
    assert not podman.ensure(default=True)
    assert podman.ensure(default=False)
    assert "[engine]\n" not in podman.DROP_IN.read_text()
    assert podman.remove()
    assert not podman.DROP_IN.parent.parent.exists()
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
def test_podmans_operator_comes_first(site, text, said, name):
    path = podman._MAIN.parent / name
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(EngineError, match=said):
        podman.ensure(default=True)
    assert path.read_text() == text
    assert not podman.DROP_IN.exists()


@pytest.fixture
def calls(monkeypatch):
    """The calls of the front and of engines, in their order."""
    calls = []
    monkeypatch.setattr(front, "apply", note(calls, "front.apply"))
    monkeypatch.setattr(front, "remove", note(calls, "front.remove"))
    monkeypatch.setattr(front, "FRONT", pathlib.Path("/nowhere"))
    return calls


def note(calls, name):
    return lambda **words: bool(calls.append((name, *words.values())))


def stubs(calls, *, in_use=False):
    return tuple(
        Engine(
            name,
            note(calls, f"{name}.ensure"),
            note(calls, f"{name}.remove"),
            lambda runtime: in_use,
        )
        for name in ("one", "two")
    )


def test_only_named_engines_know_it(calls):
    engines = stubs(calls)
    registration.ensure(EnginesPlan(("one",), ("one",), runc="/r"), engines)
    registration.ensure(EnginesPlan(("two",), nvidia=False), engines)
    assert calls == [
        ("front.apply", True, "/r"), ("one.ensure", True), ("two.remove",),
        ("front.apply", False, ""), ("one.remove",), ("two.ensure", False),
    ]  # fmt: skip
    calls.clear()
    registration.ensure(Keep.AS_IS, engines)
    assert calls == []
    registration.ensure(None, engines)
    # The runtime goes when nobody knows it any more.
    assert calls == [("one.remove",), ("two.remove",), ("front.remove",)]


def test_docker_has_its_own_containerd_before_and_after_it_has_the_runtime(monkeypatch):
    calls = []
    for name, room in (("daemon", docker), ("unit", docker_unit)):
        for verb in ("ensure", "remove"):
            monkeypatch.setattr(room, verb, note(calls, f"{name}.{verb}"))
    docker_engine.ENGINE.ensure(default=True)
    docker_engine.ENGINE.remove()
    assert calls == [
        ("unit.ensure",), ("daemon.ensure", True), ("daemon.remove",), ("unit.remove",)
    ]  # fmt: skip


def test_the_runtime_is_not_away_for_a_moment_while_its_containers_run(
    calls, monkeypatch, tmp_path
):
    monkeypatch.setattr(front, "FRONT", tmp_path / "gpu-ci")
    front.FRONT.write_text("#!/bin/sh\n# A comment\n\nrunc='/opt/x/bin/runc'\nexec x\n")
    monkeypatch.setattr(front, "CONFIG", tmp_path / "none")
    absent = files.ensure_absent
    monkeypatch.setattr(files, "ensure_absent", lambda path: absent(path) and front.FRONT.stat())
    engines = stubs(calls, in_use=True)
    assert registration.remove(engines)
    assert str(front.FRONT.readlink()) == "/opt/x/bin/runc"
    assert not registration.remove(engines)


def is_in_use():
    """Whether a container of any real engine has the runtime that front.FRONT names."""
    return any(engine.is_in_use(str(front.FRONT)) for engine in registration.ALL)


def in_use_beside(program, *words, **more):
    """Whether the runtime counts as in use beside such a process."""
    argv = ["sh", "-c", "echo; read line", *words]
    with subprocess.Popen(argv, executable=program, stdin=-1, stdout=-1, **more) as process:
        # Its words can be read a moment after its start alone.
        assert process.stdout.readline() == b"\n"
        return is_in_use()


@pytest.mark.skipif(os.geteuid() != 0, reason="the package's program is root's")
def test_a_container_of_anybodys_podman_is_known_by_its_monitor(monkeypatch, tmp_path):
    monkeypatch.setattr(front, "FRONT", tmp_path / "gpu-ci")
    ours = str(front.FRONT)
    assert not is_in_use()
    conmon = shutil.copy("/bin/sh", tmp_path / "conmon")
    assert in_use_beside(conmon, "conmon", "-r", ours)
    assert in_use_beside(conmon, "conmon", "--runtime", ours)
    assert not is_in_use()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")
def test_a_monitor_in_a_system_container_keeps_no_runtime_of_the_machine_around(
    monkeypatch, tmp_path
):
    """The same path is another file there; a person's own podman sees the machine's."""
    (tmp_path / "engines").mkdir()
    monkeypatch.setattr(front, "FRONT", tmp_path / "engines/gpu-ci")
    conmon = shutil.copy("/bin/sh", tmp_path / "conmon")
    words = [conmon, "-c", "echo; read line", "conmon", "-r", str(front.FRONT)]
    for mount, expected in ((f"mount -t tmpfs tmpfs {tmp_path / 'engines'}", False), (":", True)):
        argv = ["unshare", "--mount", "sh", "-ec", f'{mount}; exec "$@"', "sh", *words]
        with subprocess.Popen(argv, stdin=-1, stdout=-1) as process:
            assert process.stdout.readline() == b"\n"
            assert is_in_use() is expected


@pytest.mark.skipif(os.geteuid() != 0, reason="it is another user's program")
def test_who_only_calls_himself_a_monitor_keeps_no_runtime(monkeypatch, tmp_path):
    monkeypatch.setattr(front, "FRONT", tmp_path / "gpu-ci")
    ours = str(front.FRONT)
    assert not in_use_beside("/bin/sh", "conmon", "-r", ours)
    conmon = shutil.copy("/bin/sh", tmp_path / "conmon")
    assert not in_use_beside(conmon, "conmon", f"-r{ours}")
    assert not in_use_beside(conmon, "conmon", "-r", f"{ours}-other")
    os.chown(conmon, 65534, 65534)
    assert not in_use_beside(conmon, "conmon", "-r", ours)


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
