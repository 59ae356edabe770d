# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Download a large file: resume it, check it, and only then move it to its place.

Or download a short text without a check.
"""

import collections.abc
import dataclasses
import errno
import functools
import hashlib
import http
import http.client
import json
import pathlib
import re
import shutil
import ssl
import time
import typing
import urllib.error
import urllib.parse
import urllib.request

import tenacity

from machine import files
from machine import http_deadline as deadline
from machine.errors import PartError
from machine.http_client import Open, opener

_CHUNK: typing.Final = 1 << 20
_STEP: typing.Final = 10  # per cent between two progress messages
_SAID: typing.Final = 30.0  # seconds between two messages of a slow download
_TIMEOUT: typing.Final = 60.0  # seconds without a byte
_TEXT_TIMEOUT: typing.Final = 20.0  # the same, for a short text
# In seconds. A server that sent another file is not asked again before, at every event.
_REFUSED: typing.Final = 3600.0
_FAILURES: typing.Final = (
    urllib.error.URLError, TimeoutError, ConnectionError, ssl.SSLError, http.client.HTTPException,
)  # fmt: skip
_Result = typing.TypeVar("_Result")


class DownloadError(PartError):
    """A file can't be downloaded. The text names the address, the error and the next step."""


class UnreachableError(DownloadError):
    """A file can't be downloaded now."""

    passes = True


class _PassingError(Exception):
    """An error that may pass if the download is tried again."""


@dataclasses.dataclass(frozen=True)
class Bounds:
    """The limits of a download; a server may send without end, or a byte a minute.

    Attributes:
        size: the largest size of the file, in bytes.
        room: how many bytes of the disk must stay free for each byte of the file, for what is
            made of it.
        seconds: the longest time of one run, with all attempts; the next run resumes.
        attempts: how often it is tried.
        pause: the longest time between two attempts, in seconds; the first time is a second, and
            each is twice as long as the one before.
    """

    size: int = 4 << 30
    room: float = 0.0
    seconds: float = 1800.0
    attempts: int = 5
    pause: float = 20.0


class Marks:
    """The points of a download at which it reports how far it is: each 10 %, and each half minute.

    Args:
        have: how many bytes have arrived before.
        total: how many bytes there will be; 0: that is unknown.
        now: the time in seconds.
    """

    def __init__(self, have: int, total: int, now: float) -> None:
        self._total, self._told = total, now
        self._said = self._step(have)

    def passed(self, have: int, now: float) -> str:
        """Return how far the download is, if it has passed a mark; else an empty text."""
        step = self._step(have)
        if step <= self._said and now - self._told < _SAID:
            return ""
        self._said, self._told = step, now
        if not self._total:
            return f"{have >> 20} MiB"
        return f"{have * 100 // self._total} % of {self._total >> 20} MiB"

    def _step(self, have: int) -> int:
        return have * 100 // self._total // _STEP if self._total else 0


@dataclasses.dataclass(frozen=True)
class _Arrival:
    """A file to download."""

    url: str
    part: pathlib.Path
    progress: collections.abc.Callable[[str], None]
    bounds: Bounds
    remedy: str

    def check_room(self, have: int, total: int) -> None:
        """Refuse a file that is too large, by itself or for the disk."""
        if max(have, total) > self.bounds.size:
            self.part.unlink(missing_ok=True)
            raise DownloadError(
                f"{self.url} is not the expected file: it is larger than "
                f"{self.bounds.size >> 20} MiB. {self.remedy}"
            )
        needed = total - have + int(total * self.bounds.room)
        free = shutil.disk_usage(self.part.parent).free
        if needed > free:
            raise DownloadError(
                f"{self.url} and what is made of it need about {needed >> 20} MiB more in "
                f"{self.part.parent}, but {free >> 20} MiB are free: make room there"
            )


