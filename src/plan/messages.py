# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The sentence for each problem that keeps a part of a unit from its work. Pure."""

import typing

from plan.problems import Reason

# For an action too, which needs nothing else of this unit.
WEB_KEYS_LOST: typing.Final = (
    "Juju doesn't give this unit the secret with web's keys and password: juju run "
    "{application}/leader replace-web-keys makes new ones"
)

# What the operator must do.
BLOCKED: typing.Final = {
    Reason.BAD_OPTION: "{text}",
    Reason.NO_CHECKSUM: (
        "No checksum is known for Concourse {version} on {architecture}: juju config "
        "{application} concourse-sha256=$(curl -fL {url} | sha256sum | cut -c-64) takes the file "
        "that is there now, or juju attach-resource {application} concourse=<release tarball>"
    ),
    Reason.GPU_OBSTACLE: "{what}: {remedy}",
    Reason.UNKNOWN_GPU_IDS: (
        "gpu-device-ids '{chosen}': no GPU has the id {unknown}. This machine has "
        "{have}{as_before}"
    ),
    Reason.CHOSEN_GPUS_GONE: (
        "All GPUs of gpu-device-ids '{chosen}' are gone: bring them back (dmesg, lspci) or "
        "choose others; if cards were swapped, set it to all and then back"
    ),
    Reason.MIG_WITHOUT_DEVICES: (
        "GPU {gpus} {have} MIG mode on but no MIG device: make some with nvidia-smi mig -cgi, or"
        " switch MIG mode off"
    ),
    Reason.TOO_FEW_GPUS: (
        "gpus-per-task '{wanted}' is more than the {have} {nouns} that tasks may use here: "
        "juju config {application} gpus-per-task={have}{more}"
    ),
    Reason.RIVAL: (
        "{rival} owns /run/containerd/containerd.sock, which Concourse needs: stop and "
        "disable it (if it is Docker's: juju config {application} container-engines=docker), or "
        "use another machine"
    ),
    Reason.FOREIGN_RUNC: "{path} would be used in place of the GPU wrapper: remove it",
    Reason.TWO_WAYS_TO_WEB: (
        "tsa-host is set while a web is related: juju config {application} tsa-host= "
        "tsa-public-key=, or remove the relation"
    ),
    Reason.SEVERAL_WEBS: (
        "Related to several Concourses at once, {webs}: juju remove-relation {application} "
        "<all but one>"
    ),
    Reason.OWN_WEB_AND_ANOTHER: (
        "This unit has a web of its own and is related to another: juju remove-relation "
        "{application} <web application>, or deploy its workers with deployment-mode=worker"
    ),
    Reason.WEB_IS_OTHER_RELEASE: (
        "Web runs Concourse {theirs}, which gives no work to {ours}: {how}"
    ),
    Reason.RELEASE_FAILED: "{text}",
    Reason.WEB_NOT_FOLLOWED: (
        "Web runs Concourse {theirs}, which follow-web-version can't follow: it is {why}. This "
        "worker keeps to {ours}: juju config {application} follow-web-version=false"
    ),
    Reason.WEB_KEYS_LOST: WEB_KEYS_LOST,
    Reason.URL_WITHOUT_TLS: (
        "external-url '{url}' is not https, and web has a certificate: juju config {application} "
        "external-url=https://..."
    ),
    Reason.CERTIFICATE_REFUSED: (
        "The application that is related signs no certificate for web: {why}: see its status, or "
        "juju config {application} external-url=https://<a name that it signs for>"
    ),
    Reason.TLS_PORT_TAKEN: (
        "web-tls-port '{port}' is web-port too: juju config {application} web-port=8080"
    ),
    Reason.KEY_FORM_UNKNOWN: (
        "encryption-key is in hex or base64, which Concourse {ours} does not know: give it 16 or "
        "32 characters, or juju config {application} concourse-version=8.2.0 or later"
    ),
    Reason.SEVERAL_WITHOUT_DATABASE: (
        "{units} units without a database in common would be as many Concourses: juju "
        "integrate {application}:postgresql postgresql:database, or juju remove-unit"
    ),
}

# What passes by itself, or as soon as somebody else has done a step.
WAITING: typing.Final = {
    Reason.GPU_OBSTACLE_PASSES: "{what}: {remedy}",
    Reason.RESOURCE_UNKNOWN: (
        "Waiting for Juju to tell whether there is a resource concourse: juju resources "
        "{application}"
    ),
    Reason.NO_TSA: (
        "Waiting for web-tsa: juju integrate <web application>:web-tsa {application}:worker-tsa"
    ),
    Reason.NO_TSA_DATA: "Waiting for the web unit to publish its TSA address and key",
    Reason.NO_USABLE_TSA_DATA: (
        "Waiting for usable data from web: {refused}: juju show-unit {unit} shows it: correct it "
        "at web, or juju remove-relation {application} <web application> and juju config "
        "{application} tsa-host=<address>:<port> tsa-public-key=<web's TSA key>"
    ),
    Reason.NO_DATABASE: (
        "Waiting for a database: juju integrate {application}:postgresql postgresql:database"
    ),
    Reason.NO_DATABASE_DATA: "Waiting for the database's address and credentials",
    Reason.NO_USABLE_DATABASE_DATA: (
        "Waiting for usable data from the database: {refused}: juju show-unit {unit} shows it: "
        "correct it at the database, or juju remove-relation {application}:postgresql <database "
        "application> and integrate another"
    ),
    Reason.SECRET_NOT_GRANTED: "Waiting for the database to grant its secret",
    Reason.NO_CERTIFICATE: "Waiting for web's certificate from the application that is related",
    Reason.NO_WEB_KEYS: "Waiting for the leader to make the web's keys",
    Reason.NO_ADDRESS: "Waiting for Juju to tell this unit's address",
    Reason.NO_ADDRESS_IN_NETWORK: (
        "Waiting for an address in advertise-address {wanted}: this machine has {has}"
    ),
    Reason.NO_USABLE_ADDRESS: (
        "Waiting for an address that others can reach: Juju offers {offered}: juju config "
        "{application} advertise-address=<address, name or network>"
    ),
}
