# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The token of a GitHub App: it signs a request with its key, and gets a token for an hour. Pure.

The form of the request: docs.github.com, generating a JSON Web Token (JWT) for a GitHub App.
"""

import base64
import collections.abc
import json
import time
import typing
import urllib.parse

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from ci.runners import github_api as api
from ci.runners.service import Answer, Call, Fault, ServiceError, Talk, content

# Seconds: how long a signed request is valid, of which GitHub allows 600; how much earlier it is
# dated, as GitHub's documentation advises; how far a clock may be wrong without harm to these two.
_VALID: typing.Final = 540
_EARLIER: typing.Final = 60
_MOST_WRONG: typing.Final = 60
# How long before its end a token is renewed, in seconds.
_RENEWED: typing.Final = 300
_WHAT: typing.Final = "to get a token for the GitHub App"


class App:
    """The installation of a GitHub App in one organisation or account."""

    def __init__(
        self,
        identity: str,
        installation: str,
        key: str,
        now: collections.abc.Callable[[], float] = time.time,
    ) -> None:
        """Read the key.

        Args:
            identity: the App's client id, or its App id.
            installation: the number of the installation.
            key: one of the App's private keys, in PEM.
            now: returns the seconds since 1970.

        Raises:
            ValueError: it is no such key. The text has nothing of it.
        """
        try:
            found = serialization.load_pem_private_key(key.strip().encode(), None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            found = None
        if not isinstance(found, rsa.RSAPrivateKey):
            raise ValueError("the key of the GitHub App is no RSA key in PEM without a password")
        self._identity, self._key, self._now = identity, found, now
        self._path = (
            f"/app/installations/{urllib.parse.quote(installation, safe='')}/access_tokens"
        )
        self._token, self._until = "", 0.0

    def secret(self) -> Talk[str]:
        """Return the value of the header Authorization; ask for a token if there is none.

        Raises:
            ServiceError: GitHub gives none.
        """
        if self._until - self._now() < _RENEWED:
            yield from self._renew()
        return f"Bearer {self._token}"

    def forget(self) -> None:
        """Ask for a new token the next time: GitHub does not know this one any more."""
        self._until = 0.0

    def _renew(self) -> Talk[None]:
        answer = yield Call("POST", self._path, f"Bearer {self._signed()}", headers=api.HEADERS)
        if answer.status == 401:
            raise self._unknown(answer)
        if answer.status == 403 and not api.wait(answer, self._now()):
            raise ServiceError(
                Fault.FORBIDDEN,
                f"{_WHAT}: GitHub answers 403 ({api.message(answer)}): if the App's installation "
                "is suspended, unsuspend it",
            )
        if answer.status == 404:
            raise ServiceError(
                Fault.CREDENTIAL,
                f"{_WHAT}: GitHub answers 404: the App is not installed under this "
                "installation-id any more: install it again and set the new one",
            )
        told = content(api.checked(answer, _WHAT, self._now(), known=(201,)), _WHAT)
        token, until = told.get("token"), told.get("expires_at")
        try:
            end = api.moment(str(until))
        except ValueError:
            end = 0.0
        if not isinstance(token, str) or not token or not end:
            raise ServiceError(Fault.STRANGE, f"{_WHAT}: the answer has no token and its end")
        self._token, self._until = token, end

    def _unknown(self, answer: Answer) -> ServiceError:
        """Return why GitHub does not take what the App has signed."""
        ahead = self._now() - (api.date(answer) or self._now())
        if abs(ahead) > _MOST_WRONG:
            side = "ahead of" if ahead > 0 else "behind"
            return ServiceError(
                Fault.CLOCK,
                f"this machine's clock is {abs(ahead):.0f} s {side} GitHub's",
            )
        return ServiceError(
            Fault.CREDENTIAL,
            f"{_WHAT}: GitHub answers 401 ({api.message(answer)}): the App is gone, or app-id and "
            "private-key are not of the same App",
        )

    def _signed(self) -> str:
        """Return a request that the App has signed: a JSON Web Token (RFC 7519, RS256)."""
        at = int(self._now())
        claims = {"iat": at - _EARLIER, "exp": at + _VALID, "iss": self._identity}
        parts = ({"alg": "RS256", "typ": "JWT"}, claims)
        text = b".".join(_base64(json.dumps(part).encode()) for part in parts)
        signature = self._key.sign(text, padding.PKCS1v15(), hashes.SHA256())
        return b".".join((text, _base64(signature))).decode()


def _base64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")
