# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Read the records of podman and Docker: a container's name, its image's variables, its requests.

An engine merges the variables of the image and of the person before it writes config.json, which
therefore does not show who set a variable. The engines' own records do:

- Docker (20.10 to 29; daemon/container/container_unix.go, image/fs.go): above the container's root
  lies `containers/<id>/`, with config.v2.json (name, image, merged variables: the person's first,
  then those of the image's that are left, in its order) and hostconfig.json (`--gpus` and CDI
  names, as DeviceRequests). The image's own are in `image/<driver>/imagedb`, or, with containerd's
  image store, in its content store.
- podman (3 to 5; containers/storage): the bundle is `<root>/<driver>-containers/<id>/userdata`;
  beside it containers.json has name and image, whose configuration is one of its big data. Merged
  variables have no order, so a variable that equals the image's counts as the image's.
"""

from __future__ import annotations

import binascii
import os

from gpu_runtime import proc
from gpu_runtime.fast_json import IMAGE, loads
from gpu_runtime.json_files import read_object
from gpu_runtime.json_shape import items, table, text

DOCKER, PODMAN = "docker", "podman"
_SHORT = 12  # as many letters of an id as both engines show


class Facts:
    """An engine's record of one container.

    Attributes:
        engine: DOCKER, PODMAN, or empty for another one.
        name: the container's name for people; empty: it has none.
        requests: Docker's DeviceRequests.
        image: the entries of its variables that come from the image; None: not known.
        fault: why they are not known.
    """

    __slots__ = ("engine", "fault", "image", "name", "requests")

    def __init__(self) -> None:
        self.engine = ""
        self.name = ""
        self.requests: list[dict[str, object]] = []
        self.image: list[str] | None = None
        self.fault = "its engine is unknown"

    def who(self, container: str) -> str:
        """Return the container as its engine names it, such as `docker container "train"`."""
        named = f'"{self.name}"' if self.name else container[:_SHORT]
        return " ".join(filter(None, (self.engine, "container", named)))


def read(config: dict[str, object], bundle: str, container: str) -> Facts:
    """Return an engine's record of the container with that bundle and configuration.

    Raises:
        OSError, ValueError: the record of the container's requests is unreadable.
    """
    facts = Facts()
    folder = os.path.dirname(bundle)
    if os.path.basename(folder) == container and folder.endswith(f"-containers/{container}"):
        facts.engine = PODMAN
        source = _podman
    elif home := _docker_home(config, bundle, container):
        facts.engine = DOCKER
        found = read_object(f"{home}/containers/{container}/hostconfig.json")
        facts.requests = [table(one) for one in items(found.get("DeviceRequests"))]
        source, folder = _docker, home
    else:
        return facts
    try:
        facts.image, facts.fault = source(facts, folder, container), ""
    except (OSError, ValueError) as error:
        facts.fault = str(error)
    return facts


def _docker_home(config: dict[str, object], bundle: str, container: str) -> str:
    """Return Docker's data folder: the one above the container's root that has its record."""
    path: str = os.path.realpath(
        os.path.join(bundle, text(table(config.get("root")).get("path")) or "/")
    )
    while path != "/":
        path = os.path.dirname(path)
        if proc.exists(f"{path}/containers/{container}/config.v2.json"):
            return path
    return ""


def _docker(facts: Facts, home: str, container: str) -> list[str]:
    found = read_object(f"{home}/containers/{container}/config.v2.json")
    facts.name = text(found.get("Name")).lstrip("/")
    merged = _variables(found.get("Config"), "Env")
    image = _variables(_docker_image(home, found).get("config"), "Env")
    return images(merged, image)


def _docker_image(home: str, found: dict[str, object]) -> dict[str, object]:
    """The configuration of a container's image.

    Raises:
        OSError, ValueError: it can't be read.
    """
    driver, image = text(found.get("Driver")), _hex(text(found.get("Image")))
    manifest = text(table(found.get("ImageManifest")).get("digest"))
    if not manifest:
        return read_object(f"{home}/image/{driver}/imagedb/content/sha256/{image}", IMAGE)
    content = "io.containerd.content.v1.content/blobs/sha256"
    folder = f"{home}/containerd/daemon/{content}"
    if not proc.exists(folder):
        folder = f"/var/lib/containerd/{content}"
    config = table(read_object(f"{folder}/{_hex(manifest)}", IMAGE).get("config"))
    return read_object(f"{folder}/{_hex(text(config.get('digest')))}", IMAGE)


def _podman(facts: Facts, folder: str, container: str) -> list[str]:
    home = os.path.dirname(folder)
    entry = _podman_entry(home, container)
    facts.name = next(map(text, items(entry.get("names"))), "")
    image = text(entry.get("image"))
    if not image:
        return []  # --rootfs: all variables are a person's
    root, driver = os.path.split(home.removesuffix("-containers"))
    key = binascii.b2a_base64(f"sha256:{_hex(image)}".encode(), newline=False).decode()
    found = read_object(f"{root}/{driver}-images/{_hex(image)}/={key}", IMAGE)
    entries = _variables(found.get("config"), "Env")
    if any("=" not in entry for entry in entries):
        raise ValueError("its image inherits a variable from the shell that starts it")
    # As podman takes them over (3.4 to 5.8 pkg/env/env.go): blanks before a name go.
    return [entry.lstrip(" \t") for entry in entries]


def _podman_entry(home: str, container: str) -> dict[str, object]:
    for name in ("containers.json", "volatile-containers.json"):
        said = proc.read(f"{home}/{name}")
        for entry in map(table, items(loads(said.encode())) if said else ()):
            if entry.get("id") == container:
                return entry
    raise ValueError(f"{home}/containers.json has no container {container}")


def cdi_paths(folders: tuple[str, ...] = ("/etc/cdi", "/var/run/cdi")) -> set[str]:
    """Return all absolute paths in the CDI files of GPUs.

    The files are YAML or JSON. In both, blanks, quotes, commas and brackets separate paths.

    Raises:
        OSError: one can't be read.
    """
    found = set[str]()
    for folder in folders:
        for name in proc.names(folder):
            said = proc.read(f"{folder}/{name}") if name.endswith((".yaml", ".json")) else ""
            if any(kind in said for kind in ("nvidia.com/", "amd.com/", "intel.com/gpu")):
                words = said.translate(str.maketrans("\"',[]{}", "       ")).split()
                found.update(word for word in words if word.startswith("/"))
    return found


def images(merged: list[str], image: list[str]) -> list[str]:
    """Return the entries of Docker's `merged` variables that come from the `image`.

    As few entries as possible count as a person's: a person who repeats the image's first
    variables looks like one who sets none. A name that a person sets counts once
    (daemon/commit.go).
    """
    if merged == image:
        return image
    for count in range(1, len(merged) + 1):
        left = _left(image, merged[:count])
        if merged[count:] == left:
            return left
    return image


def _left(image: list[str], persons: list[str]) -> list[str]:
    """Return the image's variables that follow a person's variables."""
    names, left = {_name(entry) for entry in persons}, list[str]()
    for entry in image:
        if _name(entry) not in names:
            names.add(_name(entry))
            left.append(entry)
    return left


def _variables(config: object, key: str) -> list[str]:
    return [text(entry) for entry in items(table(config).get(key))]


def _name(entry: str) -> str:
    return entry.partition("=")[0]


def _hex(digest: str) -> str:
    """Return the hexadecimal part of a digest, which cannot contain a path.

    Raises:
        ValueError: it has none.
    """
    found = digest.removeprefix("sha256:")
    if not found.isalnum():
        raise ValueError(f"{digest[:80]!r} is not an id of an image")
    return found
