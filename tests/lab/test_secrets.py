# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""No machine, databag, log, status or unit state shows a secret; planted secrets are found."""

import contextlib
import json
import secrets

import pytest

from tests import certificates, once
from tests.lab.site import READY
from tests.secret_search import leaks, lines

ANN, GITHUB, KEY = (secrets.token_hex(16) for _ in range(3))
TLS_KEY = once.rsa_key(1)
SECRETS = {
    "local-users": {"ann": ANN},
    "database-encryption-key": {"encryption-key": KEY},
    "web-settings-secret": {
        "github-client-id": "lab", "github-client-secret": GITHUB, "main-team-local-user": "ann",
    },
    "web-tls-secret": {
        "certificate": certificates.made("ci.example.com", key=1), "private-key": TLS_KEY,
    },
}  # fmt: skip
# What an agent's own database, or an operator's terminal, may have.
MEANT_TO_SHOW = ("get-admin-password",)
FOLDERS = (
    "/etc",
    "/opt",
    "/run",
    "/tmp",
    "/var/lib/gpu-ci",
    "/var/backups",
    "/usr/local",
    "/home",
)
PLANT = f"""
read -r secret
umask 022
bash -c 'read -r secret; exec -a "sleep $secret" sleep 600' <<<"$secret" >/dev/null 2>&1 &
echo $! >/run/planted.pids
SECRET=$secret setpriv --reuid nobody --regid nogroup --clear-groups sleep 600 \\
  </dev/null >/dev/null 2>&1 &
echo $! >>/run/planted.pids
systemd-cat <<<"$secret"
echo "$secret" >/var/log/planted
for folder in {" ".join(FOLDERS)}; do echo "$secret" >$folder/planted; done
echo "$secret" >/var/lib/planted
chmod 600 /var/lib/planted; chown nobody /var/lib/planted
journalctl --sync
cat /run/planted.pids
"""
UPROOT = f"""
kill $(cat /run/planted.pids)
rm -f /run/planted.pids /var/log/planted /var/lib/planted
for folder in {" ".join(FOLDERS)}; do rm -f $folder/planted; done
true
"""


@pytest.fixture(scope="module")
def dressed(site):
    """Web and worker with secrets of each kind, and a backup with all of them."""
    model = site.lab.model
    uris = {name: model.secrets.add(name, content) for name, content in SECRETS.items()}
    for name in uris:
        model.secrets.grant(name, "web")
    options = {name.replace("-", "_"): uri for name, uri in uris.items()}
    site.configure("web", external_url="https://ci.example.com", **options)
    assert site.status("web/0") == ("active", "Web ready")
    action = model.run_action("web/0", "backup", {})
    site.lab.settle()
    results = json.loads(
        site.lab.store.row("SELECT * FROM action WHERE id = ?", action)["results"]
    )
    site.backup = results["path"]
    yield site
    site.sh(f"rm {site.backup}", "web/0")
    site.configure("web", reset=(*SECRETS, "external-url"))
    site.fly.login()
    site.worker("lab-worker-0", 60)
    assert site.status() == READY


def hidden(site):
    """Each secret that Juju, web and worker have."""
    found = {ANN, GITHUB, KEY, TLS_KEY}
    for content in site.lab.store.column("SELECT content FROM secret_revision"):
        fields = json.loads(content)
        found |= {fields[name] for name in fields if "password" in name or "key" in name}
    found |= {site.sh("cat /etc/concourse/keys/worker_key")}
    keys = [one for one in found if "PRIVATE KEY" in one]
    assert len(keys) >= 4, "worker, TSA, sessions, certificate"
    password = site.settings("web/0")["CONCOURSE_POSTGRES_PASSWORD"]
    assert password in found
    return found


def shown(site, secrets):
    """Which tables of Juju's, and which units' logs, have one of these secrets in them."""
    store, looked_for = site.lab.store, lines(secrets)
    tables = store.column("SELECT name FROM sqlite_master WHERE type = 'table'")
    found = set()
    for table in set(tables) - {"secret_revision"}:
        for row in store.rows(f"SELECT * FROM {table}"):
            if table == "action" and row["name"] in MEANT_TO_SHOW:
                continue
            text = "\n".join(str(value) for value in dict(row).values())
            # A text in JSON has its line ends escaped.
            found |= {table for line in looked_for if line in text}
    for unit in store.column("SELECT name FROM unit"):
        with contextlib.suppress(FileNotFoundError):
            log = site.lab.controller.log_path(unit).read_text()
            found |= {f"log of {unit}" for line in looked_for if line in log}
    return found


def search(site, machine):
    def run(script, given):
        return machine.run(["/bin/bash", "-c", script], stdin=given, timeout=300).stdout

    return lambda secrets: leaks(run, secrets)


def test_nothing_shows_a_secret(dressed):
    """On each machine of the lab, after hooks of each kind, and in what Juju keeps."""
    site = dressed
    for unit in ("web/0", "worker/0"):
        site.lab.controller.fire(unit, "upgrade-charm")
    site.tags()
    found = hidden(site)
    for name in site.lab.park.names():
        assert search(site, site.lab.park.get(name))(found) == [], name
    assert shown(site, found) == set()


def test_what_is_planted_is_found_each_in_its_place(dressed):
    site, planted = dressed, secrets.token_hex(16)
    machine, store = site.machine("web/0"), site.lab.store
    pids = machine.enter("/bin/bash", "-c", PLANT, stdin=f"{planted}\n").stdout.split()
    site.sh(f"chmod 644 {site.backup}", "web/0")
    try:
        files = {f"file {folder}/planted" for folder in (*FOLDERS, "/var/lib")}
        assert set(search(site, machine)([planted, KEY])) == files | {
            f"file {site.backup}",
            f"arguments of /proc/{pids[0]}",
            f"environment of /proc/{pids[1]}",
            "journal",
            "log /var/log/planted",
        }
    finally:
        machine.enter("/bin/bash", "-c", UPROOT)
        site.sh(f"chmod 600 {site.backup}", "web/0")
    sql = "INSERT INTO databag VALUES (0, 'web/0', 'planted', ?)"
    store.do(sql, json.dumps({"a": f"x{planted}\ny"}))
    assert shown(site, [planted]) == {"databag"}
    store.do("DELETE FROM databag WHERE key = 'planted'")
    message = site.status("web/0")[1]
    store.do("UPDATE unit SET message = ? WHERE name = 'web/0'", f"said {planted}")
    assert shown(site, [planted]) == {"unit"}
    store.do("UPDATE unit SET message = ? WHERE name = 'web/0'", message)
    assert shown(site, [planted]) == set()
