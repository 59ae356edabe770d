# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The settings of a machine without Juju: /etc/gpu-ci/agent.json.

Its keys are named as the charm's options that the agent reads. A key that is missing has its
default, so that a later version reads the file of an earlier one.
"""

import collections.abc
import dataclasses
import json
import pathlib
import re
import typing

from gpu_agent import paths
from gpu_agent.engines import registry as engines
from gpu_agent.gpu.vendors import registry as vendors
from machine import files
from machine.errors import PartError

PATH: typing.Final = paths.CONFIG / "agent.json"
VERSION: typing.Final = 1

_VENDORS: typing.Final = ("auto", *vendors.NAMES)
_ENGINES: typing.Final = tuple(
    word for engine in engines.ALL for word in (engine.name, f"{engine.name}=default")
)
_GROUP: typing.Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,30}")
_CAPABILITY: typing.Final = re.compile(r"[0-9]{1,2}\.[0-9]")
_DRIVER: typing.Final = re.compile(r"[0-9]{3,4}(\.[0-9]{1,4}){0,2}")


class SettingsError(PartError):
    """A setting cannot be used. Each line of the text has file, key, value and remedy."""


@dataclasses.dataclass(frozen=True)
class Minimums:
    """The least that the self-test accepts of the machine and of each GPU; 0 or empty: any.

    Attributes:
        cpus: processors of the machine.
        memory: memory of the machine in GiB, as sold.
        gpu_memory: memory of each GPU in GiB, as sold.
        compute_capability: CUDA compute capability of each GPU, such as `7.0`.
        driver: version of the driver, such as `535` or `580.65.06`.
    """

    cpus: int = 0
    memory: int = 0
    gpu_memory: int = 0
    compute_capability: str = ""
    driver: str = ""


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings, as docs/reference/agent-settings.md describes them.

    Attributes:
        gpu_vendor: a vendor's name, or `auto`.
        gpu_device_ids: indexes, UUIDs or PCI addresses of the GPUs to hand out; empty: all.
        gpu_allocation: `exclusive` or `shared`.
        gpus_per_task: GPUs of a request without a number.
        gpu_wait_timeout: longest wait of a request in seconds.
        gpu_for_privileged_tasks: whether privileged containers may have GPUs.
        container_engines: engines that get the runtime; `podman=default`: as their default.
        gpu_run_group: the group whose members may use gpu-run; empty: gpu-run is not available.
        allow_vulnerable_toolkit: whether a container toolkit with known vulnerabilities is used.
        selftest_on_start: whether to test at each boot and after each change.
        selftest_wheels: path of an archive of wheels for the level compute; or empty.
        minimums: what the self-test requires.
        gpu_health: `enabled`, `observe` or `disabled`.
        quarantine_limit_percent: limit of the health service's circuit breaker.
        gpu_metrics_port: TCP port of the GPU metrics; 0: none.
    """

    gpu_vendor: str = "auto"
    gpu_device_ids: tuple[str, ...] = ()
    gpu_allocation: str = "exclusive"
    gpus_per_task: int = 1
    gpu_wait_timeout: int = 240
    gpu_for_privileged_tasks: bool = False
    container_engines: tuple[str, ...] = ()
    gpu_run_group: str = ""
    allow_vulnerable_toolkit: bool = False
    selftest_on_start: bool = True
    selftest_wheels: str = ""
    minimums: Minimums = Minimums()
    gpu_health: str = "enabled"
    quarantine_limit_percent: int = 50
    gpu_metrics_port: int = 335

    @property
    def engines(self) -> tuple[str, ...]:
        """The names of the engines that get the runtime."""
        return tuple(item.partition("=")[0] for item in self.container_engines)

    @property
    def default_engines(self) -> tuple[str, ...]:
        """The names of those whose containers get it without naming it."""
        return tuple(item.partition("=")[0] for item in self.container_engines if "=" in item)


def as_text(settings: Settings) -> str:
    """Return the content of the file."""
    plain = {"version": VERSION, **_with_hyphens(dataclasses.asdict(settings))}
    return json.dumps(plain, indent=1) + "\n"


def read(path: pathlib.Path = PATH) -> Settings | None:
    """Read the file. Return None if there is none.

    Raises:
        SettingsError: as for `parse`; or it is not UTF-8.
        OSError: it cannot be read.
    """
    try:
        text = files.read_text(path)
    except UnicodeDecodeError as error:
        raise SettingsError(
            f"{PATH}: no UTF-8: {error}. Repair it, or remove it: install writes the defaults"
        ) from error
    return None if text is None else parse(text)


def parse(text: str) -> Settings:
    """Read the text of the file.

    Raises:
        SettingsError: it is no JSON, of a later version, or has keys or values that cannot be
            used; all of these are named.
    """
    try:
        found: object = json.loads(text)
        return _settings(found)
    except RecursionError as error:
        raise SettingsError(
            f"{PATH}: nested too deeply. Repair it, or remove it: install writes the defaults"
        ) from error
    except ValueError as error:
        raise SettingsError(
            f"{PATH}: no JSON: {error}. Repair it, or remove it: install writes the defaults"
        ) from error


