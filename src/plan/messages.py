# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Every kind of status line: its code, its level and its text. Pure.

docs/reference/status.md has one entry for each code. The states of driver and container toolkit
have tables of their own in gpu_agent.diagnosis.
"""

import dataclasses
import enum
import typing

from plan.problems import Reason


class Level(enum.Enum):
    """Juju's names for the status of a unit.

    The operator must act on Blocked. Waiting passes by itself, or when another unit or application
    has acted; its text has the remedy for a state that stays.
    """

    BLOCKED = "blocked"
    WAITING = "waiting"
    MAINTENANCE = "maintenance"
    ACTIVE = "active"


@dataclasses.dataclass(frozen=True)
class Line:
    """One candidate for the unit's status.

    Attributes:
        level: how bad it is; Juju shows the worst line of a unit.
        code: names the kind of line, such as `no-database`.
        text: what Juju shows.
        notes: the codes of the notes in brackets, in the order of the text.
    """

    level: Level
    code: str
    text: str
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Kind:
    """One kind of status line, or of a note in the brackets of a unit that is ready.

    Attributes:
        code: its name, which never changes.
        level: of a note, ACTIVE.
        what: the state, with values in braces; at most 120 characters with plausible values.
        remedy: what the operator does or looks at: commands, names, addresses; may be empty.
    """

    code: str
    level: Level
    what: str
    remedy: str = ""

    def text(self, **values: object) -> str:
        """Return the text with these values; a remedy that comes out empty is left out."""
        parts = self.what.format(**values), self.remedy.format(**values)
        return ": ".join(filter(None, parts))


_BLOCKED: typing.Final = (
    Kind(Reason.BAD_OPTION.value, Level.BLOCKED, "{text}"),
    Kind(
        Reason.NO_CHECKSUM.value,
        Level.BLOCKED,
        "No checksum known for Concourse {version} on {architecture}",
        "to trust the file that is there now, run curl -fLo concourse.tgz {url} && juju config "
        "{application} concourse-version={version}@sha256:$(sha256sum < concourse.tgz | cut "
        "-c-64); or juju attach-resource {application} concourse=<release tarball>",
    ),
    Kind(
        Reason.UNKNOWN_GPU_IDS.value,
        Level.BLOCKED,
        "gpu-device-ids: no GPU {unknown} on this machine, which has GPU {have}",
        "juju config {application} gpu-device-ids=<ids from that list, or all>",
    ),
    Kind(
        Reason.CHOSEN_GPUS_GONE.value,
        Level.BLOCKED,
        "No GPU of gpu-device-ids is on this machine any more",
        "see sudo dmesg and lspci, or choose others: juju config {application} "
        "gpu-device-ids=<ids>; if cards were swapped, set it to all, then to the indexes again",
    ),
    Kind(
        Reason.MIG_WITHOUT_DEVICES.value,
        Level.BLOCKED,
        "MIG mode is on without MIG devices on GPU {gpus}",
        "create some (sudo nvidia-smi mig -i <GPU> -cgi <profiles> -C), or turn MIG mode off "
        "(sudo nvidia-smi -i <GPU> -mig 0)",
    ),
    Kind(
        Reason.GPUS_PER_TASK_TOO_LARGE.value,
        Level.BLOCKED,
        "gpus-per-task={wanted} is more than the {have} {nouns} that tasks may use here",
        "juju config {application} gpus-per-task={have}{more}",
    ),
    Kind(
        Reason.ALL_UNAVAILABLE.value,
        Level.BLOCKED,
        "All GPUs are unavailable ({gpus})",
        "{remedy}",
    ),
    Kind(
        "gpus-failed-together",
        Level.BLOCKED,
        "{out} of {all} GPUs failed within 5 min ({cause}); no more are quarantined for it",
        "check driver and host (sudo dmesg; journalctl -u gpu-ci-health). To quarantine the rest "
        "too: juju config {application} quarantine-limit-percent=100",
    ),
    Kind(
        Reason.RIVAL.value,
        Level.BLOCKED,
        "{rival} owns /run/containerd/containerd.sock, which Concourse needs",
        "stop and disable it; if only Docker uses it, juju config {application} "
        "container-engines=docker gives Docker a containerd of its own; or use another machine",
    ),
    Kind(
        Reason.FOREIGN_RUNC.value,
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
        Reason.TWO_WAYS_TO_WEB.value,
        Level.BLOCKED,
        "tsa-hosts is set, and a web is integrated as well",
        "juju config {application} tsa-hosts= tsa-public-keys=, or juju remove-relation "
        "{application} <web application>",
    ),
    Kind(
        Reason.SEVERAL_WEBS.value,
        Level.BLOCKED,
        "Integrated with several Concourses ({webs})",
        "juju remove-relation {application} <web application>, for each of them but one",
    ),
    Kind(
        Reason.OWN_WEB_AND_ANOTHER.value,
        Level.BLOCKED,
        "This unit runs a web of its own and is integrated with another one",
        "juju remove-relation {application} <web application>, or deploy its workers with "
        "deployment-mode=worker",
    ),
    Kind(
        Reason.WEB_IS_OTHER_RELEASE.value,
        Level.BLOCKED,
        "Worker runs Concourse {ours}, web {theirs}; web does not schedule on that version",
        "{how}",
    ),
    Kind(
        Reason.WEB_NOT_FOLLOWED.value,
        Level.BLOCKED,
        "Cannot follow web to Concourse {theirs} ({why}); still on {ours}",
        "{how}",
    ),
    Kind(
        Reason.RELEASE_FAILED.value,
        Level.BLOCKED,
        "Upgrade to Concourse {version} failed ({why}); rolled back to {before}",
        "see journalctl -u concourse-web -u concourse-worker. To stay: juju config {application} "
        "concourse-version={before}. To try again, change the version or the resource, or "
        "refresh the charm",
    ),
    Kind(
        Reason.WEB_KEYS_LOST.value,
        Level.BLOCKED,
        "Web's keys and admin password are missing from Juju",
        "juju run {application}/leader replace-web-keys creates new ones and logs everybody out",
    ),
    Kind(
        Reason.URL_WITHOUT_TLS.value,
        Level.BLOCKED,
        "external-url '{url}' is not https, but web has a certificate",
        "juju config {application} external-url=https://...",
    ),
    Kind(
        Reason.CERTIFICATE_REFUSED.value,
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
        Reason.TLS_PORT_TAKEN.value,
        Level.BLOCKED,
        "web-tls-port and web-port are both {port}",
        "juju config {application} web-port=8080 web-tls-port=443",
    ),
    Kind(
        Reason.KEY_FORM_UNKNOWN.value,
        Level.BLOCKED,
        "Concourse {ours} does not accept a database-encryption-key in hex or base64",
        "use a key of 16 or 32 characters, or release 8.2.0 or later: juju config {application} "
        "concourse-version=<release>",
    ),
    Kind(
        Reason.SEVERAL_WITHOUT_DATABASE.value,
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
        "machine-taken",
        Level.BLOCKED,
        "This machine belongs to {owner}",
        "juju remove-unit {unit}, or {other}. If Juju has no {other} any more, run sudo rm -r "
        "{agent} on the machine",
    ),
    Kind("step-failed", Level.BLOCKED, "{text}"),
)

_WAITING: typing.Final = (
    Kind(
        Reason.RESOURCE_UNKNOWN.value,
        Level.WAITING,
        "Waiting for Juju to report whether the resource concourse is attached",
        "see juju resources {application}",
    ),
    Kind(
        Reason.NO_TSA.value,
        Level.WAITING,
        "Waiting for a web",
        "juju integrate <web application>:web-tsa {application}:worker-tsa",
    ),
    Kind(
        Reason.NO_TSA_DATA.value,
        Level.WAITING,
        "Waiting for the web unit to publish its TSA address and key",
    ),
    Kind(
        Reason.NO_USABLE_TSA_DATA.value,
        Level.WAITING,
        "Waiting for usable data from web ({refused})",
        "check juju show-unit {unit} and correct web, or juju remove-relation {application} <web "
        "application> and juju config {application} tsa-hosts=<address>:<port> "
        "tsa-public-keys=<web's TSA key>",
    ),
    Kind(
        Reason.NO_DATABASE.value,
        Level.WAITING,
        "Waiting for a database",
        "juju integrate {application}:postgresql postgresql:database",
    ),
    Kind(
        Reason.NO_DATABASE_DATA.value,
        Level.WAITING,
        "Waiting for the database's address and credentials",
    ),
    Kind(
        Reason.NO_USABLE_DATABASE_DATA.value,
        Level.WAITING,
        "Waiting for usable data from the database ({refused})",
        "check juju show-unit {unit} and correct the database, or juju remove-relation "
        "{application}:postgresql <database application> and integrate another one",
    ),
    Kind(
        Reason.DATABASE_NOT_GRANTED.value,
        Level.WAITING,
        "Waiting for the database to grant its secret",
    ),
    Kind(
        Reason.NO_CERTIFICATE.value,
        Level.WAITING,
        "Waiting for web's certificate from the TLS provider",
    ),
    Kind(
        Reason.NO_WEB_KEYS.value,
        Level.WAITING,
        "Waiting for the leader unit to create web's keys",
    ),
    Kind(
        Reason.NO_ADDRESS.value,
        Level.WAITING,
        "Waiting for Juju to report this unit's address",
    ),
    Kind(
        Reason.NO_ADDRESS_IN_NETWORK.value,
        Level.WAITING,
        "Waiting for an address in web-advertise-address {wanted}",
        "this machine has {has}; juju config {application} web-advertise-address=<address, name "
        "or network>",
    ),
    Kind(
        Reason.NO_USABLE_ADDRESS.value,
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
    Kind("drain-queued", Level.WAITING, "Queued for {then}: {turn}"),
    Kind("machine-unreadable", Level.WAITING, "{text}"),
    Kind("step-retried", Level.WAITING, "{text}"),
)

_MAINTENANCE: typing.Final = (
    Kind("draining", Level.MAINTENANCE, "Draining ({left}, {waited} of {timeout}), then {then}",
         "{builds}"),
    Kind("paused", Level.MAINTENANCE, "Paused: {reason} ({left})"),
    Kind("removing", Level.MAINTENANCE, "Removing this unit"),
)  # fmt: skip

# All but the first are notes in the brackets of a unit that is ready.
_ACTIVE: typing.Final = (
    Kind("ready", Level.ACTIVE, "{role} ready"),
    Kind("gpus", Level.ACTIVE, "GPU: {count}x {vendor}"),
    Kind("gpus-cordoned", Level.ACTIVE, "{count} cordoned: {gpus}"),
    Kind("gpus-quarantined", Level.ACTIVE, "{count} quarantined: {gpus}"),
    Kind("gpus-external", Level.ACTIVE, "{count} in use outside CI: GPU {gpus}"),
    Kind("gpus-missing", Level.ACTIVE, "{count} missing: GPU {gpus}"),
    Kind("gpus-lost", Level.ACTIVE, "{count} lost: {addresses}"),
    Kind("self-test-passed", Level.ACTIVE, "{test} passed"),
    Kind("self-test-failed", Level.ACTIVE, "{test} failed", "{failure}"),
    Kind(
        "self-test-incomplete",
        Level.ACTIVE,
        "{test} incomplete (GPUs stay in use; tried again after 5 min)",
        "{failure}",
    ),
    Kind(
        "gpu-wait-capped",
        Level.ACTIVE,
        "gpu-wait-timeout limited to {longest} s",
        "{why}",
    ),
    Kind(
        "gpu-shared",
        Level.ACTIVE,
        "GPU {gpus} also given to tasks by {units}",
        "divide the cards (on the LXD host: scripts/lxd-gpu {application}), or set gpu-device-ids",
    ),
    Kind(
        "gpus-not-enabled",
        Level.ACTIVE,
        "{found} found, but enable-gpu=false",
        "juju config {application} enable-gpu=true",
    ),
    Kind(
        "gpu-health-disabled",
        Level.ACTIVE,
        "GPU health service is off (gpu-health=disabled)",
    ),
    Kind(
        "gpu-health-down",
        Level.ACTIVE,
        "GPU health service is not running",
        "see journalctl -u gpu-ci-health",
    ),
    Kind(
        "gpu-health-observes",
        Level.ACTIVE,
        "GPU health service quarantines no GPU (gpu-health=observe)",
    ),
    Kind(
        "gpu-metrics-port-taken",
        Level.ACTIVE,
        "no GPU metrics, as another program has port {port}",
        "stop that program, or set another gpu-metrics-port below 1024",
    ),
    Kind("driver-upgrade", Level.ACTIVE, "{text}"),
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
    Kind(
        "relation-idle",
        Level.ACTIVE,
        "relation {endpoint} to {other} does nothing {why}",
        "juju remove-relation {application}:{endpoint} {other}",
    ),
    Kind("data-refused", Level.ACTIVE, "refused {text}"),
)  # fmt: skip

KINDS: typing.Final = {kind.code: kind for kind in (*_BLOCKED, *_WAITING, *_MAINTENANCE, *_ACTIVE)}
"""Every kind by its code, but those of gpu_agent.diagnosis."""


def text(code: str, **values: object) -> str:
    """Return the text of a kind with these values."""
    return KINDS[code].text(**values)


def line(code: str, **values: object) -> Line:
    """Return a line of a kind with these values."""
    kind = KINDS[code]
    return Line(kind.level, code, kind.text(**values))
