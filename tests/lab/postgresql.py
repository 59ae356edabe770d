# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Play the application `postgresql`: a real PostgreSQL in a machine of its own, with the databag
of the postgresql charm (postgresql_client v0, data_interfaces v0 library)."""

import json
import pathlib
import secrets
from typing import ClassVar

from tests.lab.errors import LabError
from tests.lab.juju.played import Hook, PlayedApp
from tests.lab.machines import Machine
from tests.lab.network import SUBNET
from tests.lab.park import Park

MACHINE = "postgresql-0"
PORT = 5432
DATA = "/var/lib/postgresql/lab"
SERVICE = f"""\
[Unit]
Description=PostgreSQL of the lab
After=network.target
[Service]
User=postgres
RuntimeDirectory=lab-postgresql
ExecStart={{binaries}}/postgres -D {DATA} -k /run/lab-postgresql -h {{address}} -p {PORT} \\
  -c fsync=off
KillSignal=SIGINT
[Install]
WantedBy=multi-user.target
"""
# Over TCP with a password; a user on the machine itself is its owner.
INITDB = f"""
set -eu
binaries=$1
umask 077
if [ -e {DATA}/ready ]; then exit 0; fi
rm -rf {DATA}
runuser -u postgres -- "$binaries/initdb" -D {DATA} -A trust \\
  -U postgres --no-sync >/dev/null
printf 'local all all trust\nhost all all {SUBNET} scram-sha-256\n' >{DATA}/pg_hba.conf
chown postgres: {DATA}/pg_hba.conf
touch {DATA}/ready
"""


def binaries() -> pathlib.Path:
    """The directory of the host's newest PostgreSQL server.

    Raises:
        LabError: none is installed.
    """
    found = sorted(
        pathlib.Path("/usr/lib/postgresql").glob("*/bin/postgres"),
        key=lambda p: int(p.parts[-3]) if p.parts[-3].isdigit() else 0,
    )
    if not found:
        raise LabError("no PostgreSQL server on this host: apt-get install postgresql")
    return found[-1].parent


def start(park: Park) -> Machine:
    """Bring the machine up and start PostgreSQL in it, where they are not running."""
    machine = park.up(MACHINE)
    where = binaries()
    machine.enter("/bin/sh", "-c", INITDB, "sh", str(where))
    unit = "/etc/systemd/system/lab-postgresql.service"
    machine.write(unit, SERVICE.format(binaries=where, address=machine.address))
    machine.enter("/bin/systemctl", "daemon-reload")
    machine.enter("/bin/systemctl", "enable", "--now", "lab-postgresql.service")
    machine.enter("/bin/sh", "-c", f"for i in $(seq 100); do {where}/pg_isready -q "
                  f"-h {machine.address} && exit 0; sleep 0.1; done; exit 1")  # fmt: skip
    return machine


class Postgresql(PlayedApp):
    """Makes a database and its user for each application that asks for one."""

    endpoints: ClassVar = {"database": {"role": "provides", "interface": "postgresql_client"}}

    def provision(self, park: Park) -> str:
        """Start PostgreSQL in the unit's machine."""
        return start(park).address

    def handle(self, hook: Hook, kind: str) -> None:
        """Answer a request for a database, once."""
        if kind == "start":
            hook("application-version-set", "--", binaries().parent.name)
            hook("status-set", "active", "--", "Primary")
        if kind != "relation-changed":
            return
        relation = str(hook.event["relation"])
        remote = hook.event["remote_app"]
        asked = json.loads(
            hook("relation-get", "--format=json", "-r", relation, "--app", "-", remote)
        )
        answered = json.loads(
            hook("relation-get", "--format=json", "-r", relation, "--app", "-", hook.context.app)
        )
        if asked.get("database") and "endpoints" not in answered:
            self._answer(hook, relation, asked)

    def _answer(self, hook: Hook, relation: str, asked: dict[str, str]) -> None:
        machine = hook.park.get(MACHINE)
        user, password = f"relation_id_{relation}", secrets.token_urlsafe(24)
        database = asked["database"]
        sql(
            machine,
            # A hook that was killed half-way runs again.
            f"DROP DATABASE IF EXISTS {_quoted(database)};\nDROP ROLE IF EXISTS {user};\n"
            f"CREATE ROLE {user} LOGIN PASSWORD '{password}';\n"
            f"CREATE DATABASE {_quoted(database)} OWNER {user};\n",
        )
        endpoint = f"{machine.address}:{PORT}"
        uri = f"postgresql://{user}:{password}@{endpoint}/{database}"
        data = {
            "data": json.dumps(
                {k: asked[k] for k in ("database", "requested-secrets") if k in asked}
            ),
            "database": database,
            "endpoints": endpoint,
            "version": binaries().parent.name,
        }
        credentials = {"username": user, "password": password, "uris": uri}
        wanted = json.loads(asked.get("requested-secrets") or "[]")
        if wanted:
            secret = hook(
                "secret-add", "--owner", "application", f"--label=database.{relation}.user.secret",
                *(f"{key}={value}" for key, value in credentials.items() if key in wanted),
            )  # fmt: skip
            hook("secret-grant", "--relation", relation, secret)
            data["secret-user"] = secret
        else:
            data |= credentials
        hook("relation-set", "-r", relation, "--app", "--file", "-", stdin=json.dumps(data))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def sql(machine: Machine, statements: str) -> None:
    """Run SQL as the administrator."""
    psql = f"{binaries()}/psql"
    machine.enter(
        "/sbin/runuser", "-u", "postgres", "--", psql, "-X", "-q", "-v", "ON_ERROR_STOP=1",
        "-h", "/run/lab-postgresql", "-U", "postgres", "-d", "postgres",
        stdin=statements,
    )  # fmt: skip
