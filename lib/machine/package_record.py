# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Record the packages that the charm has brought to the machine."""

import dataclasses
import json
import pathlib
import typing

from machine import files

_PATH: typing.Final = pathlib.Path("/var/lib/gpu-ci/packages.json")


@dataclasses.dataclass
class Entry:
    """The packages of one owner, or of one call without an owner.

    Attributes:
        asked: the requested packages.
        new: all packages that it brought to the machine.
        owner: the owner, who may have other entries; empty: none.
        held: the packages that were held for it.
    """

    asked: set[str] = dataclasses.field(default_factory=set[str])
    new: set[str] = dataclasses.field(default_factory=set[str])
    owner: str = ""
    held: set[str] = dataclasses.field(default_factory=set[str])


class Record:
    """All entries. They may be changed; `write` saves them."""

    def __init__(self, entries: list[Entry]) -> None:
        self.entries = entries

    def new(self) -> set[str]:
        """All packages that came by the charm."""
        return {name for entry in self.entries for name in entry.new}

    def names(self) -> set[str]:
        """All packages that the entries name."""
        return {name for entry in self.entries for name in entry.asked | entry.new | entry.held}

    def held(self) -> set[str]:
        """All packages that the charm has held."""
        return {name for entry in self.entries for name in entry.held}

    def of(self, owner: str) -> Entry:
        """Return the owner's entry; an empty one is made if there is none."""
        for entry in self.entries:
            if entry.owner == owner:
                return entry
        entry = Entry(owner=owner)
        self.entries.append(entry)
        return entry

    def asked_for(self, names: set[str]) -> Entry:
        """Return the entry of a call without an owner; it is made if there is none."""
        for entry in self.entries:
            if not entry.owner and entry.asked == names:
                return entry
        entry = Entry(names)
        self.entries.append(entry)
        return entry

    def forget(self, names: set[str]) -> None:
        """Remove packages that are gone."""
        for entry in self.entries:
            entry.asked -= names
            entry.new -= names
            entry.held -= names

    def write(self) -> None:
        """Save the record; entries without a package are left out."""
        kept = [entry for entry in self.entries if entry.asked or entry.new]
        if not kept:
            files.ensure_absent(_PATH)
            return
        files.ensure_directory(_PATH.parent)
        content = [
            {
                "asked": sorted(entry.asked),
                "new": sorted(entry.new),
                "owner": entry.owner,
                "held": sorted(entry.held),
            }
            for entry in kept
        ]
        files.ensure_file(_PATH, json.dumps(content, indent=1))


def read() -> Record:
    """Read a record as it was written, also by revisions without owners and holds."""
    text = files.read_text(_PATH)
    found: list[dict[str, typing.Any]] = json.loads(text) if text else []
    return Record(
        [
            Entry(set(e["asked"]), set(e["new"]), e.get("owner", ""), set(e.get("held", ())))
            for e in found
        ]
    )
