# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The key of web's certificate, and the request for one, where another application signs it."""

import collections.abc
import dataclasses
import ipaddress
import pathlib
import typing
import uuid

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from ci.concourse import service
from ci.concourse.web import health as web_health
from machine import files
from options import certificates


def _new_key() -> str:
    # Some signers accept RSA only.
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form, none = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, form, none).decode()


@dataclasses.dataclass(frozen=True)
class Signing:
    """Web's certificate where another application signs it.

    Attributes:
        folder: where its key and request are, and the certificate that web shows now.
        new_key: makes a private key, in PEM.
    """

    folder: pathlib.Path = service.KEYS
    new_key: collections.abc.Callable[[], str] = _new_key

    @property
    def shown(self) -> pathlib.Path:
        """The certificate that web shows now."""
        return self.folder / web_health.CERTIFICATE.name

    @property
    def _key(self) -> pathlib.Path:
        return self.folder / "tls_requested_key.pem"

    @property
    def _request(self) -> pathlib.Path:
        return self.folder / "tls_request.pem"

    def request(self, names: tuple[str, ...]) -> str:
        """A request for a certificate for these names and addresses, in PEM.

        It stays the same until the names change or the certificate is near its end. Empty without
        names.
        """
        had = self.pending()
        if not names or (had and _is_for(had, names) and not self._is_renewal_due()):
            return had if names else ""
        service.ensure_keys_folder(self.folder)
        key = files.read_text(self._key)
        if not key:
            key = self.new_key()
            files.ensure_file(self._key, key, mode=0o600)
        made = _signed(names, key)
        files.ensure_file(self._request, made, mode=0o600)
        return made

    def pending(self) -> str:
        """The request that was made last; empty if there is none."""
        return files.read_text(self._request) or ""

    def certificate(self, offered: str) -> certificates.Tls | None:
        """Return the offered certificate for web's key, else its current one."""
        key = files.read_text(self._key) or ""
        for chain in (offered, files.read_text(self.shown) or ""):
            if key and chain and certificates.fits(chain, key):
                return certificates.Tls(chain, key)
        return None

    def remove(self) -> bool:
        """Remove key and request. Return True if any was there."""
        removed = files.ensure_absent(self._key)
        return files.ensure_absent(self._request) or removed

    def _is_renewal_due(self) -> bool:
        """Whether web's certificate is near its end, and the request not one for its renewal."""
        if not web_health.certificate_end(self.shown)[0]:
            return False
        begin, end, _ = certificates.lifetime(self.shown.read_text())
        return self._request.stat().st_mtime < (begin + end) / 2


def _is_for(pem: str, names: tuple[str, ...]) -> bool:
    try:
        asked = x509.load_pem_x509_csr(pem.encode())
        found = asked.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (ValueError, x509.ExtensionNotFound):
        return False
    return list(found.value) == [_name(name) for name in names]


def _signed(names: tuple[str, ...], key: str) -> str:
    private = serialization.load_pem_private_key(key.encode(), password=None)
    # A renewal must not look like the request before.
    different = x509.NameAttribute(NameOID.X500_UNIQUE_IDENTIFIER, str(uuid.uuid4()))
    subject = [x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64]), different]
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(subject))
    alternatives = x509.SubjectAlternativeName([_name(name) for name in names])
    builder = builder.add_extension(alternatives, critical=False)
    made = builder.sign(typing.cast(rsa.RSAPrivateKey, private), hashes.SHA256())
    return made.public_bytes(serialization.Encoding.PEM).decode()


def _name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)
