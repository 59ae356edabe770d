# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Docker's daemon.json with our runtime in it; whatever else is there stays letter by letter.

Docker takes both keys over on SIGHUP, under running containers (20.10 to 29, daemon/reload.go), so
it is never restarted for them; see `_switch` for keys that go.
"""

import json
import shutil
from pathlib import Path
from typing import Any, Final, cast

from gpu_agent.engines import front
from gpu_agent.engines.docker import json_edit as json_text
from gpu_agent.engines.engine import EngineError
from machine import files, process
from machine import polling as waiting
from machine import systemd as services

CONFIG: Final = Path("/etc/docker/daemon.json")
UNIT: Final = "docker.service"
_NAME: Final = "gpu-ci"
_RUNTIMES, _DEFAULT = "runtimes", "default-runtime"
_ITS_OWN: Final = "runc"  # what Docker calls its own default runtime
# What is to be in that place, and what is there until Docker has taken it over.
_NOTE: Final = Path("/var/lib/gpu-ci/daemon.json")
# What is left of a file that was made for us.
_MADE: Final = "{\n}\n"
_ODD: Final = "surrogateescape"  # what is no UTF-8 stays as it is
_TIMEOUT: Final = 30.0  # seconds, for an answer of dockerd
_PATIENCE: Final = 10.0  # seconds, until it has taken its file over


def ensure(*, default: bool) -> bool:
    """Have Docker know our runtime; True if anything was changed.

    Args:
        default: whether containers that name no runtime get ours.

    Raises:
        EngineError: there is no Docker here, it does not take the file, or the operator has
            something else under the same name.
    """
    if not program():
        raise EngineError(
            "Docker is not on this machine, which container-engines names: install it (sudo "
            "systemctl mask containerd; sudo apt-get install docker.io), or take docker out of it"
        )
    was_killed = _finish()
    former = _read()
    wanted = merged(former, default=default)
    if wanted == former and not was_killed:
        return False
    _validate(wanted)
    if not _switch(wanted):
        _switch(former)
        raise EngineError(f"Docker does not take over {CONFIG}: journalctl -u docker")
    return True


def remove() -> bool:
    """Take our runtime out of Docker; True if it was there."""
    try:
        was_killed = _finish()
        former = _read()
        wanted = without(former) if former else former
    except EngineError:
        return False  # no Docker starts by such a file, so nobody has us by it
    if wanted == former and not was_killed:
        return False
    _switch(None if wanted == _MADE else wanted)
    return True


def merged(text: str | None, *, default: bool) -> str:
    """daemon.json with our runtime; None: there is none.

    Raises:
        EngineError: it is no JSON object, or has another runtime of that name or as default.
    """
    text = _MADE if text is None or not text.strip() else text
    found = _parsed(text)
    runtimes, ours = _object(found.get(_RUNTIMES, {})), {"path": str(front.FRONT)}
    if runtimes is None or runtimes.get(_NAME, ours) != ours:
        raise EngineError(f"{CONFIG} has a runtime {_NAME} of its own: take it out there")
    chosen = found.get(_DEFAULT, "")
    if default and chosen not in ("", _NAME):
        raise EngineError(
            f"{CONFIG} sets Docker's default runtime to {chosen}: take that out there, or set "
            "engine-default-runtime=false"
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


def without(text: str) -> str:
    """daemon.json as it was before `merged`.

    Raises:
        EngineError: it is no JSON object.
    """
    if not text.strip():
        return text
    found = _parsed(text)
    if found.get(_DEFAULT) == _NAME:
        text = json_text.without_member(text, 0, _DEFAULT)
    runtimes = _object(found.get(_RUNTIMES))
    if runtimes is None or runtimes.get(_NAME) != {"path": str(front.FRONT)}:
        return text
    if len(runtimes) == 1:
        return json_text.without_member(text, 0, _RUNTIMES)
    place = next(one.value for one in json_text.members(text) if one.name == _RUNTIMES)
    return json_text.without_member(text, place, _NAME)


def _read() -> str | None:
    """daemon.json, bytes that are no UTF-8 too; None: there is none.

    Raises:
        EngineError: it is a folder, as one is made for who mounts it where there is none.
    """
    try:
        return CONFIG.read_bytes().decode(errors=_ODD)
    except FileNotFoundError:
        return None
    except IsADirectoryError as error:
        raise EngineError(f"{CONFIG} is a folder: remove it") from error


def _parsed(text: str) -> dict[str, Any]:
    try:
        found = _object(json.loads(text, object_pairs_hook=_once))
    except ValueError as error:
        raise EngineError(f"{CONFIG} is no JSON ({error}): repair it") from error
    if found is None:
        raise EngineError(f"{CONFIG} is no JSON object: repair it")
    return found


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """An object of daemon.json: Docker would put together what is said twice.

    Names that differ in case Docker refuses by itself, as options that it does not know.

    Raises:
        ValueError: it says a name twice.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"it says {next(one for one in names if names.count(one) > 1)!r} twice")
    return found


