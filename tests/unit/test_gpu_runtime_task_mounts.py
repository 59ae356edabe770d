# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Folders of the host for tasks: who gets them, what is refused, and what no task can exchange."""

import json
import os
import stat

import pytest

from gpu_runtime import task_mounts as folders
from tests.unit.grants import golden
from tests.unit.refusals import refuses
from tests.unit.wrapper_rig import Rig

# Root's, and nobody else's to write to, on every machine.
SHARE = {"source": "/usr/share", "target": "/srv/data", "writable": False}
CACHE = {"source": "/usr/lib", "target": "/root/.cache/uv", "writable": True}
CLOSED = ["rbind", "rprivate", "nosuid", "rnosuid", "nodev", "rnodev"]
MOUNTS = [
    {
        "destination": "/srv/data",
        "type": "bind",
        "source": "/usr/share",
        "options": [*CLOSED, "ro", "rro"],
    },
    {
        "destination": "/root/.cache/uv",
        "type": "bind",
        "source": "/usr/lib",
        "options": [*CLOSED, "rw"],
    },
]


@pytest.fixture
def rig(tmp_path):
    return Rig(tmp_path)


def promise(rig, *given, **changes):
    content = {"version": 1, "folders": given, **changes}
    (rig.folder / "folders.json").write_text(json.dumps(content))


def mounts(rig):
    return json.loads(rig.config.read_text())["mounts"]


@pytest.mark.parametrize("env", ["GPU_COUNT=1", "GPU_COUNT=0"])
def test_a_task_gets_them_with_a_gpu_and_without_one(rig, env):
    rig.spec("task")
    spec = json.loads(rig.config.read_text())
    before = spec["mounts"]
    spec["process"]["env"].append(env)
    rig.config.write_text(json.dumps(spec, separators=",:"))
    promise(rig, SHARE, CACHE)
    assert rig.create() == 42
    assert rig.ran[0] == ("runc" if env.endswith("0") else "nvidia-container-runtime")
    assert mounts(rig) == [*before, *MOUNTS]


@pytest.mark.parametrize("name", ["task", "task-privileged"])
def test_a_task_gets_them_where_no_task_can_have_a_gpu(rig, name):
    rig.policy(gpus=[])
    rig.spec(name)
    before = json.loads(rig.config.read_text())
    promise(rig, SHARE)
    rig.config.chmod(0o640)
    assert rig.create() == 42
    assert rig.ran[0] == "runc"
    # Nothing else of it is touched.
    assert json.loads(rig.config.read_text()) == {
        **before,
        "mounts": [*before["mounts"], MOUNTS[0]],
    }
    assert stat.S_IMODE(rig.config.stat().st_mode) == 0o640


@pytest.mark.parametrize("gpus", [{}, {"gpus": []}])
@pytest.mark.parametrize("name", ["check", "get", "put", "get-privileged"])
def test_no_other_step_gets_them(rig, name, gpus):
    rig.policy(**gpus)
    rig.spec(name)
    before = rig.config.read_text()
    promise(rig, SHARE)
    for text in (None, "{"):  # nor does a damaged file stop it
        if text:
            (rig.folder / "folders.json").write_text(text)
        assert rig.create() == 42
        assert rig.config.read_text() == before


@pytest.mark.parametrize("text", [None, '{"version": 1, "folders": []}'])
def test_without_any_nothing_is_changed(rig, text):
    rig.policy(gpus=[])
    rig.spec("task")
    if text:
        (rig.folder / "folders.json").write_text(text)
    before = json.loads(rig.config.read_text())
    assert rig.create() == 42
    assert json.loads(rig.config.read_text()) == before


@pytest.mark.parametrize("gpus", [{}, {"gpus": []}])
def test_a_create_that_is_made_again_finds_them_there(rig, gpus):
    rig.policy(**gpus)
    rig.spec("task")
    promise(rig, SHARE, CACHE)
    assert rig.create() == 42
    once = rig.config.read_text()
    assert rig.create() == 42
    assert rig.config.read_text() == once


@pytest.mark.parametrize("gpus", [{}, {"gpus": []}])
def test_what_was_promised_and_is_missing_is_refused_in_words(rig, gpus):
    rig.policy(**gpus)
    rig.spec("task")
    before = rig.config.read_text()
    promise(rig, {**SHARE, "source": "/usr/share/nowhere-at-all"})
    assert rig.create() == 1
    assert rig.code == "task-mounts-unusable"
    assert "/usr/share/nowhere-at-all" in rig.refusal
    assert rig.config.read_text() == before
    assert not rig.store.joinpath("leases.json").exists()  # no GPU was taken


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "it is not JSON"),
        ('{"version": 2, "folders": []}', "version is 2, not 1"),
        ('{"version": 1, "folders": [{}]}', "'' is not a folder to give"),
        ('{"version": 1, "folders": [{"source": "/a", "target": "/"}]}', "'/' is not a folder"),
        ('{"version": 1, "folders": [{"source": "/a/../b", "target": "/b"}]}', "'/a/../b' is not"),
        ('{"version": 1, "folders": [{"source": "/a", "target": "/b"}]}', "writable is None"),
    ],
)
def test_a_damaged_list_is_no_empty_one(rig, text, said):
    rig.spec("task")
    (rig.folder / "folders.json").write_text(text)
    assert rig.create() == 1
    assert rig.code == "task-mounts-unreadable"
    assert said in rig.refusal


