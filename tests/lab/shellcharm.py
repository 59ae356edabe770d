# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A charm of a few lines of shell, to try the lab's Juju semantics with."""

import pathlib
import zipfile

import yaml

from tests.lab.juju.model import Model

# Each hook appends its name and what matters of its environment to /var/log/hooks, then runs the
# script that the charm, or the test in the machine, has for it.
DISPATCH = """\
#!/bin/sh
name=${JUJU_DISPATCH_PATH##*/}
remote=${JUJU_REMOTE_UNIT:-${JUJU_REMOTE_APP:-}}
echo "$name $remote ${JUJU_DEPARTING_UNIT:+departing $JUJU_DEPARTING_UNIT}" >>/var/log/hooks
for script in /srv/hooks/$name hooks.d/$name; do
  if [ -e "$script" ]; then . "$script"; fi
done
exit 0
"""
METADATA = {
    "name": "shell",
    "provides": {"server": {"interface": "chat"}},
    "requires": {"client": {"interface": "chat"}},
    "peers": {"peers": {"interface": "shell_peers"}},
    "resources": {"blob": {"type": "file", "filename": "blob.bin"}},
}
CONFIG = {
    "options": {
        "colour": {"type": "string", "default": "blue"},
        "size": {"type": "int", "default": 3},
        "loud": {"type": "boolean", "default": False},
        "key": {"type": "secret"},
    }
}
ACTIONS = {
    "greet": {
        "params": {
            "name": {"type": "string", "default": "you", "maxLength": 5},
            "loud": {"type": "boolean"},
        },
        "additionalProperties": False,
    },
    "break": {},
}


def pack(path: pathlib.Path, hooks: dict[str, str] | None = None) -> pathlib.Path:
    """Write the charm to `path`.

    Args:
        path: of the .charm file.
        hooks: hook or action name -> shell text.
    """
    with zipfile.ZipFile(path, "w") as archive:
        info = zipfile.ZipInfo("dispatch")
        info.external_attr = 0o755 << 16
        archive.writestr(info, DISPATCH)
        for name, content in (("metadata", METADATA), ("config", CONFIG), ("actions", ACTIONS)):
            archive.writestr(f"{name}.yaml", yaml.safe_dump(content))
        for name, text in (hooks or {}).items():
            archive.writestr(f"hooks.d/{name}", text)
    return path


def hooks_of(model: Model, unit: str) -> list[str]:
    text = machine(model, unit).read("/var/log/hooks")
    return [line.strip() for line in text.splitlines()]


def forget_hooks(model: Model, unit: str) -> None:
    machine(model, unit).enter("/bin/rm", "-f", "/var/log/hooks")


def machine(model: Model, unit: str):
    return model.machine(unit)


def behave(model: Model, unit: str, hook: str, script: str) -> None:
    """From now on the unit runs this script in a hook."""
    machine(model, unit).write(f"/srv/hooks/{hook}", script)


def log_of(model: Model, unit: str) -> str:
    return model.controller.log_path(unit).read_text()


def run_script(model: Model, unit: str, script: str) -> str:
    """Run a script as the unit's update-status; what it wrote."""
    behave(model, unit, "update-status", f"exec >/srv/out 2>&1\n{script}\n")
    model.controller.fire(unit, "update-status")
    return machine(model, unit).read("/srv/out")
