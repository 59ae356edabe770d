# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The copy of the charm that programs run from: made whole, kept while it is used, mended."""

import errno
import os
import shutil
import subprocess
import sys

import pytest

from gpu_agent import install as app
from machine import process
from tests.unit.situations import ROOT

FILES = {
    "lib/gpu_runtime/__init__.py": "",
    "lib/gpu_runtime/container_spec.py": "WORD = 'spec'\n",
    "lib/gpu_selftest/__main__.py": "from gpu_selftest import late\nprint(late.WORD)\n",
    "src/charm.py": "",
    "lib/gpu_selftest/late.py": "WORD = 'old'\n",
    "lib/gpu_selftest/kits/cuda13.txt": "torch==2\n",
    "templates/unit": "[Unit]\n",
    "venv/yaml.py": "WORD = 'yaml'\n",
}
COPIED = ("lib", "src", "templates", "venv")

# Installs again and again, each time killed one side effect later, then once more to the end. Says
# how many places that were; fails where what is current is not whole, or was switched too late.
KILLED = """
import pathlib, sys
from gpu_agent import install as app
from tests.killing import killed_at

one, two, home = map(pathlib.Path, sys.argv[1:])

def snapshot():
    found = {}
    for path in home.rglob("*"):
        name = str(path.relative_to(home))
        if path.is_symlink():
            found[name] = str(path.readlink())
        elif path.is_file() and name != "installed.json" and path.name != "stamp":
            found[name] = path.read_bytes()
    return found

def usable(wanted):
    current = (home / "current").resolve()
    assert app._is_whole(current), current
    word = (current / "lib/gpu_selftest/late.py").read_text()
    assert word in wanted, (word, wanted)

words = [(charm / "lib/gpu_selftest/late.py").read_text() for charm in (one, two)]
app.ensure(one, home)
app.ensure(two, home)
expected = snapshot()
step = 0
while True:
    step += 1
    app.remove(home)
    app.ensure(one, home)
    alive = not killed_at(step, lambda: app.ensure(two, home))
    usable(words)
    app.ensure(two, home)
    usable(words[1:])
    assert snapshot() == expected, step
    assert not app.ensure(two, home)
    if alive:
        break
print(step)
"""


class Charm:
    """A charm's folder, and the home of its copies."""

    def __init__(self, folder):
        self.folder, self.home = folder / "charm", folder / "app"
        for name, text in FILES.items():
            self.write(name, text)

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def refresh(self, word):
        """As Juju does: all files are written anew."""
        shutil.rmtree(self.folder)
        for name, text in FILES.items():
            self.write(name, text)
        self.write("lib/gpu_selftest/late.py", f"WORD = {word!r}\n")

    def ensure(self):
        return app.ensure(self.folder, self.home)

    @property
    def current(self):
        return (self.home / "current").resolve()

    def versions(self):
        found = {path.name for path in self.home.iterdir()}
        assert found >= {"current", "installed.json"}
        return found - {"current", "installed.json"}


@pytest.fixture
def charm(tmp_path):
    return Charm(tmp_path)


def says(folder):
    environment = {"PYTHONPATH": f"{folder}/src:{folder}/lib:{folder}/venv"}
    command = [sys.executable, "-B", "-m", "gpu_selftest"]
    return subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True, timeout=30
    ).stdout


def test_copy_has_all_that_programs_need_and_is_compiled(charm):
    charm.write("metadata.yaml", "name: x\n")
    charm.write("lib/gpu_selftest/__pycache__/late.cpython-39.pyc", "of another interpreter")
    assert charm.ensure()
    copied = charm.current
    assert {path.name for path in copied.iterdir()} == {*COPIED, "stamp"}
    for name, text in FILES.items():
        assert (copied / name).read_text() == text
        assert (copied / name).stat().st_mode & 0o7777 == 0o644
    tag = sys.implementation.cache_tag
    compiled = {str(path.relative_to(copied)) for path in copied.rglob("*.pyc")}
    sources = [name.rpartition("/") for name in FILES if name.endswith(".py")]
    assert compiled == {
        f"{folder}/__pycache__/{name.removesuffix('.py')}.{tag}.pyc" for folder, _, name in sources
    }
    assert says(copied) == "old\n"
    # Whoever may read it could lock it, and no version would ever be removed.
    assert (copied / "stamp").stat().st_mode & 0o777 == 0o600


def test_charm_that_has_not_changed_is_not_even_read(charm, monkeypatch):
    def listing():
        files = [(path, path.lstat()) for path in sorted(charm.home.rglob("*"))]
        return [(path, one.st_ino, one.st_mode, one.st_ctime_ns) for path, one in files]

    charm.ensure()
    before = listing()
    monkeypatch.setattr(app, "_content_hash", lambda _: pytest.fail("it was read"))
    assert not charm.ensure()
    assert listing() == before


def test_same_files_unpacked_anew_change_nothing_that_runs(charm):
    charm.ensure()
    before = charm.current, charm.current.stat().st_ino
    charm.refresh("old")
    assert not charm.ensure()
    assert (charm.current, charm.current.stat().st_ino) == before


def test_files_that_the_hooks_own_python_writes_are_no_change(charm, monkeypatch):
    charm.ensure()
    subprocess.run([sys.executable, "-m", "compileall", "-q", charm.folder], check=True)
    monkeypatch.setattr(app, "_content_hash", lambda _: pytest.fail("it was read"))
    assert not charm.ensure()