def fetch(
    url: str,
    destination: pathlib.Path,
    sha256: str,
    progress: collections.abc.Callable[[str], None],
    bounds: Bounds = Bounds(),
    remedy: str = "Check the address",
) -> None:
    """Download a file, unless it exists: then it was checked before.

    An incomplete download is kept in `<destination>.part`, and a later run resumes it. A server
    that sent another file is not asked again for an hour.

    Args:
        url: the address; the Juju model's proxies are used.
        destination: the target path; its directory must exist.
        sha256: of the whole file, in hex.
        progress: called from time to time with the progress.
        bounds: the limits.
        remedy: what the operator does if the server does not have the file.

    Raises:
        UnreachableError: it can't be downloaded now.
        DownloadError: it can't be downloaded at all, or is not the expected file.
    """
    if destination.exists():
        return
    part = destination.with_name(f"{destination.name}.part")
    refused = destination.with_name(f"{destination.name}.refused")
    _check_not_refused(url, sha256, refused)
    # The part may be the beginning of another file: then all of it is downloaded again.
    for resumed in (part.exists(), False):
        _receive_patiently(_Arrival(url, part, progress, bounds, remedy))
        got = sha256_of(part)
        if got == sha256.lower():
            break
        part.unlink()
        if not resumed:
            files.ensure_file(refused, json.dumps([url, sha256, got]))
            raise _not_expected(url, sha256, got)
    part.replace(destination)
    refused.unlink(missing_ok=True)


def _check_not_refused(url: str, sha256: str, refused: pathlib.Path) -> None:
    try:
        age = time.time() - refused.stat().st_mtime  # a file's time is of the wall clock
        before, expected, got = json.loads(refused.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    if (before, expected) == (url, sha256) and 0 <= age < _REFUSED:
        raise _not_expected(url, sha256, got)


def _not_expected(url: str, sha256: str, got: str) -> DownloadError:
    return DownloadError(
        f"{url} is not the expected file: its SHA-256 should be {sha256.lower()} but is {got}. "
        "Nothing was installed. Report this to the charm's authors, or to the operator of the "
        f"mirror; do not work around it. The next attempt is in {_REFUSED / 60:.0f} minutes"
    )


def text(url: str, bounds: Bounds, remedy: str) -> str:
    """Download a short text. Bytes that are not UTF-8 become U+FFFD.

    Args:
        url: the address; the Juju model's proxies are used.
        bounds: the limits; nothing is written to a disk.
        remedy: what the operator does if the server does not have it: `Check the option x`.

    Raises:
        UnreachableError: it can't be downloaded now.
        DownloadError: it can't be downloaded at all, or is larger.
    """
    return _patiently(
        url,
        bounds,
        functools.partial(_read, url, bounds.size, remedy),
        lambda: "the next event tries again",
    )


def _patiently(
    url: str,
    bounds: Bounds,
    work: collections.abc.Callable[[Open], _Result],
    slow: collections.abc.Callable[[], str],
) -> _Result:
    """Return the result of an exchange that is tried several times within a time limit.

    Args:
        url: the address.
        bounds: the number of attempts, the pauses, and the time limit of all together.
        work: one attempt; it gets the opener of addresses.
        slow: returns the text for a limit that is over.
    """
    end = time.monotonic() + bounds.seconds

    def once() -> _Result:
        try:
            with deadline.sockets(end - time.monotonic()) as connect:
                return work(_opener(url, connect))
        except TimeoutError as error:
            raise _PassingError(str(error)) from error

    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(_PassingError),
        stop=tenacity.stop_any(
            tenacity.stop_after_attempt(bounds.attempts),
            tenacity.stop_after_delay(bounds.seconds),
        ),
        wait=tenacity.wait_exponential(multiplier=1, max=bounds.pause),
        reraise=True,
    )
    try:
        return retrying(once)
    except _PassingError as error:
        if time.monotonic() >= end:
            raise UnreachableError(f"{url} is slow: {slow()}") from error
        raise UnreachableError(
            f"{url} can't be downloaded: {error}. Check the network and the model's proxies "
            "(juju model-config juju-https-proxy); the next event tries again"
        ) from error