def _object(value: object) -> dict[str, Any] | None:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def program(name: str = "dockerd") -> str:
    """Path of one of Docker's programs; empty where it is not here."""
    return shutil.which(name, path="/usr/bin:/usr/sbin:/usr/local/bin:/usr/local/sbin") or ""


def _validate(text: str) -> None:
    """Have Docker itself look at a file before it is its own; releases before 23 can't.

    Raises:
        EngineError: it does not take it.
    """
    tried = _NOTE.with_name("daemon.json.tried")
    files.ensure_directory(tried.parent)
    files.ensure_file(tried, text.encode(errors=_ODD), mode=0o600)
    try:
        argv = [program(), "--validate", f"--config-file={tried}"]
        done = process.run(argv, timeout=_TIMEOUT, check=False)
    finally:
        files.ensure_absent(tried)
    said = f"{done.stderr}{done.stdout}".strip()
    if done.returncode and "unknown flag: --validate" not in said:
        raise EngineError(f"dockerd --validate refuses {CONFIG} with our runtime: {said[-300:]}")


def _switch(wanted: str | None) -> bool:
    """Put daemon.json in its place and have a Docker that runs go by it; whether that does.

    A key that is gone says nothing to it on SIGHUP: it would go on with our runtime, as its
    default too, when that is no more. So both keys are said outright for that moment.
    """
    said: dict[str, Any] = {_RUNTIMES: {}, _DEFAULT: _ITS_OWN, **_parsed(wanted or "{}")}
    meanwhile = json.dumps(said)
    files.ensure_directory(_NOTE.parent)
    note = json.dumps({"text": wanted, "meanwhile": meanwhile})
    files.ensure_file(_NOTE, note + "\n", mode=0o600)
    _put(meanwhile)
    done = _takes_over(said)
    _finish()
    return done


def _finish() -> bool:
    """Put the file in its place that a moment of `_switch` was for; whether there was one."""
    noted = files.read_text(_NOTE)
    if noted is None:
        return False
    note = json.loads(noted)
    # Who has edited it after a hook was killed has the last word.
    if _read() == note["meanwhile"]:
        _put(note["text"])
    return files.ensure_absent(_NOTE)


def _put(text: str | None) -> None:
    if text is None:
        files.ensure_absent(CONFIG)
        files.remove_if_empty(CONFIG.parent)
        return
    data = text.encode(errors=_ODD)
    if CONFIG.exists():
        files.rewrite(CONFIG, data)
    else:
        files.ensure_directory(CONFIG.parent)
        files.ensure_file(CONFIG, data)


def _takes_over(said: dict[str, Any]) -> bool:
    """Have a Docker that runs read its file; whether it goes by these keys then."""
    if not services.reload(UNIT):
        return True
    argv = [program("docker"), "info", "--format", "{{json .Runtimes}} {{.DefaultRuntime}}"]

    def follows() -> bool:
        told = process.run(argv, timeout=_TIMEOUT, check=False).stdout
        knows = f'"{_NAME}"' in told.rpartition(" ")[0]
        return knows == (_NAME in (said[_RUNTIMES] or {})) and told.split()[-1:] == [
            said[_DEFAULT]
        ]

    return waiting.until(follows, _PATIENCE)
