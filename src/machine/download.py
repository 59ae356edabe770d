# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Fetches a large file: resumed where it was cut off, checked, and only then put in its place.

Or a short text, for who asks to check.
"""

import collections.abc
import errno
import functools
import hashlib
import http
import http.client
import pathlib
import ssl
import typing
import urllib.error
import urllib.parse
import urllib.request

import tenacity

from machine import process

_CHUNK: typing.Final = 1 << 20
_STEP: typing.Final = 10  # per cent between two messages
_ATTEMPTS: typing.Final = 5
_TIMEOUT: typing.Final = 60.0  # seconds without a byte
_TEXT_TIMEOUT: typing.Final = 20.0  # the same, for what is short
_REMEDY: typing.Final = "Check concourse-version, or give the tarball with juju attach-resource"
_FAILURES: typing.Final = (
    urllib.error.URLError, TimeoutError, ConnectionError, ssl.SSLError, http.client.HTTPException,
)  # fmt: skip
_Result = typing.TypeVar("_Result")


class DownloadError(Exception):
    """A file can't be had. The text names the address, what is wrong and the next step.

    Attributes:
        passes: whether it may work at the next event.
    """

    passes: typing.ClassVar = False


class UnreachableError(DownloadError):
    """A file can't be had now."""

    passes: typing.ClassVar = True


class _PassingError(Exception):
    """What may work when tried again."""


def fetch(
    url: str,
    destination: pathlib.Path,
    sha256: str,
    progress: collections.abc.Callable[[str], None],
) -> None:
    """Download a file. Nothing is done if it is there already; its name means that it was checked.

    What has arrived is kept in `<destination>.part`, from which a later run goes on.

    Args:
        url: where it is; the Juju model's proxies are used.
        destination: where it goes; the directory must exist.
        sha256: of the whole file, in hex.
        progress: told from time to time how far it is.

    Raises:
        UnreachableError: if it can't be had now.
        DownloadError: if it can't be had at all, or is not the file expected.
    """
    if destination.exists():
        return
    part = destination.with_name(f"{destination.name}.part")
    _receive_patiently(url, part, progress)
    got = sha256_of(part)
    if got != sha256.lower():
        part.unlink()
        raise DownloadError(
            f"{url} is not the file expected: its SHA-256 should be {sha256.lower()} but is "
            f"{got}. Nothing was installed. Report this to the charm's authors; do not work "
            "around it"
        )
    part.replace(destination)


def text(url: str, limit: int, remedy: str) -> str:
    """Download a short text. What is no UTF-8 comes as U+FFFD.

    Args:
        url: where it is; the Juju model's proxies are used.
        limit: the most bytes that it may have.
        remedy: what the operator does where the server has it not, such as `Check the option x`.

    Raises:
        UnreachableError: if it can't be had now.
        DownloadError: if it can't be had at all, or is longer.
    """
    return _patiently(url, functools.partial(_read, url, limit, remedy))


def _patiently(url: str, work: collections.abc.Callable[[], _Result]) -> _Result:
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(_PassingError),
        stop=tenacity.stop_after_attempt(_ATTEMPTS),
        wait=tenacity.wait_exponential(multiplier=1, max=20),
        reraise=True,
    )
    try:
        return retrying(work)
    except _PassingError as error:
        raise UnreachableError(
            f"{url} can't be downloaded: {error}. Check the network and the model's proxies "
            "(juju model-config juju-https-proxy); the next event tries again"
        ) from error


def _receive_patiently(
    url: str, part: pathlib.Path, progress: collections.abc.Callable[[str], None]
) -> None:
    try:
        _patiently(url, functools.partial(_receive, url, part, progress))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise DownloadError(
            f"{url} can't be downloaded: the disk of {part.parent} is full: make room there"
        ) from error


def sha256_of(path: pathlib.Path) -> str:
    """The SHA-256 of a file, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _receive(
    url: str, part: pathlib.Path, progress: collections.abc.Callable[[str], None]
) -> None:
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})  # noqa: S310
    try:
        with _opener(url).open(request, timeout=_TIMEOUT) as response:
            if response.status != http.HTTPStatus.PARTIAL_CONTENT:
                have = 0
            total = have + int(response.headers.get("Content-Length") or 0)
            _store(response, part, have, total, progress)
    except _FAILURES as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
            if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                return  # all of it is here: the checksum tells
        raise _failure(url, error, _REMEDY) from error


def _read(url: str, limit: int, remedy: str) -> str:
    try:
        with _opener(url).open(url, timeout=_TEXT_TIMEOUT) as response:
            announced = int(response.headers.get("Content-Length") or 0)
            data = _next(response, limit + 1)
    except _FAILURES as error:
        raise _failure(url, error, remedy) from error
    if max(announced, len(data)) > limit:
        raise DownloadError(
            f"{url} is not the file expected: it has more than {limit >> 10} KiB. {remedy}"
        )
    if len(data) < announced:
        raise _PassingError(f"the connection broke after {len(data)} of {announced} bytes")
    return data.decode(errors="replace")


def _failure(url: str, error: Exception, remedy: str) -> DownloadError | _PassingError:
    """What is to be raised for one of _FAILURES."""
    if isinstance(error, urllib.error.HTTPError):
        error.close()
        text = f"the server answered {error.code} {error.reason}"
        if error.code in (408, 429) or error.code >= 500:
            return _PassingError(text)
        return DownloadError(f"{url} can't be downloaded: {text}. {remedy}")
    if isinstance(error, urllib.error.URLError):
        return _PassingError(str(error.reason))
    return _PassingError(str(error) or type(error).__name__)


def _opener(url: str) -> urllib.request.OpenerDirector:
    found = process.proxies()
    host = urllib.parse.urlsplit(url).hostname or ""
    direct = [name.strip().lstrip(".") for name in found.pop("no_proxy", "").split(",")]
    if any(name in ("*", host) or (name and host.endswith(f".{name}")) for name in direct):
        found = {}
    schemes = {name.removesuffix("_proxy"): found[name] for name in found}
    return urllib.request.build_opener(urllib.request.ProxyHandler(schemes))


def _next(response: http.client.HTTPResponse, most: int) -> bytes:
    try:
        return response.read(most)
    except OSError as error:  # such as EHOSTUNREACH, which is none of _FAILURES
        raise _PassingError(str(error) or type(error).__name__) from error


def _store(
    response: http.client.HTTPResponse,
    part: pathlib.Path,
    have: int,
    total: int,
    progress: collections.abc.Callable[[str], None],
) -> None:
    said = have * 100 // total // _STEP if total else 0
    with part.open("r+b" if have else "wb") as file:
        file.seek(have)
        while chunk := _next(response, _CHUNK):
            file.write(chunk)
            have += len(chunk)
            if total and have * 100 // total // _STEP > said:
                said = have * 100 // total // _STEP
                progress(f"Downloading {part.stem}: {said * _STEP} % of {total >> 20} MiB")
    if have < total:
        raise _PassingError(f"the connection broke after {have} of {total} bytes")
