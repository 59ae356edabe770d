# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A task's root: whose it is, and what in it would let the runtime's hooks hang."""

import json
import os
import subprocess

import pytest

from gpu_runtime import rootfs
from tests.unit.grants import TASKS, golden
from tests.unit.refusals import refuses

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="the mark must be a file of root's")


class Site:
    """Concourse's volumes and bundles in a folder."""

    def __init__(self, folder):
        self.folder = folder
        self.live = folder / "volumes" / "live"
        self.bundles = folder / "bundles"
        self.volume("work")
        self.bundles.mkdir()

    def volume(self, name):
        path = self.live / name / "volume"
        (path / "rootfs").mkdir(parents=True)
        return path

    def spec(self, root):
        config = golden("task")
        config["root"]["path"] = str(root)
        for mount in config["mounts"]:
            if mount["destination"] == "/tmp/build/e55deab7":
                mount["source"] = str(self.live / "work" / "volume")
        return config

    def bundle(self, name, config):
        """The folder of a container's bundle, as containerd leaves it before the create."""
        folder = self.bundles / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config, separators=",:"))
        return str(folder)

    def check(self, name, root):
        config = self.spec(root)
        rootfs.check_origin(config, self.bundle(name, config), TASKS)


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


@pytest.mark.parametrize("inner", ["rootfs", "", "rootfs/inner"])
def test_a_volume_of_its_own_is_a_tasks(site, inner):
    site.check("ID", site.volume("image") / inner)
    site.check("OTHER", site.volume("image-2") / inner)


@pytest.mark.parametrize("inner", ["", "rootfs", "sub/folder", "rootfs/../rootfs/."])
@pytest.mark.parametrize("user", ["root", "mount"])
def test_a_volume_that_another_container_has_is_none_of_a_tasks(site, inner, user):
    shared = site.volume("shared")
    first = site.spec(shared / "rootfs" if user == "root" else site.volume("image") / "rootfs")
    first["mounts"].append({"destination": "/in", "source": str(shared), "type": "bind"})
    site.bundle("FIRST", first)
    with refuses("rootfs-shared"):
        site.check("ID", f"{shared}/{inner}")


def test_of_two_that_share_a_volume_the_later_one_sees_the_other(site):
    """Each bundle is there before its own create is, whichever of the two looks first."""
    shared = site.volume("shared") / "rootfs"
    configs = {name: site.spec(shared) for name in ("ONE", "TWO")}
    bundles = {name: site.bundle(name, config) for name, config in configs.items()}
    for name, config in configs.items():
        with refuses("rootfs-shared"):
            rootfs.check_origin(config, bundles[name], TASKS)


def test_a_volume_is_free_again_when_the_container_is_gone(site):
    shared = site.volume("shared")
    (site.bundles / "FIRST").mkdir()
    (site.bundles / "FILE").write_text(f"{shared}")
    (site.bundles / "LINK").symlink_to("nowhere")
    site.check("ID", shared / "rootfs")


def test_a_container_whose_init_is_gone_has_no_volume_any_more(site):
    """Its bundle stays after a failed build, perhaps for days."""
    shared = site.volume("shared")
    pid_file = site.bundles / "FIRST" / "init.pid"
    site.bundle("FIRST", site.spec(shared / "rootfs"))
    for text in (str(os.getpid()), "", "x"):  # one without it is about to come to be
        pid_file.write_text(text)
        with refuses("rootfs-shared"):
            rootfs.check_origin(site.spec(shared / "rootfs"), str(site.bundles / "ID"), TASKS)
    gone = subprocess.Popen(["true"])
    gone.wait(10)
    pid_file.write_text(str(gone.pid))
    site.check("ID", shared / "rootfs")
    pid_file.unlink()
    pid_file.symlink_to("init.pid")
    with pytest.raises(OSError, match="Too many levels"):
        site.check("ID2", site.volume("image") / "rootfs")


def test_another_bundle_that_cannot_be_read_is_no_absence(site):
    (site.bundles / "FIRST").mkdir()
    (site.bundles / "FIRST" / "config.json").symlink_to("config.json")
    with pytest.raises(OSError, match="Too many levels"):
        site.check("ID", site.volume("image"))


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/srv", "/nowhere", "srv", "volumes/live/x/volume", "volumes", "volumes/live"),
        *("volumes/live/image", "volumes/live/image/upper", "volumes/live/image/volume2"),
        # Made by a job in a volume of its own, and named by the path of what lies below that.
        "overlays/image/volumes/live/x/volume",
        "volumes/live/image/volume/../../../../srv",
    ],
)
def test_any_other_folder_is_none_of_a_tasks(site, path):
    site.volume("image")
    root = path if path.startswith("/") else site.folder / path
    if path == "volumes/live/x/volume":
        root = site.folder / "elsewhere" / path
    with refuses("rootfs-not-allowed"):
        site.check("ID", root)


def test_a_link_leads_where_it_leads(site):
    image = site.volume("image")
    (image / "out").symlink_to(site.folder)
    (image / "other").symlink_to(site.volume("other") / "rootfs")
    with refuses("rootfs-not-allowed"):
        site.check("ID", image / "out")
    site.bundle("FIRST", site.spec(site.live / "other" / "volume"))
    with refuses("rootfs-shared"):
        site.check("ID2", image / "other")


