# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the relations of a web or a worker say: frozen types only."""

import dataclasses

from options.certificates import Tls
from relations.worker_view import Sight


@dataclasses.dataclass(frozen=True)
class Tsa:
    """What the related web units say: the key and version of each host.

    Attributes:
        related: whether there is a relation to a web at all.
        hosts: `ADDRESS:2222` of each web unit whose data is complete.
        public_keys: their host keys, one line each, and those that they will show.
        versions: the Concourse versions that they run, without repeats; may be empty.
        webs: the applications that they belong to, where these are different Concourses.
        request_timeout: the least of the times in seconds after which they give up a call to a
            worker; 0 where one of them does not say it.
        taken: fingerprints of the second keys of workers that each of them takes.
        silent: those units that don't tell which they take, as the public charm's.
        sights: how they see this unit's worker, where they tell.
        refused: what was refused of their data, for the operator.
    """

    related: bool = False
    hosts: tuple[str, ...] = ()
    public_keys: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    webs: tuple[str, ...] = ()
    request_timeout: int = 0
    taken: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    sights: tuple[Sight, ...] = ()
    refused: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Database:
    """How to reach PostgreSQL.

    Attributes:
        others: further hosts of its cluster, which listen on the same port.
        ca: PEM certificates of its CA; empty without TLS, or if unknown.
    """

    host: str
    port: int
    name: str
    user: str
    password: str = dataclasses.field(repr=False)
    tls: bool = False
    ca: str = ""
    others: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class WebSecrets:
    """What all web units of the application share; kept in Juju secrets. Keys are PEM.

    Attributes:
        tsa_next_host_key: takes the place of the host key once the workers know it; or empty.
    """

    admin_password: str = dataclasses.field(repr=False)
    tsa_host_key: str = dataclasses.field(repr=False)
    session_signing_key: str = dataclasses.field(repr=False)
    tsa_next_host_key: str = dataclasses.field(default="", repr=False)


@dataclasses.dataclass(frozen=True)
class Web:
    """What a web unit knows from Juju.

    Attributes:
        database_related: whether the postgresql endpoint is in use.
        database: None until the database's data is complete.
        database_withheld: that data is in a secret which is not granted to this unit yet.
        database_refused: what of that data can't be used, and why; or empty.
        secrets: None until the leader has made them.
        secrets_lost: they were made, but Juju doesn't give them.
        tsa_public_key: the public half of their TSA host key, one line; empty without secrets.
        tsa_next_public_key: that of the next one; empty where there is none.
        worker_keys: the public keys of all related workers, checked.
        certificates_related: whether an application is to sign web's certificate.
        certificate: None until it has.
        certificate_refused: why it gives none for the last request; empty where it said nothing.
        certificate_revoked: whether it has taken that back.
        refused: what was refused of the workers' data, for the operator.
    """

    database_related: bool = False
    database: Database | None = None
    database_withheld: bool = False
    database_refused: str = ""
    secrets: WebSecrets | None = None
    secrets_lost: bool = False
    tsa_public_key: str = ""
    tsa_next_public_key: str = ""
    worker_keys: tuple[str, ...] = ()
    certificates_related: bool = False
    certificate: Tls | None = None
    certificate_refused: str = ""
    certificate_revoked: bool = False
    refused: tuple[str, ...] = ()
