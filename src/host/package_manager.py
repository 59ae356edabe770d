# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the host's software asks of the machine's packages; see machine.packages for each call."""

import collections.abc
import typing

Progress = collections.abc.Callable[[str], None]


class Packages(typing.Protocol):
    """The machine's packages, as machine.packages handles them."""

    def installed(self, *names: str) -> dict[str, str]:
        """Return the versions of those packages that are completely installed."""
        ...

    def owned(self, owner: str) -> dict[str, str]:
        """Return the owner's packages that are installed, with versions."""
        ...

    def begun(self, owner: str) -> set[str]:
        """Return the owner's packages that are incomplete."""
        ...

    def refresh(self) -> str:
        """Fetch the package lists."""
        ...

    def ensure_installed(self, *names: str) -> bool:
        """Install packages in any version."""
        ...

    def ensure(
        self, owner: str, versions: collections.abc.Mapping[str, str], progress: Progress
    ) -> bool:
        """Install packages in these versions, and hold them."""
        ...

    def release_holds(self, owner: str) -> bool:
        """Release the holds of the owner's packages."""
        ...

    def remove_installed(self, *names: str) -> bool:
        """Purge packages that were installed for the charm."""
        ...