def _settings(found: object) -> Settings:
    """Return the settings of a file's JSON.

    Raises:
        SettingsError: as for `parse`.
    """
    if not isinstance(found, dict):
        raise SettingsError(f"{PATH}: no JSON object. Remove it: install writes the defaults")
    values = typing.cast("dict[str, object]", found)
    version = values.pop("version", None)
    if type(version) is not int or version < 1:
        raise _wrong("version", version, f"use {VERSION}")
    if version > VERSION:
        raise _wrong(
            "version",
            version,
            f"this agent reads versions up to {VERSION}. Install "
            "the newer agent that wrote the file, or set version and keys back",
        )
    return Settings(**_checked(values, _CHECKS, ""))


def _checked(
    values: dict[str, object], checks: "collections.abc.Mapping[str, _Check]", within: str
) -> dict[str, typing.Any]:
    """Return the fields of these values.

    Raises:
        SettingsError: some cannot be used.
    """
    fields: dict[str, typing.Any] = {}
    wrong: list[str] = []
    for key, value in values.items():
        try:
            if key not in checks:
                raise _wrong(f"{within}{key}", value, f"no such setting. Use {', '.join(checks)}")
            fields[key.replace("-", "_")] = checks[key](f"{within}{key}", value)
        except SettingsError as error:
            wrong.append(str(error))
    if wrong:
        raise SettingsError("\n".join(wrong))
    return fields


_Check = collections.abc.Callable[[str, object], typing.Any]


def _wrong(key: str, value: object, remedy: str) -> SettingsError:
    shown = json.dumps(value)
    shown = shown if len(shown) <= 64 else f"{shown[:61]}..."
    return SettingsError(f'{PATH}: "{key}" is {shown}: {remedy}')


def _choice(*allowed: str) -> _Check:
    def check(key: str, value: object) -> str:
        if value not in allowed:
            raise _wrong(key, value, f"use {', '.join(allowed[:-1])} or {allowed[-1]}")
        return str(value)

    return check


def _number(most: int, least: int = 0) -> _Check:
    def check(key: str, value: object) -> int:
        if type(value) is not int or not least <= value <= most:
            raise _wrong(key, value, f"use a whole number from {least} to {most}")
        return value

    return check


def _flag(key: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise _wrong(key, value, "use true or false")
    return value


def _text(allowed: re.Pattern[str], example: str) -> _Check:
    def check(key: str, value: object) -> str:
        if not isinstance(value, str) or (value and not allowed.fullmatch(value)):
            raise _wrong(key, value, f"use one such as {json.dumps(example)}, or an empty text")
        return value

    return check


def _items(value: object) -> list[object]:
    """Return a list's items; nothing for any other value."""
    return typing.cast("list[object]", value) if isinstance(value, list) else []


def _ids(key: str, value: object) -> tuple[str, ...]:
    if value == "all":
        return ()
    items = _items(value)
    if not items or not all(type(one) is int or (isinstance(one, str) and one) for one in items):
        raise _wrong(
            key,
            value,
            'use "all", or a list of indexes, UUIDs and PCI addresses, such '
            'as [0, "0000:41:00.0"]',
        )
    return tuple(dict.fromkeys(map(str, items)))


def _engines(key: str, value: object) -> tuple[str, ...]:
    items = _items(value)
    names = {str(item).partition("=")[0] for item in items}
    if value != items or not all(item in _ENGINES for item in items) or len(names) < len(items):
        raise _wrong(key, value, f"use a list of {', '.join(_ENGINES)}, each engine once")
    return tuple(map(str, items))


def _minimums(key: str, value: object) -> Minimums:
    if not isinstance(value, dict):
        raise _wrong(key, value, f"use an object with some of {', '.join(_MINIMUMS)}")
    return Minimums(**_checked(typing.cast("dict[str, object]", value), _MINIMUMS, f"{key}."))


def _with_hyphens(fields: dict[str, typing.Any]) -> dict[str, object]:
    plain = {key.replace("_", "-"): value for key, value in fields.items()}
    if "minimums" in plain:
        plain["minimums"] = _with_hyphens(plain["minimums"])
        plain["gpu-device-ids"] = plain["gpu-device-ids"] or "all"
    return plain


_MINIMUMS: typing.Final[collections.abc.Mapping[str, _Check]] = {
    "cpus": _number(9999),
    "memory": _number(99999),
    "gpu-memory": _number(9999),
    "compute-capability": _text(_CAPABILITY, "7.0"),
    "driver": _text(_DRIVER, "580.65.06"),
}
_CHECKS: typing.Final[collections.abc.Mapping[str, _Check]] = {
    "gpu-vendor": _choice(*_VENDORS),
    "gpu-device-ids": _ids,
    "gpu-allocation": _choice("exclusive", "shared"),
    "gpus-per-task": _number(128),
    "gpu-wait-timeout": _number(1800),
    "gpu-for-privileged-tasks": _flag,
    "container-engines": _engines,
    "gpu-run-group": _text(_GROUP, "gpu-users"),
    "allow-vulnerable-toolkit": _flag,
    "selftest-on-start": _flag,
    "selftest-wheels": _text(re.compile(r"/[ -~]+"), "/srv/wheels.tar.gz"),
    "minimums": _minimums,
    "gpu-health": _choice("enabled", "observe", "disabled"),
    "quarantine-limit-percent": _number(100, 1),
    "gpu-metrics-port": _number(65535),
}