@ROOT
@pytest.mark.parametrize(
    ("mode", "owner", "kind"),
    [
        *((0o664, 0, "file"), (0o646, 0, "file"), (0o644, 1000, "file"), (0o755, 0, "folder")),
        *((0o644, 0, "link"), (0o644, 0, "fifo")),
    ],
)
def test_the_operators_mark(site, tmp_path_factory, mode, owner, kind):
    root = tmp_path_factory.mktemp("root")
    mark = root / ".gpu-ci-task-root"
    mark.touch(0o644)
    site.check("ID", root)
    mark.unlink()
    (root / "file").touch(0o644)
    make = {
        "file": mark.touch,
        "folder": mark.mkdir,
        "link": lambda: mark.symlink_to("file"),
        "fifo": lambda: os.mkfifo(mark),
    }
    make[kind]()
    if kind != "link":
        mark.chmod(mode)
        os.chown(mark, owner, owner)
    with refuses("rootfs-not-allowed"):
        site.check("ID2", root)


@ROOT
def test_a_mark_within_concourses_own_folders_is_a_jobs(site):
    """A privileged step can make files of root's in its volume, and below that."""
    folder = site.folder / "overlays" / "x"
    folder.mkdir(parents=True)
    (folder / ".gpu-ci-task-root").touch(0o644)
    with refuses("rootfs-not-allowed"):
        site.check("ID", folder)


@pytest.mark.parametrize("root", [None, {}, {"path": ""}, {"path": 7}, "x"])
def test_a_spec_without_a_root_is_runcs_business(site, root):
    config = {**site.spec("/"), "root": root}
    rootfs.check_origin(config, str(site.bundles), TASKS)
    rootfs.check_files(config, str(site.bundles))


OPENED = [
    *("etc/ld.so.conf", "etc/ld.so.cache", "etc/ld.so.cache~", "etc/passwd", "etc/group"),
    *("etc/ld.so.conf.d/nvidia.conf", "usr/local/cuda/compat/libcuda.so.580.1"),
    *("var/cache/ldconfig/aux-cache", "etc/ld-musl-x86_64.path"),
]


class Image:
    def __init__(self, folder):
        self.root = folder / "rootfs"
        self.bundle = str(folder)
        self.mounts = []
        for name in OPENED:
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)

    def check(self):
        rootfs.check_files({"root": {"path": "rootfs"}, "mounts": self.mounts}, self.bundle)

    def refusal(self):
        with refuses("image-special-file") as caught:
            self.check()
        return str(caught.value)


@pytest.fixture
def image(tmp_path):
    return Image(tmp_path)


def test_files_and_what_is_missing_can_be_opened(image):
    image.check()
    for name in OPENED:
        (image.root / name).write_text("")
    image.check()


@pytest.mark.parametrize("name", OPENED)
def test_a_fifo_is_refused_by_name(image, name):
    os.mkfifo(image.root / name)
    assert f"/{name} in the task's image is not a regular file" in image.refusal()


@pytest.mark.parametrize("name", OPENED)
@pytest.mark.parametrize("target", ["{up}fifo", "/fifo", "/a/../fifo", "/link", "/../../fifo"])
def test_links_are_followed_within_the_image(image, name, target):
    os.mkfifo(image.root / "fifo")
    (image.root / "a").mkdir()
    (image.root / "link").symlink_to("fifo")
    (image.root / name).symlink_to(target.format(up="../" * name.count("/")))
    assert f"/{name} in the task's image is not a regular file" in image.refusal()


def test_links_to_files_and_to_nothing_can_be_opened(image):
    (image.root / "file").touch()
    targets = ["/file", "/nowhere", "/file/x", "../file", "ld.so.conf", "/etc/passwd"]
    for name, target in zip(OPENED, targets, strict=False):
        (image.root / name).symlink_to(target)
    image.check()


def test_no_link_leads_out_of_the_image(image, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (image.root / "etc" / "ld.so.conf").symlink_to(tmp_path / "fifo")
    (image.root / "etc" / "ld.so.cache").symlink_to("../../../../../../../fifo")
    image.check()


def test_folders_may_be_links_too(image):
    (image.root / "d").mkdir()
    os.mkfifo(image.root / "d" / "x.conf")
    (image.root / "etc" / "ld.so.conf.d").rmdir()
    (image.root / "etc" / "ld.so.conf.d").symlink_to("/d")
    assert "/etc/ld.so.conf.d/x.conf in the task's image" in image.refusal()


def test_other_names_beside_them_do_not_matter(image):
    os.mkfifo(image.root / "usr/local/cuda/compat/other")
    os.mkfifo(image.root / "etc/fifo")
    image.check()


def test_what_is_mounted_hides_what_is_below_it(image, tmp_path):
    os.mkfifo(image.root / "etc" / "ld.so.conf")
    (tmp_path / "input").mkdir()
    image.mounts = [{"destination": "/etc//", "type": "bind", "source": str(tmp_path / "input")}]
    image.check()
    os.mkfifo(tmp_path / "input" / "ld.so.cache")
    assert "/etc/ld.so.cache in the task's image" in image.refusal()
    image.mounts = [{"destination": "/etc", "type": "tmpfs", "source": "tmpfs"}]
    image.check()


def test_a_relative_source_lies_beside_the_spec(image, tmp_path):
    (tmp_path / "input").mkdir()
    os.mkfifo(tmp_path / "input" / "ld.so.conf")
    image.mounts = [{"destination": "/etc", "options": ["rbind"], "source": "input"}]
    assert "/etc/ld.so.conf" in image.refusal()


def test_what_cannot_be_told_is_no_absence(image):
    (image.root / "etc" / "ld.so.conf").symlink_to("x" * 300)
    with pytest.raises(OSError, match="File name too long"):
        image.check()


def test_a_bundle_whose_config_is_a_folder_is_none(site):
    (site.bundles / "FOLDER/config.json").mkdir(parents=True)
    site.check("ID", site.volume("image") / "rootfs")
