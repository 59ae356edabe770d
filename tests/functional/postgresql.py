# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A real PostgreSQL of a test's own, reached by TLS and password as a related one is."""

import contextlib
import datetime
import ipaddress
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import NameOID

from tests import once

_FOUND = sorted(pathlib.Path("/usr/lib/postgresql").glob("[0-9]*/bin/initdb"))
NEEDS = [
    pytest.mark.skipif(os.geteuid() != 0, reason="becoming PostgreSQL's user takes root"),
    pytest.mark.skipif(not _FOUND, reason="not installed: postgresql"),
]
# Whatever a shell, a parser of settings or one of passwords might take for its own.
PASSWORD = "p:w\\:'\"$x#%;=${HOME}`id` ü"


def _certificate(folder):
    key = serialization.load_pem_private_key(once.rsa_key(3).encode(), None)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "database")])
    now = datetime.datetime.now(datetime.timezone.utc)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    (folder / "server.crt").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "server.key").write_text(once.rsa_key(3))
    (folder / "server.key").chmod(0o600)


class Server:
    """A cluster with the role web and its database concourse."""

    def __init__(self, folder, port):
        self.folder, self.port, self.ca = folder, port, folder / "ca.crt"

    def settings(self, database="concourse"):
        """As web's settings say it."""
        return {
            "CONCOURSE_POSTGRES_HOST": "127.0.0.1",
            "CONCOURSE_POSTGRES_PORT": str(self.port),
            "CONCOURSE_POSTGRES_DATABASE": database,
            "CONCOURSE_POSTGRES_USER": "web",
            "CONCOURSE_POSTGRES_PASSWORD": PASSWORD,
            "CONCOURSE_POSTGRES_SSLMODE": "verify-full",
            "CONCOURSE_POSTGRES_CA_CERT": str(self.ca),
        }

    def sql(self, statement, database="concourse", user="postgres"):
        """As the administrator, at the socket."""
        argv = ["runuser", "-u", "postgres", "--", "psql", "-XqtA", "-v", "ON_ERROR_STOP=1"]
        argv += ["-h", str(self.folder), "-p", str(self.port), "-U", user, "-d", database]
        done = subprocess.run(
            [*argv, "-c", statement], cwd="/", capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.split()


@contextlib.contextmanager
def running():
    # The user postgres must get at it.
    folder = pathlib.Path(tempfile.mkdtemp(dir="/var/tmp", prefix="gpuci-test-postgresql-"))
    as_postgres = ["runuser", "-u", "postgres", "--"]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    child = None
    try:
        shutil.chown(folder, "postgres", "postgres")
        data, binaries = folder / "data", _FOUND[-1].parent
        make = [*as_postgres, binaries / "initdb", "-D", data, "-A", "trust", "--no-sync"]
        subprocess.run(make, cwd="/", check=True, capture_output=True)
        _certificate(data)
        for path in data.glob("server.*"):
            shutil.chown(path, "postgres", "postgres")
        shutil.copy(data / "server.crt", folder / "ca.crt")
        data.parent.chmod(0o755)
        (data / "pg_hba.conf").write_text(
            "local all all trust\nhostssl all all all scram-sha-256\n"
        )
        child = subprocess.Popen(
            [*as_postgres, binaries / "postgres", "-D", data, "-k", folder, "-h", "127.0.0.1",
             "-p", str(port), "-c", "ssl=on", "-c", "fsync=off"],
            cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        server = Server(folder, port)
        for _ in range(600):
            if (folder / f".s.PGSQL.{port}").exists():
                break
            time.sleep(0.1)
        quoted = PASSWORD.replace("'", "''")
        # It may have its socket before it lets anybody in.
        for left in reversed(range(100)):
            try:
                server.sql(f"CREATE ROLE web LOGIN PASSWORD '{quoted}'", "postgres")
                break
            except AssertionError:
                if not left:
                    raise
                time.sleep(0.3)
        server.sql("CREATE DATABASE concourse OWNER web", "postgres")
        yield server
    finally:
        if child:
            child.terminate()
            child.wait(60)
        shutil.rmtree(folder)
