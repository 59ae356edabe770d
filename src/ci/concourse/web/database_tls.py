# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Whether web's database shows a certificate that web takes, asked as PostgreSQL's clients ask."""

import socket
import ssl
import struct
import typing

from machine import exhaustion as scarcity

# The message SSLRequest and its answers, of one letter (PostgreSQL 15's documentation, chapter
# Frontend/Backend Protocol, SSL Session Encryption).
_REQUEST: typing.Final = struct.pack("!II", 8, 80877103)
_YES: typing.Final = b"S"
_NO: typing.Final = b"N"


def refusal(host: str, port: int, mode: str, ca: str, seconds: float) -> str:
    """Return why web refuses the database at an address; empty if it does not, or if unknown.

    Args:
        host: its name or address.
        port: its port.
        mode: web's `sslmode`, such as `verify-full`.
        ca: the file of the CA that the relation names.
        seconds: how long each answer may take.

    Raises:
        OSError: the machine is out of something, so that it can't be asked.
    """
    if mode == "disable":
        return ""
    try:
        context = _context(mode, ca)
        with socket.create_connection((host, port), timeout=seconds) as plain:
            plain.sendall(_REQUEST)
            answer = plain.recv(1)
            if answer == _YES:
                context.wrap_socket(plain, server_hostname=host).close()
            return "it speaks no TLS, and the relation says that it does" if answer == _NO else ""
    except ssl.SSLCertVerificationError as error:
        return f"its certificate is refused with the relation's tls-ca: {error.verify_message}"
    except OSError as error:
        if scarcity.is_told_by(error):
            raise
        return ""


def _context(mode: str, ca: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = mode == "verify-full"
    if mode == "require":
        context.verify_mode = ssl.CERT_NONE
        return context
    # As Go does, web's language: each certificate in the file is trusted, whatever signed it.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(ca)
    return context