def _receive_patiently(wanted: _Arrival) -> None:
    url, part = wanted.url, wanted.part

    def slow() -> str:
        have = part.stat().st_size if part.exists() else 0
        return f"{have >> 20} MiB have arrived; the next event resumes. Faster is a mirror nearby"

    try:
        _patiently(url, wanted.bounds, functools.partial(_receive, wanted), slow)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        part.unlink()  # others need the disk space too
        raise DownloadError(
            f"{url} can't be downloaded: the disk of {part.parent} is full: make room there"
        ) from error


def sha256_of(path: pathlib.Path) -> str:
    """Return the SHA-256 of a file, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _receive(wanted: _Arrival, open_: Open) -> None:
    url, part = wanted.url, wanted.part
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})  # noqa: S310
    try:
        with open_(request, _TIMEOUT) as response:
            if not _goes_on(response, have):
                have = 0
            _store(response, wanted, have)
    except _FAILURES as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
            if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                return  # it is complete: the checksum decides
        raise _failure(url, error, wanted.remedy) from error


def _goes_on(response: http.client.HTTPResponse, have: int) -> bool:
    """Return whether the server resumes where the last run ended."""
    if response.status != http.HTTPStatus.PARTIAL_CONTENT:
        return False
    said = response.headers.get("Content-Range")
    if said is not None and not re.match(rf"bytes {have}-", said):
        raise _PassingError(f"the server sent {said} where bytes {have}- was asked for")
    return True


def _read(url: str, limit: int, remedy: str, open_: Open) -> str:
    try:
        with open_(urllib.request.Request(url), _TEXT_TIMEOUT) as response:  # noqa: S310
            announced = int(response.headers.get("Content-Length") or 0)
            data = _next(response, limit + 1)
    except _FAILURES as error:
        raise _failure(url, error, remedy) from error
    if max(announced, len(data)) > limit:
        raise DownloadError(
            f"{url} is not the expected file: it is larger than {limit >> 10} KiB. {remedy}"
        )
    if len(data) < announced:
        raise _PassingError(f"the connection broke after {len(data)} of {announced} bytes")
    return data.decode(errors="replace")


def _failure(url: str, error: Exception, remedy: str) -> DownloadError | _PassingError:
    """Return the error to raise for one of _FAILURES."""
    if isinstance(error, urllib.error.HTTPError):
        error.close()
        text = f"the server answered {error.code} {error.reason}"
        if error.code in (408, 429) or error.code >= 500:
            return _PassingError(text)
        return DownloadError(f"{url} can't be downloaded: {text}. {remedy}")
    if isinstance(error, urllib.error.URLError):
        return _PassingError(str(error.reason))
    return _PassingError(str(error) or type(error).__name__)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but never from HTTPS to HTTP."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: typing.IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        """Return the redirected request; raise HTTPError if it is no longer encrypted."""
        if req.type == "https" and urllib.parse.urlsplit(newurl).scheme != "https":
            raise urllib.error.HTTPError(newurl, code, "redirects to plain HTTP", headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener(url: str, connect: deadline.Connect) -> Open:
    return opener(
        url,
        connect,
        (
            _Redirects(),
            urllib.request.HTTPDefaultErrorHandler(),
            urllib.request.HTTPErrorProcessor(),
        ),
    )


def _next(response: http.client.HTTPResponse, most: int, *, whole: bool = True) -> bytes:
    """Return the next bytes: as many as asked for or, if not `whole`, those that have arrived."""
    try:
        return response.read(most) if whole else response.read1(most)
    except OSError as error:  # such as EHOSTUNREACH, which is not in _FAILURES
        raise _PassingError(str(error) or type(error).__name__) from error


def _store(response: http.client.HTTPResponse, wanted: _Arrival, have: int) -> None:
    part, total = wanted.part, have + (response.length or 0)
    wanted.check_room(have, total)
    marks = Marks(have, total, time.monotonic())
    with part.open("r+b" if have else "wb") as file:
        file.seek(have)
        while chunk := _next(response, _CHUNK, whole=False):
            file.write(chunk)
            have += len(chunk)
            if have > wanted.bounds.size:
                wanted.check_room(have, have)
            if far := marks.passed(have, time.monotonic()):
                wanted.progress(f"Downloading {part.stem}: {far}")
    if have < total:
        raise _PassingError(f"the connection broke after {have} of {total} bytes")
