# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the public charm does on the wire: fourdollars/concourse-ci-machine at commit b694af9.

Each method is what its src/charm.py does with databags in the hook of that name (lines 2700 to
2880, `_on_tsa_relation_joined` and `_changed`), with the rest reduced to what can be counted. It
checks nothing that it reads, publishes at joined alone, and handles no departed or broken.
"""

import collections.abc
import dataclasses

Units = collections.abc.Mapping[str, collections.abc.Mapping[str, str]]


@dataclasses.dataclass
class PublicWeb:
    """Its web unit. `file` is authorized_worker_keys, which nothing is ever taken out of."""

    public_key: str
    address: str = "10.0.0.5"
    version: str = "8.3.0"
    file: str = ""
    restarts: int = 0

    def joined(self, data: dict[str, str]) -> None:
        data["tsa-host"] = f"{self.address}:2222"
        data["tsa-public-key"] = self.public_key.strip()
        data["concourse-version"] = self.version

    def upgraded(self, data: dict[str, str], version: str) -> None:
        """`_publish_version_to_tsa_relations`: the version alone, the address never again."""
        self.version = data["concourse-version"] = version

    def changed(self, units: Units) -> None:
        existing = set(self.file.strip().split("\n")) if self.file else set()
        added = False
        for data in units.values():
            key = data.get("worker-public-key")
            if key and key not in existing:
                self.file += key + "\n"
                existing.add(key)
                added = True
        self.restarts += added


@dataclasses.dataclass
class PublicWorker:
    """Its worker unit. `key_file` is tsa_host_key.pub; each restart ends the builds on it."""

    public_key: str
    version: str = "8.3.0"
    host: str = ""
    key_file: str = ""
    restarts: int = 0
    installed: list[str] = dataclasses.field(default_factory=list)
    waits: bool = False

    def joined(self, data: dict[str, str]) -> None:
        data["worker-public-key"] = self.public_key.strip()

    def changed(self, units: Units) -> None:
        host = key = version = None
        for data in units.values():
            host, key = data.get("tsa-host"), data.get("tsa-public-key")
            version = data.get("concourse-version")
            if host and key:
                break
        if not host or not key:
            self.waits = True
            return
        if version and self.version != version:
            self.installed.append(version)
            self.version = version
        self.key_file = key + "\n"
        self.host, self.waits = host, False
        self.restarts += 1
