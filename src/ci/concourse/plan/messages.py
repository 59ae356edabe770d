# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The kinds of status lines about Concourse: code, level and text of each. Pure."""

import typing

from plan.messages import Kind, Kinds, Level

KINDS: typing.Final = Kinds(
    Kind(
        "no-checksum",
        Level.BLOCKED,
        "No checksum known for Concourse {version} on {architecture}",
        "to trust the file that is there now, run curl -fLo concourse.tgz {url} && juju config "
        "{application} concourse-version={version}@sha256:$(sha256sum < concourse.tgz | cut "
        "-c-64); or juju attach-resource {application} concourse=<release tarball>",
    ),
    Kind(
        "other-containerd",
        Level.BLOCKED,
        "{rival} owns /run/containerd/containerd.sock, which Concourse needs",
        "stop and disable it; if only Docker uses it, juju config {application} "
        "container-engines=docker gives Docker a containerd of its own; or use another machine",
    ),
    Kind(
        "foreign-runc",
        Level.BLOCKED,
        "{path} would run in place of the GPU runtime",
        "if no other program needs it, sudo rm {path}; else use another machine",
    ),
    Kind(
        "task-mount-unusable",
        Level.BLOCKED,
        "Tasks fail, as a folder of task-mounts is unusable ({folder})",
        "create or correct it on the machine, or remove it from task-mounts",
    ),
    Kind(
        "two-ways-to-web",
        Level.BLOCKED,
        "tsa-hosts is set, and a web is integrated as well",
        "juju config {application} tsa-hosts= tsa-public-keys=, or juju remove-relation "
        "{application} <web application>",
    ),
    Kind(
        "several-webs",
        Level.BLOCKED,
        "Integrated with several Concourses ({webs})",
        "juju remove-relation {application} <web application>, for each of them but one",
    ),
    Kind(
        "own-web-and-another",
        Level.BLOCKED,
        "This unit runs a web of its own and is integrated with another one",
        "juju remove-relation {application} <web application>, or deploy its workers with "
        "deployment-mode=worker",
    ),
    Kind(
        "web-is-other-release",
        Level.BLOCKED,
        "Worker runs Concourse {ours}, web {theirs}; web does not schedule on that version",
        "{how}",
    ),
    Kind(
        "web-not-followed",
        Level.BLOCKED,
        "Cannot follow web to Concourse {theirs} ({why}); still on {ours}",
        "{how}",
    ),
    Kind(
        "release-rolled-back",
        Level.BLOCKED,
        "Upgrade to Concourse {version} failed ({why}); rolled back to {before}",
        "see journalctl -u concourse-web -u concourse-worker. To stay: juju config {application} "
        "concourse-version={before}. To try again, change the version or the resource, or "
        "refresh the charm",
    ),
    Kind(
        "web-keys-lost",
        Level.BLOCKED,
        "Web's keys and admin password are missing from Juju",
        "juju run {application}/leader replace-web-keys creates new ones and logs everybody out",
    ),
    Kind(
        "url-without-tls",
        Level.BLOCKED,
        "external-url '{url}' is not https, but web has a certificate",
        "juju config {application} external-url=https://...",
    ),
    Kind(
        "certificate-refused",
        Level.BLOCKED,
        "TLS provider refused the certificate ({why})",
        "check its status, or juju config {application} external-url=https://<a name that it may "
        "sign>",
    ),
    Kind(
        "web-certificate-ended",
        Level.BLOCKED,
        "Web's certificate ended on {day}",
        "{remedy}",
    ),
    Kind(
        "tls-port-taken",
        Level.BLOCKED,
        "web-tls-port and web-port are both {port}",
        "juju config {application} web-port=8080 web-tls-port=443",
    ),
    Kind(
        "key-form-unknown",
        Level.BLOCKED,
        "Concourse {ours} does not accept a database-encryption-key in hex or base64",
        "use a key of 16 or 32 characters, or release 8.2.0 or later: juju config {application} "
        "concourse-version=<release>",
    ),
    Kind(
        "no-shared-database",
        Level.BLOCKED,
        "{units} units without a shared database would be {units} separate Concourses",
        "juju integrate {application}:postgresql postgresql:database, or juju remove-unit <each "
        "unit but one>",
    ),
    Kind(
        "web-port-taken",
        Level.BLOCKED,
        "Web's port {port} on 127.0.0.1 is taken by another program",
        "stop that program (sudo ss -ltnp 'sport = :{port}' names it), or set the option that has "
        "{port}, web-port or web-metrics-port, to another port",
    ),
    Kind(
        "worker-port-taken",
        Level.BLOCKED,
        "The worker's port {port} on 127.0.0.1 is taken by another program",
        "stop that program (sudo ss -ltnp 'sport = :{port}' names it)",
    ),
    Kind(
        "web-keeps-failing",
        Level.BLOCKED,
        "Web keeps failing ({starts} starts in 10 min)",
        "see journalctl -u concourse-web",
    ),
    Kind(
        "worker-keeps-failing",
        Level.BLOCKED,
        "The worker keeps failing ({starts} starts in 10 min)",
        "see journalctl -u concourse-worker",
    ),
    Kind(
        "worker-not-listed",
        Level.BLOCKED,
        "Web does not list worker {name}, although it is connected",
        "{restart}",
    ),
    Kind(
        "worker-stalled",
        Level.BLOCKED,
        "Web lists worker {name} as stalled (no heartbeat)",
        "check journalctl -u concourse-worker, then {restart}",
    ),
    Kind(
        "worker-landing",
        Level.BLOCKED,
        "Web lists worker {name} as landing (fly land-worker)",
        "to return it to work, {restart}",
    ),
    Kind(
        "worker-landed",
        Level.BLOCKED,
        "Web lists worker {name} as landed (fly land-worker)",
        "to return it to work, {restart}",
    ),
    Kind(
        "worker-retiring",
        Level.BLOCKED,
        "Web lists worker {name} as retiring",
        "to return it to work, {restart}",
    ),
    Kind(
        "worker-other-tags",
        Level.BLOCKED,
        "Web lists worker {name} with other tags than this unit's",
        "check whether another machine registers a worker of that name; if none does, {restart}",
    ),
    Kind(
        "resource-unknown",
        Level.WAITING,
        "Waiting for Juju to report whether the resource concourse is attached",
        "see juju resources {application}",
    ),
    Kind(
        "no-web",
        Level.WAITING,
        "Waiting for a web",
        "juju integrate <web application>:web-tsa {application}:worker-tsa",
    ),
    Kind(
        "no-web-data",
        Level.WAITING,
        "Waiting for the web unit to publish its TSA address and key",
    ),
    Kind(
        "unusable-web-data",
        Level.WAITING,
        "Waiting for usable data from web ({refused})",
        "check juju show-unit {unit} and correct web, or juju remove-relation {application} <web "
        "application> and juju config {application} tsa-hosts=<address>:<port> "
        "tsa-public-keys=<web's TSA key>",
    ),
    Kind(
        "no-database",
        Level.WAITING,
        "Waiting for a database",
        "juju integrate {application}:postgresql postgresql:database",
    ),
    Kind(
        "no-database-data",
        Level.WAITING,
        "Waiting for the database's address and credentials",
    ),
    Kind(
        "unusable-database-data",
        Level.WAITING,
        "Waiting for usable data from the database ({refused})",
        "check juju show-unit {unit} and correct the database, or juju remove-relation "
        "{application}:postgresql <database application> and integrate another one",
    ),
    Kind(
        "database-secret-not-granted",
        Level.WAITING,
        "Waiting for the database to grant its secret",
    ),
    Kind(
        "no-certificate",
        Level.WAITING,
        "Waiting for web's certificate from the TLS provider",
    ),
    Kind(
        "no-web-keys",
        Level.WAITING,
        "Waiting for the leader unit to create web's keys",
    ),
    Kind(
        "no-address",
        Level.WAITING,
        "Waiting for Juju to report this unit's address",
    ),
    Kind(
        "no-address-in-network",
        Level.WAITING,
        "Waiting for an address in web-advertise-address {wanted}",
        "this machine has {has}; juju config {application} web-advertise-address=<address, name "
        "or network>",
    ),
    Kind(
        "no-usable-address",
        Level.WAITING,
        "Waiting for an address that other machines can reach",
        "Juju offers {offered}; juju config {application} web-advertise-address=<address, name "
        "or network>",
    ),
    Kind(
        "web-database-lost",
        Level.WAITING,
        "Web cannot reach its database",
        "{database}",
    ),
    Kind(
        "web-not-answering",
        Level.WAITING,
        "Waiting for web to answer",
        "see journalctl -u concourse-web",
    ),
    Kind(
        "worker-not-answering",
        Level.WAITING,
        "Waiting for the worker to answer",
        "see journalctl -u concourse-worker",
    ),
    Kind(
        "worker-not-connected",
        Level.WAITING,
        "Waiting for a lasting connection to web's TSA",
        "{hosts}; see journalctl -u concourse-worker",
    ),
    Kind(
        "release-waits-for-web",
        Level.ACTIVE,
        "Concourse {wanted} is ready here and waits for web, which still runs {web}",
    ),
    Kind(
        "web-release-unknown",
        Level.ACTIVE,
        "web runs Concourse {theirs}, which this worker cannot install ({why}); it runs {ours}",
        "{how}",
    ),
    Kind(
        "release-resource-empty",
        Level.ACTIVE,
        "the resource concourse is empty; its {version} stays in use",
        "{attach}",
    ),
    Kind("web-certificate-ends", Level.ACTIVE, "web's certificate ends on {day}"),
    Kind("web-certificate-refused", Level.ACTIVE, "no new certificate for web", "{why}"),
    Kind(
        "web-certificate-revoked",
        Level.ACTIVE,
        "web's certificate was revoked; waiting for a new one",
    ),
    Kind(
        "volumes-copied",
        Level.ACTIVE,
        "no overlayfs here, so images and inputs are copied (slower, more disk)",
        "use a VM, or a machine with /var/lib/concourse on ext4 or XFS, to avoid this",
    ),
    Kind(
        "database-kept",
        Level.ACTIVE,
        "kept database {name}",
        "juju run {unit} remove-local-database confirm={confirm} deletes it",
    ),
    Kind(
        "key-rotation-worker",
        Level.ACTIVE,
        "key rotation: waiting for web to accept the new worker key",
    ),
    Kind(
        "key-rotation-tsa",
        Level.ACTIVE,
        "TSA key rotation waits for {units}",
        "to skip these units, juju run {application}/leader rotate-tsa-key force=true",
    ),
)

text, line = KINDS.text, KINDS.line
