#!/usr/bin/python3 -IS
# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Run a command with GPUs of this machine, when it is its turn. See gpu-run(1).

It runs as whoever calls it, asks the service of gpu-ci-worker for a lease, is put into a control
group with those GPUs by it, and then becomes the command. Standard library only, and one file.
"""

import argparse
import grp
import json
import os
import pathlib
import signal
import socket
import sys
import typing

# Other places are for tests: who speaks there decides nothing but what this process is told.
_SOCKET: typing.Final = "/run/gpu-run.sock"
_MOST: typing.Final = 1 << 20
_WORDS: typing.Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_NO_LIMIT: typing.Final = 7 * 86400
# As timeout(1), env(1) and the shell have them.
_TIMED_OUT, _FAILED, _NOT_EXECUTABLE, _NOT_FOUND = 124, 125, 126, 127


class FailedError(Exception):
    """It can't be done; the text says why."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> typing.NoReturn:
        self.print_usage(sys.stderr)
        self.exit(_FAILED, f"gpu-run: {message}\n")


def main() -> int:
    """Do as told; return the exit status where no command takes this process's place."""
    # Whoever waits is to end at once, without words; and the command is to find them as they were.
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
            _say(last["text"], last, asked)
            return _TIMED_OUT if last.get("expired") else _FAILED
        _say(last["text"], last, asked)
        return _become(asked.command, last["environment"])
    except (FailedError, OSError, ValueError, KeyError, TypeError) as error:
        text = str(error) if isinstance(error, FailedError) else f"the service said {error!r}"
        _say(text, {"event": "failed", "text": text}, asked)
        return _FAILED


def _arguments() -> argparse.Namespace:
    usage = "gpu-run [OPTION]... [--] COMMAND [ARGUMENT]...\n       gpu-run --list [--json]"
    parser = _Parser("gpu-run", usage, "See gpu-run(1).", allow_abbrev=False)
    add = parser.add_argument
    add("--gpus", metavar="N", type=_count, help="how many GPUs, or all (default: 1)")
    add("--gpu", metavar="ID", action="append", help="this very GPU, by index or UUID; repeatable")
    add("--any", action="store_true", help="take fewer where not all are free, one at least")
    add("--timeout", metavar="TIME", type=_seconds, help="wait so long: 90, 30m, 2h or none")
    add("--json", action="store_true", help="say what happens as JSON, one object a line")
    add("--list", action="store_true", help="show the GPUs, who has them and who waits")
    add("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.command[:1] == ["--"]:
        del asked.command[0]
    if asked.gpu and (asked.gpus or asked.any):
        parser.error("--gpu names the GPUs: give neither --gpus nor --any beside it")
    if bool(asked.command) == asked.list:
        parser.error("give a command to run, or --list")
    return asked


def _count(text: str) -> int | str:
    short = text.isascii() and text.isdecimal() and len(text) < 4
    if text != "all" and not (short and 0 < int(text) <= 128):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of GPUs: use 1 to 128, or all")
    return text if text == "all" else int(text)


def _seconds(text: str) -> int:
    if text == "none":
        return _NO_LIMIT
    number, unit = (text[:-1], text[-1:]) if text[-1:] in _WORDS else (text, "s")
    short = number.isascii() and number.isdecimal() and len(number) < 7
    seconds = int(number) * _WORDS[unit] if short else -1
    if not 0 <= seconds <= _NO_LIMIT:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: use one such as 90, 30m, 2h, none")
    return seconds


def _connect() -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(_SOCKET)
    except FileNotFoundError as error:
        raise FailedError(
            "it is not set up on this machine: its operator's option gpu-run-group does that"
        ) from error
    except PermissionError as error:
        raise FailedError(
            f"only members of the group {_group()} may: ask for that, then log in anew"
        ) from error
    except OSError as error:
        raise FailedError(f"the service can't be reached: {error.strerror}") from error
    return connection


def _group() -> str:
    """Who may connect."""
    number = pathlib.Path(_SOCKET).stat().st_gid
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


def _ask(connection: socket.socket, asked: argparse.Namespace) -> dict[str, typing.Any]:
    """Send the request; return the last word, those before are told on stderr."""
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
    """The program, and the file that it is to run, if any: other words can be secrets."""
    # A Path's own is_file fails where it may not look, and for a word that is too long.
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
            "the service has ended the connection: too many may wait, or it was stopped; try again"
        )
    return json.loads(data)


def _say(text: str, event: dict[str, typing.Any], asked: argparse.Namespace) -> None:
    line = json.dumps(event) if asked.json else f"gpu-run: {text}"
    if text or asked.json:
        sys.stderr.write(f"{line}\n")


def _become(command: list[str], added: dict[str, str]) -> int:
    # As this process was given them: Python itself may have added LC_CTYPE.
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
