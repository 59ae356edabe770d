#!/usr/bin/python3 -IS
# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Run a command with GPUs of this machine, after a wait in the queue. See gpu-run(1).

It runs as its caller and requests a lease from the service of gpu-ci-worker. The service moves it
into a control group with those GPUs; then it becomes the command. One file, standard library only.
"""

import argparse
import grp
import json
import operator
import os
import pathlib
import re
import signal
import socket
import sys
import typing

# Tests use another path. A service there decides only what this process prints and runs.
_SOCKET: typing.Final = "/run/gpu-run.sock"
_MOST: typing.Final = 1 << 20
_DURATION: typing.Final = re.compile(
    r"(?:([0-9]{1,6})d)?(?:([0-9]{1,6})h)?(?:([0-9]{1,6})m)?(?:([0-9]{1,6})s)?"
)
_UNITS: typing.Final = (86400, 3600, 60, 1)
_LONGEST: typing.Final = 7 * 86400
# As timeout(1), env(1) and the shell have them.
_TIMED_OUT, _FAILED, _NOT_EXECUTABLE, _NOT_FOUND = 124, 125, 126, 127


class FailedError(Exception):
    """The command can't be run; the text says why.

    Attributes:
        code: the reason for programs, one of gpu_runtime.refusal_codes.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> typing.NoReturn:
        self.print_usage(sys.stderr)
        self.exit(_FAILED, f"gpu-run: {message}\n")


def main() -> int:
    """Run gpu-run; return the exit status if no command replaces this process."""
    # A signal ends the wait at once and silently, and the command inherits the usual handlers.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    asked = _arguments()
    try:
        with _connect() as connection:
            last = _ask(connection, asked)
        if last["event"] == "list":
            shown = json.dumps(last["json"], indent=1) if asked.json else last["text"]
            sys.stdout.write(f"{shown}\n")
            return 0
        if last["event"] != "granted":
            _say(f"{last['code']}: {last['text']}", last, asked)
            return _TIMED_OUT if last["code"] == "wait-timeout" else _FAILED
        _say(last["text"], last, asked)
        return _become(asked.command, last["environment"])
    except FailedError as error:
        code, text = error.code, str(error)
    except (OSError, ValueError, KeyError, TypeError) as error:
        code, text = "internal-error", f"unexpected answer of the gpu-run service: {error!r}"
    _say(f"{code}: {text}", {"event": "failed", "code": code, "text": text}, asked)
    return _FAILED


def _arguments() -> argparse.Namespace:
    usage = "gpu-run [OPTION]... [--] COMMAND [ARGUMENT]...\n       gpu-run --list [--json]"
    parser = _Parser("gpu-run", usage, "See gpu-run(1).", allow_abbrev=False)
    add = parser.add_argument
    add("--gpus", metavar="N", type=_count, help="number of GPUs, or all (default: 1)")
    add(
        "--gpu",
        metavar="ID",
        action="append",
        help="a particular GPU, by index or UUID; repeatable",
    )
    add("--any", action="store_true", help="accept fewer GPUs, at least one, if not all are free")
    add("--timeout", metavar="TIME", type=_seconds, help="longest wait: 90s, 30m, 1h30m; 0: none")
    add("--json", action="store_true", help="report progress as JSON, one object per line")
    add("--list", action="store_true", help="show the GPUs, their holders and the queue")
    add("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.command[:1] == ["--"]:
        del asked.command[0]
    if asked.gpu and (asked.gpus or asked.any):
        parser.error("--gpu names the GPUs: use it without --gpus and --any")
    if bool(asked.command) == asked.list:
        parser.error("give a command to run, or --list")
    return asked


def _count(text: str) -> int | str:
    short = text.isascii() and text.isdecimal() and len(text) < 4
    if text != "all" and not (short and 0 < int(text) <= 128):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of GPUs: use 1 to 128, or all")
    return text if text == "all" else int(text)


def _seconds(text: str) -> int:
    found = _DURATION.fullmatch(text)
    numbers = [int(number or 0) for number in found.groups()] if found and text else [-1]
    seconds = sum(map(operator.mul, numbers, _UNITS)) if text != "0" else 0
    if not 0 <= seconds <= _LONGEST:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a duration up to 7d: use one such as 90s, 30m, 1h30m, or 0s"
        )
    return seconds


def _connect() -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(_SOCKET)
    except FileNotFoundError as error:
        raise FailedError(
            "gpu-run-not-set-up",
            "gpu-run is not enabled on this machine. Its operator enables it with the option "
            "gpu-run-group",
        ) from error
    except PermissionError as error:
        raise FailedError(
            "gpu-run-not-permitted",
            f"only members of the group {_group()} may use gpu-run. Ask to be added, then log in "
            "again",
        ) from error
    except OSError as error:
        raise FailedError(
            "gpu-run-unreachable",
            f"cannot connect to the gpu-run service: {error.strerror}. Try again",
        ) from error
    return connection


def _group() -> str:
    """Return the group that may connect."""
    number = pathlib.Path(_SOCKET).stat().st_gid
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


def _ask(connection: socket.socket, asked: argparse.Namespace) -> dict[str, typing.Any]:
    """Send the request; print waiting events, and return the last event."""
    hello = _hear(connection)
    if hello["event"] != "hello":
        return hello
    message: dict[str, object] = {
        "version": 1,
        "nonce": hello["nonce"],
        "do": "list" if asked.list else "run",
        "gpus": asked.gpus or 1,
        "named": asked.gpu or [],
        "any": asked.any,
        "timeout": asked.timeout,
        "command": "" if asked.list else _name(asked.command),
    }
    connection.send(json.dumps(message).encode())
    while (heard := _hear(connection))["event"] == "waiting":
        _say(heard["text"], heard, asked)
    return heard


def _name(command: list[str]) -> str:
    """Return the program and, if it is a file, its first argument: others can be secrets."""
    # Path.is_file raises errors for forbidden folders and for long words.
    files = [word for word in command[1:2] if os.path.isfile(word)]  # noqa: PTH113
    words = [pathlib.PurePath(word).name for word in (command[0], *files)]
    return " ".join(words).encode(errors="replace").decode()[:200]


def _hear(connection: socket.socket) -> dict[str, typing.Any]:
    try:
        data = connection.recv(_MOST)
    except ConnectionError:
        data = b""
    if not data:
        raise FailedError(
            "gpu-run-unreachable",
            "the gpu-run service ended the connection: too many commands wait, or it was stopped. "
            "Try again",
        )
    return json.loads(data)


def _say(text: str, event: dict[str, typing.Any], asked: argparse.Namespace) -> None:
    line = json.dumps(event) if asked.json else f"gpu-run: {text}"
    if text or asked.json:
        sys.stderr.write(f"{line}\n")


def _become(command: list[str], added: dict[str, str]) -> int:
    # The original variables: Python itself may have added LC_CTYPE.
    given = pathlib.Path("/proc/self/environ").read_bytes()
    entries = [entry.partition(b"=") for entry in given.split(b"\0") if entry]
    environment = {name: value for name, _, value in entries}
    environment |= {os.fsencode(name): os.fsencode(value) for name, value in added.items()}
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606
    except OSError as error:
        sys.stderr.write(f"gpu-run: {command[0]}: {error.strerror}\n")
        return _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE


if __name__ == "__main__":
    sys.exit(main())
