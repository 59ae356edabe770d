# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Add the runtime to Docker's daemon.json, without changing any other character of it.

Docker reads both keys on SIGHUP while containers run (20.10 to 29, daemon/reload.go), so it is
never restarted for them; see `DaemonJson._switch` for keys that are removed.
"""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

from gpu_agent.engines import front
from gpu_agent.engines.docker import json_edit as json_text
from gpu_agent.engines.engine import EngineError
from machine import files, process
from machine import polling as waiting
from machine import systemd as services

UNIT: Final = "docker.service"
_NAME: Final = "gpu-ci"
_RUNTIMES, _DEFAULT = "runtimes", "default-runtime"
_ITS_OWN: Final = "runc"  # what Docker calls its own default runtime
# The rest of a file that the charm created.
_MADE: Final = "{\n}\n"
_ODD: Final = "surrogateescape"  # bytes that are not UTF-8 stay unchanged
_TIMEOUT: Final = 30.0  # seconds, for an answer of dockerd


def _program(name: str) -> str:
    """Return the path of one of Docker's programs; empty if it is not installed."""
    return shutil.which(name, path="/usr/bin:/usr/sbin:/usr/local/bin:/usr/local/sbin") or ""


@dataclasses.dataclass(frozen=True)
class DaemonJson:
    """Docker's daemon.json, and the Docker that reads it.

    Attributes:
        config: the file.
        note: file with the final text of daemon.json, and the temporary one until Docker has read
            it.
        program: returns the path of one of Docker's programs; empty if it is not installed.
        run: runs one of them, as machine.process.run does.
        reload: sends a unit's process SIGHUP; returns whether there is one.
        patience: in seconds, until Docker has read its file.
    """

    config: Path = Path("/etc/docker/daemon.json")
    note: Path = Path("/var/lib/gpu-ci/daemon.json")
    program: Callable[[str], str] = _program
    run: Callable[..., process.Completed] = process.run
    reload: Callable[[str], bool] = services.reload
    patience: float = 10.0

    def ensure(self, *, default: bool) -> bool:
        """Register the runtime with Docker; return True if anything was changed.

        Args:
            default: whether containers that name no runtime get this one.

        Raises:
            EngineError: Docker is not installed, it refuses the file, or the operator has another
                runtime of the same name.
        """
        if not self.program("dockerd"):
            raise EngineError(
                "Docker is not installed on this machine: install it (sudo apt-get install "
                "docker.io), or remove docker from container-engines"
            )
        was_killed = self._finish()
        former = self._read()
        wanted = self.merged(former, default=default)
        if wanted == former and not was_killed:
            return False
        self._validate(wanted)
        if not self._switch(wanted):
            self._switch(former)
            raise EngineError(f"Docker did not reload {self.config}: see journalctl -u docker")
        return True

    def remove(self) -> bool:
        """Remove the runtime from Docker; return True if it was there."""
        try:
            was_killed = self._finish()
            former = self._read()
            wanted = self.without(former) if former else former
        except EngineError:
            return False  # Docker does not start with such a file, so it does not have the runtime
        if wanted == former and not was_killed:
            return False
        self._switch(None if wanted == _MADE else wanted)
        return True

    def merged(self, text: str | None, *, default: bool) -> str:
        """Return daemon.json with the runtime added.

        Args:
            text: the current file; None: there is none.
            default: whether the runtime becomes the default one.

        Raises:
            EngineError: it is not a JSON object, or has another runtime of that name or as
                default.
        """
        text = _MADE if text is None or not text.strip() else text
        found = self._parsed(text)
        runtimes, ours = _object(found.get(_RUNTIMES, {})), {"path": str(front.PATH)}
        if runtimes is None or runtimes.get(_NAME, ours) != ours:
            raise EngineError(f"{self.config} has another runtime named {_NAME}: remove it there")
        chosen = found.get(_DEFAULT, "")
        if default and chosen not in ("", _NAME):
            raise EngineError(
                f"{self.config} sets Docker's default runtime to {chosen}: remove that there, or "
                "remove =default from docker in container-engines"
            )
        if _RUNTIMES not in found:
            text = json_text.with_member(text, 0, _RUNTIMES, {_NAME: ours})
        elif _NAME not in runtimes:
            place = next(one.value for one in json_text.members(text) if one.name == _RUNTIMES)
            text = json_text.with_member(text, place, _NAME, ours)
        if default and not chosen:
            return json_text.with_member(text, 0, _DEFAULT, _NAME)
        if not default and chosen == _NAME:
            return json_text.without_member(text, 0, _DEFAULT)
        return text

    def without(self, text: str) -> str:
        """Return daemon.json as it was before `merged`.

        Raises:
            EngineError: it is not a JSON object.
        """
        if not text.strip():
            return text
        found = self._parsed(text)
        if found.get(_DEFAULT) == _NAME:
            text = json_text.without_member(text, 0, _DEFAULT)
        runtimes = _object(found.get(_RUNTIMES))
        if runtimes is None or runtimes.get(_NAME) != {"path": str(front.PATH)}:
            return text
        if len(runtimes) == 1:
            return json_text.without_member(text, 0, _RUNTIMES)
        place = next(one.value for one in json_text.members(text) if one.name == _RUNTIMES)
        return json_text.without_member(text, place, _NAME)

    def _read(self) -> str | None:
        """Return daemon.json, including bytes that are not UTF-8; None: there is none.

        Raises:
            EngineError: it is a folder, as Docker creates for a mount of a missing file.
        """
        try:
            return self.config.read_bytes().decode(errors=_ODD)
        except FileNotFoundError:
            return None
        except IsADirectoryError as error:
            raise EngineError(f"{self.config} is a folder: remove it") from error

    def _parsed(self, text: str) -> dict[str, Any]:
        try:
            found = _object(json.loads(text, object_pairs_hook=_once))
        except ValueError as error:
            raise EngineError(f"{self.config} is not JSON ({error}): repair it") from error
        if found is None:
            raise EngineError(f"{self.config} is not a JSON object: repair it")
        return found

    def _validate(self, text: str) -> None:
        """Validate a file with Docker itself before it is installed; releases before 23 can't.

        Raises:
            EngineError: Docker refuses it.
        """
        tried = self.note.with_name("daemon.json.tried")
        files.ensure_directory(tried.parent)
        files.ensure_file(tried, text.encode(errors=_ODD), mode=0o600)
        try:
            argv = [self.program("dockerd"), "--validate", f"--config-file={tried}"]
            done = self.run(argv, timeout=_TIMEOUT, check=False)
        finally:
            files.ensure_absent(tried)
        said = f"{done.stderr}{done.stdout}".strip()
        if done.returncode and "unknown flag: --validate" not in said:
            raise EngineError(
                f"dockerd --validate refuses {self.config} with the runtime {_NAME}: {said[-300:]}"
            )

    def _switch(self, wanted: str | None) -> bool:
        """Install daemon.json and make a running Docker reload it; return whether Docker uses it.

        On SIGHUP Docker ignores a key that was removed. It would continue with the removed
        runtime, even as its default. So a temporary file sets both keys explicitly during the
        reload.
        """
        said: dict[str, Any] = {_RUNTIMES: {}, _DEFAULT: _ITS_OWN, **self._parsed(wanted or "{}")}
        meanwhile = json.dumps(said)
        files.ensure_directory(self.note.parent)
        note = json.dumps({"text": wanted, "meanwhile": meanwhile})
        files.ensure_file(self.note, note + "\n", mode=0o600)
        self._put(meanwhile)
        done = self._takes_over(said)
        self._finish()
        return done

    def _finish(self) -> bool:
        """Replace the temporary of `_switch` by the final file; return True if it was there."""
        noted = files.read_text(self.note)
        if noted is None:
            return False
        note = json.loads(noted)
        # If the operator edited the file after a hook was killed, the edit stays.
        if self._read() == note["meanwhile"]:
            self._put(note["text"])
        return files.ensure_absent(self.note)

    def _put(self, text: str | None) -> None:
        if text is None:
            files.ensure_absent(self.config)
            files.remove_if_empty(self.config.parent)
            return
        data = text.encode(errors=_ODD)
        if self.config.exists():
            files.rewrite(self.config, data)
        else:
            files.ensure_directory(self.config.parent)
            files.ensure_file(self.config, data)

    def _takes_over(self, said: dict[str, Any]) -> bool:
        """Make a running Docker reload its file; return whether it then uses these keys."""
        if not self.reload(UNIT):
            return True
        argv = [
            self.program("docker"),
            "info",
            "--format",
            "{{json .Runtimes}} {{.DefaultRuntime}}",
        ]

        def follows() -> bool:
            told = self.run(argv, timeout=_TIMEOUT, check=False).stdout
            knows = f'"{_NAME}"' in told.rpartition(" ")[0]
            return knows == (_NAME in (said[_RUNTIMES] or {})) and told.split()[-1:] == [
                said[_DEFAULT]
            ]

        return waiting.until(follows, self.patience)


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Make an object of daemon.json; Docker would merge duplicate names.

    Docker itself refuses names that differ in case, as unknown options.

    Raises:
        ValueError: a name is there twice.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"it has {next(one for one in names if names.count(one) > 1)!r} twice")
    return found


def _object(value: object) -> dict[str, Any] | None:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None