@pytest.mark.parametrize(
    "place", ["/srv/data", "/srv/data/x", "/srv", "/srv//data/.", "/srv/../srv/data"]
)
def test_what_a_task_has_in_their_place_is_refused(rig, place):
    rig.spec("task")
    config = json.loads(rig.config.read_text())
    config["mounts"].append({"destination": place, "type": "bind", "source": "/x"})
    rig.config.write_text(json.dumps(config, separators=",:"))
    promise(rig, SHARE)
    assert rig.create() == 1
    assert rig.code == "task-mounts-conflict"
    assert "where this worker mounts its task-mounts folder /usr/share" in rig.refusal


def test_a_self_test_has_none(rig):
    """A folder that is missing makes no GPU sick."""
    rig.spec("task")
    promise(rig, {**SHARE, "source": "/usr/share/nowhere-at-all"})
    words = ["--bundle", rig.bundle, "--pid-file", rig.bundle / "init.pid", "gpu-selftest-0"]
    assert rig.call("create", *words) == 42
    assert "nowhere-at-all" not in rig.config.read_text()


def test_what_only_begins_alike_is_in_nobodys_way():
    config = {"mounts": [{"destination": "/srv/data2"}, {"destination": "/srv/dat"}]}
    one = folders.Folder("/usr/share", "/srv/data", writable=False)
    assert len(folders.bound(config, [one])["mounts"]) == 3


def test_a_put_that_looks_like_a_task_gets_none(rig):
    rig.policy(gpus=[])
    config = golden("put")
    config["mounts"].append({"destination": "/tmp/build/deadbeef", "source": "/x"})
    rig.config.write_text(json.dumps(config, separators=",:"))
    promise(rig, SHARE)
    assert rig.create() == 1
    assert rig.code == "path-reserved"


class TestWhoCouldExchangeIt:
    """A folder is given only where nobody but root can put something else in its place."""

    @pytest.fixture(autouse=True)
    def world(self, monkeypatch):
        """Root's folders, but for those that a test puts there; no other file is looked at."""
        self.found = dict.fromkeys(("/", "/srv", "/srv/a", "/srv/a/b"), (stat.S_IFDIR | 493, 0))

        def lstat(path):
            if path not in self.found:
                raise FileNotFoundError(2, "No such file or directory", path)
            mode, owner = self.found[path]
            return os.stat_result((mode, 0, 0, 1, owner, 0, 0, 0, 0, 0))

        monkeypatch.setattr(folders.os, "lstat", lstat)

    @pytest.mark.parametrize("mode", [0o755, 0o777, 0o1777, 0o700])
    @pytest.mark.parametrize("owner", [0, 1000, 4294967294])
    def test_the_folder_itself_may_be_anybodys(self, mode, owner):
        self.found["/srv/a/b"] = (stat.S_IFDIR | mode, owner)
        assert folders.what_is_wrong("/srv/a/b") == ""

    @pytest.mark.parametrize("above", ["/", "/srv", "/srv/a"])
    @pytest.mark.parametrize(
        "found", [(stat.S_IFDIR | 0o755, 1000), (stat.S_IFDIR | 0o1777, 0)], ids=["theirs", "all"]
    )
    def test_no_folder_above_it_may(self, above, found):
        self.found[above] = found
        assert folders.what_is_wrong("/srv/a/b") == (
            f"parent directory {above} must be root-owned and not group- or world-writable"
        )
        self.found[above] = (stat.S_IFDIR | 0o775, 0)
        assert "must be root-owned" in folders.what_is_wrong("/srv/a/b")

    @pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFREG, stat.S_IFSOCK])
    def test_no_link_is_followed(self, kind):
        self.found["/srv/a"] = (kind | 0o777, 0)
        assert folders.what_is_wrong("/srv/a") == "it is not a directory but a link or a file"
        said = folders.what_is_wrong("/srv/a/b")
        assert said == "/srv/a is not a directory but a link or a file"

    def test_what_cannot_be_looked_at_is_not_given(self):
        del self.found["/srv/a"]
        assert folders.what_is_wrong("/srv/a") == "it is missing"
        assert folders.what_is_wrong("/srv/a/b") == "/srv/a: No such file or directory"
        with refuses("task-mounts-unusable"):
            folders.bound({}, [folders.Folder("/srv/a", "/data", writable=True)])