def test_refresh_switches_and_keeps_the_version_before_alone(charm):
    seen = []
    for word in ("old", "new", "newer"):
        charm.refresh(word)
        assert charm.ensure()
        seen.append(charm.current.name)
        assert says(charm.current) == f"{word}\n"
    assert len(set(seen)) == 3
    assert charm.versions() == set(seen[1:])
    # Back to the one before: nothing has to be made.
    charm.refresh("new")
    assert charm.ensure()
    assert charm.current.name == seen[1]
    assert charm.versions() == set(seen[1:])


def test_whoever_names_the_copy_is_told_of_it_while_current_leads_to_the_one_before(charm):
    told = []

    def look(copy):
        told.append((says(copy), charm.current.name))
        return len(told) == 2

    charm.ensure()
    first = charm.current.name
    charm.refresh("new")
    assert app.ensure(charm.folder, charm.home, look)
    # Also where nothing else is to be done: then that it changed something is the result.
    assert app.ensure(charm.folder, charm.home, look)
    assert not app.ensure(charm.folder, charm.home, look)
    second = charm.current.name
    assert told == [("new\n", first), ("new\n", second), ("new\n", second)]


def test_version_that_a_program_runs_from_stays_until_it_ends(charm):
    charm.ensure()
    used = charm.current
    script = f"exec 9<{used}/stamp && flock --shared 9 && echo held && exec sleep 60"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout.readline() == "held\n"
        for word in ("new", "newer", "newest"):
            charm.refresh(word)
            charm.ensure()
        assert len(charm.versions()) == 3
        assert says(used) == "old\n"
        program.kill()
    assert charm.ensure()
    assert used.name not in charm.versions()
    assert len(charm.versions()) == 2


def edit(copied):
    path = copied / "lib/gpu_selftest/late.py"
    before = path.stat()
    path.write_text("WORD = 'bad'\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def damage_compiled(copied):
    (path,) = (copied / "lib/gpu_selftest/__pycache__").glob("late.*")
    path.write_bytes(b"\0" * path.stat().st_size)


@pytest.mark.parametrize(
    "spoil",
    [
        edit,
        damage_compiled,
        lambda copied: (copied / "lib/gpu_runtime/container_spec.py").unlink(),
        lambda copied: (copied / "lib/json.py").write_text("a stranger"),
        lambda copied: (copied / "lib/gpu_selftest/late.py").chmod(0o666),
        lambda copied: (copied / "stamp").unlink(),
        lambda copied: (copied / "stamp").write_bytes(b"\xff"),
        shutil.rmtree,
        lambda copied: (copied.parent / "current").unlink(),
        lambda copied: (copied.parent / "installed.json").write_bytes(b"{\xff"),
        lambda copied: (copied.parent / "installed.json").write_text('{"source": 1}'),
    ],
)
def test_copy_that_was_spoilt_is_mended(charm, spoil):
    charm.ensure()
    spoil(charm.current)
    charm.ensure()
    assert says(charm.current) == "old\n"
    assert not (charm.current / "lib/json.py").exists()
    assert len(charm.versions()) == 1
    assert not charm.ensure()


def test_another_interpreter_gets_a_copy_of_its_own(charm, monkeypatch):
    charm.ensure()
    before = charm.current
    monkeypatch.setattr(sys.implementation, "cache_tag", "cpython-399")
    assert charm.ensure()
    assert charm.current != before


@pytest.mark.parametrize("at", ["copy", "compile"])
def test_full_disk_is_an_error_in_words_and_the_old_one_stays(charm, monkeypatch, at):
    charm.ensure()
    before = charm.current
    charm.refresh("new")
    with monkeypatch.context() as patch:
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "x.py")
        said = "*** Error compiling 'x.py'...\nOSError: [Errno 28] No space left on device"
        failed = process.CommandError(["/usr/bin/python3"], 1, said)
        if at == "copy":
            patch.setattr(shutil, "copyfile", raising(full))
        else:
            patch.setattr(process, "run", raising(failed))
        with pytest.raises(app.AppError) as error:
            charm.ensure()
    assert str(error.value).startswith(f"Cannot copy the programs to {charm.home}: ")
    assert "No space left on device" in str(error.value)
    assert "Make room there" in str(error.value)
    assert charm.versions() == {before.name}
    assert says(charm.current) == "old\n"
    assert charm.ensure()
    assert says(charm.current) == "new\n"


def raising(error):
    def call(*_, **__):
        raise error

    return call


def test_what_is_no_want_of_room_is_not_said_to_be(charm, monkeypatch):
    monkeypatch.setattr(shutil, "copyfile", raising(PermissionError(errno.EACCES, "no")))
    with pytest.raises(PermissionError):
        charm.ensure()


def test_removal_takes_all(charm):
    charm.ensure()
    assert app.remove(charm.home)
    assert not charm.home.exists()
    assert not app.remove(charm.home)


def test_killed_at_any_step_old_or_new_is_whole_and_the_next_call_ends_in_the_same(tmp_path):
    one, two = Charm(tmp_path / "one"), Charm(tmp_path / "two")
    two.refresh("new")
    done = subprocess.run(
        [sys.executable, "-c", KILLED, one.folder, two.folder, tmp_path / "app"],
        env={"PYTHONPATH": f"{ROOT}/src:{ROOT}/lib:{ROOT}", "PATH": os.environ["PATH"]},
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 30
