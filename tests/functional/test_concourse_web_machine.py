# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Web as a real service, with all that an operator may ask of it; its database goes away.

Each start of web takes a second of a processor: a test goes on from the web of the one before.
"""

import contextlib
import secrets
import time

import pytest

from tests import certificates, once
from tests.functional.ci_host import DATABASE, ODD, Host
from tests.functional.concourse_machine import NEEDS, PYTHONPATH, REAL, concourse_machine
from tests.secret_search import leaks

pytestmark = NEEDS

NAME = "db.lab.test"
PASSWORDS = [secrets.token_hex(12) for _ in range(2)]
USER = "p:w\"'$%\\ " + secrets.token_hex(8)
OIDC = f"{ODD} {secrets.token_hex(16)}"
ADMIN = secrets.token_hex(16)
KEYS = [secrets.token_hex(16) for _ in range(3)]
CA = certificates.ca()
GOOD = {
    **DATABASE, "host": NAME, "user": "web", "name": "web", "password": PASSWORDS[0], "tls": True,
    "ca": CA,
}  # fmt: skip
POSTGRESQL = f"""
cd /srv; mv db.key db.crt /etc/postgresql; chown postgres: /etc/postgresql/db.*
echo '127.0.0.1 {NAME}' >>/etc/hosts
conf=$(ls -d /etc/postgresql/*/main)
sed -i '/^host/d' $conf/pg_hba.conf
echo 'hostssl all all 127.0.0.1/32 scram-sha-256' >>$conf/pg_hba.conf
cat >>$conf/postgresql.conf <<'END'
ssl=on
ssl_cert_file='/etc/postgresql/db.crt'
ssl_key_file='/etc/postgresql/db.key'
END
systemctl restart postgresql@*-main.service
"""
GET = """
import ssl, sys, urllib.request
context = ssl.create_default_context(cafile="/srv/ca.pem")
print(urllib.request.urlopen(sys.argv[1], context=context, timeout=5).read().decode())
"""
THIEF = """
import os, socket
os.setuid(65534)
with socket.create_server(("127.0.0.1", 8080)) as listener:
    print("listens", flush=True)
    one = listener.accept()[0]
    one.settimeout(20)
    print(one.recv(65536), flush=True)
"""
URL = "http://127.0.0.1:8080"
NAMES = (
    f"PYTHONPATH={PYTHONPATH} /usr/bin/python3 -B -S -m ci.concourse.api.build_info_program "
    "some-handle 2>&1"
)
LOGIN = """
read -r password; cd /; export HOME=/root
/srv/fly -t {user} login -c http://127.0.0.1:8080 -u {user} -p "$password"
"""


def main_team(*names):
    return {"type": "web settings", "main_team": names}


def key(new="", old=""):
    return {"type": "keys", "new": new, "old": old}


def certificate(days):
    pem = certificates.made("127.0.0.1", key=1, signer=9, days=days)
    return {"type": "tls", "chain": pem, "key": once.rsa_key(1)}


USERS = [["ann", USER], ["bob", "password of bob"]]
WANTED = {"users": USERS, "settings": main_team("ann"), "metrics_port": 391}
VARIABLES = [["oidc-client-secret", OIDC], ["vault-ca-cert", f"{OIDC[::-1]}\n"]]
# With all that has secrets.
HTTPS = {
    "url": "https://127.0.0.1:8443", "tls_port": 8443, "users": USERS, "encryption": key(KEYS[0]),
    "settings": {"type": "web settings", "variables": VARIABLES},
}  # fmt: skip


class Web(Host):
    """The machine, and its web.

    Attributes:
        database: as it is related now.
    """

    database = GOOD

    def script(self, text, given=""):
        return self.machine.enter("/bin/bash", "-c", text, stdin=given, timeout=180).stdout

    def write(self, path, text):
        self.script(f"cat >{path}; chmod 600 {path}", text)

    def sql(self, text, database="postgres"):
        psql = ["/usr/sbin/runuser", "-u", "postgres", "--", "/usr/bin/psql", "-qtA", database]
        return self.machine.enter(*psql, stdin=text).stdout.strip()

    def apply(self, database=None, tls=None, url=URL, **wanted):
        """Have web run so. Return whether it did not before."""
        options = {"type": "options", **wanted}
        plan = self._web_plan()
        shared = {**plan["secrets"], "admin_password": ADMIN}
        plan |= {
            "secrets": shared, "database": database or self.database, "wanted": options,
            "tls": tls, "external_url": url,
        }  # fmt: skip
        return self.call("tests.functional.ci_driver.apply_web", plan)["result"]

    def ask(self, name):
        return self.call(f"ci.concourse.web.health.{name}", say=False)["result"]

    def get(self, url):
        return self.machine.enter("/usr/bin/python3", "-c", GET, url).stdout

    def login(self, user, password):
        """Whether somebody can log in; a password that is an argument would be in the journal."""
        login = LOGIN.format(user=user)
        told = self.machine.enter("/bin/bash", "-c", login, stdin=f"{password}\n", check=False)
        return told.returncode == 0

    def await_health(self, lost=""):
        until(lambda: (self.ask("healthy"), self.ask("lost_database")) == (True, lost))


def until(condition, seconds=90):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.5)


@pytest.fixture(scope="module")
def web():
    with concourse_machine("web") as machine, contextlib.closing(Web(machine)) as host:
        host.release()
        host.call("ci.concourse.web.local_postgresql.HERE.ensure", say=True)
        host.write("/srv/ca.pem", CA)
        host.write("/srv/db.key", once.rsa_key(2))
        host.write("/srv/db.crt", certificates.made(NAME, key=2, signer=9))
        host.script(POSTGRESQL)
        host.sql(f"CREATE ROLE web LOGIN PASSWORD '{PASSWORDS[0]}'; CREATE DATABASE web OWNER web")
        host.script("cd /srv; tar xzf /opt/concourse/current/fly-assets/fly-linux-amd64.tgz")
        host.apply()
        yield host


def test_a_database_is_verified_by_its_name(web):
    web.await_health()
    assert web.environment("concourse-web")["CONCOURSE_POSTGRES_SSLMODE"] == "verify-full"
    assert web.sql("SELECT count(*) > 0 FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid) "
                   "WHERE ssl AND usename = 'web'") == "t"  # fmt: skip
    assert web.apply() is False, "a second run changes nothing"


def test_metrics_are_served_on_the_machine_alone(web):
    assert "concourse_" in web.get("http://127.0.0.1:9391/metrics")
    assert web.script("ss -Hltn 'sport = :9391'").split()[3] == "127.0.0.1:9391"
    web.apply(**WANTED)  # a port that no other user can take
    assert "concourse_" in web.get("http://127.0.0.1:391/metrics")
    assert web.script("ss -Hltn 'sport = :9391'") == ""


def test_local_users_log_in(web):
    web.apply(**WANTED)
    assert web.login("ann", USER)
    assert web.sh("HOME=/root /srv/fly -t ann workers --json").strip() in ("[]", "null")
    assert not web.login("ann", "password of bob")


def test_other_credentials_are_used_at_once(web):
    web.apply(**WANTED)
    web.sql(f"ALTER ROLE web PASSWORD '{PASSWORDS[1]}'")
    before = web.main_pid("concourse-web")
    web.database = {**GOOD, "password": PASSWORDS[1]}
    assert web.apply(**WANTED) is True
    assert web.main_pid("concourse-web") != before
    web.await_health()


def test_a_database_that_goes_away_is_named_and_comes_back(web):
    others = {"settings": main_team("admin"), "metrics_port": 0}
    web.apply(**WANTED)
    web.script("systemctl stop 'postgresql@*'")
    gone = f"{NAME}:5432 (connection refused)"
    assert web.ask("lost_database") == gone
    began = time.monotonic()
    # What a hook does meanwhile does not wait for it.
    assert web.apply(**others) is True
    assert web.ask("lost_database") == gone
    assert time.monotonic() - began < 45
    web.script("systemctl start postgresql@$(ls /etc/postgresql | grep -E '^[0-9]+$')-main")
    web.await_health()
    web.apply(**others)  # a web that was started anew is told of its workers' keys
    assert web.apply(**others) is False
    # And it is the web that was asked for meanwhile.
    assert web.script("ss -Hltn 'sport = :391'") == ""
    assert not web.login("ann", USER)
    assert web.login("admin", ADMIN)


def test_a_host_that_is_down_is_passed_over(web):
    web.apply({**web.database, "host": "127.0.0.9", "others": ["127.0.0.1"]})
    web.await_health()
    # By its address it is no server of that certificate's, which is then not asked for.
    assert web.environment("concourse-web")["CONCOURSE_POSTGRES_SSLMODE"] == "verify-ca"


def test_https_with_a_certificate_that_is_renewed(web):
    web.apply(tls=certificate(5), **HTTPS)
    assert '"version"' in web.get(f"{HTTPS['url']}/api/v1/info")
    assert web.ask("certificate_end")[1] is False
    assert web.ask("certificate_end")[0]
    before = web.main_pid("concourse-web")
    assert web.apply(tls=certificate(5), **HTTPS) is False
    assert web.apply(tls=certificate(50), **HTTPS) is True
    assert web.main_pid("concourse-web") != before
    assert '"version"' in web.get(f"{HTTPS['url']}/api/v1/info")
    assert web.ask("certificate_end") == ["", False]


def test_another_user_on_webs_port_is_sent_nothing(web):
    web.apply(tls=certificate(50), **HTTPS)
    assert web.script(NAMES) == "{}\n", "web itself is told the password"
    web.write("/srv/thief.py", THIEF)
    web.script("systemctl stop concourse-web")
    web.script("systemd-run --quiet --unit=thief -p StandardOutput=file:/srv/stolen "
               "/usr/bin/python3 /srv/thief.py")  # fmt: skip
    until(lambda: web.script("cat /srv/stolen"))
    assert web.call("ci.concourse.service.taken", say=False)["result"] == [["web", 8080]]
    said = web.script(f"{NAMES} || true")
    until(lambda: web.script("cat /srv/stolen").count("\n") == 2)
    assert web.script("cat /srv/stolen") == "listens\nb''\n"
    assert said == "port 8080 of 127.0.0.1 is another program's, not web's\n"


@pytest.mark.skipif(not REAL, reason="the stand-in encrypts nothing: GPUCI_CONCOURSE_TARBALL")
def test_what_the_database_holds_is_encrypted_anew_and_decrypted(web):
    web.apply(encryption=key(KEYS[0]))
    web.write("/srv/p.yml", "jobs: [{name: one, plan: []}]\n")
    assert web.login("admin", ADMIN)
    web.sh("HOME=/root /srv/fly -t admin set-pipeline -n -p p -c /srv/p.yml")

    def held():
        return web.sql("SELECT nonce, config FROM jobs WHERE name = 'one'", "web")

    def readable():
        return "one" in web.sh("HOME=/root /srv/fly -t admin get-pipeline -p p")

    states = [held()]
    for keys in (key(KEYS[1]), key("".join(KEYS[:2])), key()):
        web.apply(encryption=keys)
        states.append(held())
        assert readable()
    assert len(set(states)) == 4, "each is another text"
    assert [bool(state.partition("|")[0]) for state in states] == [True, True, True, False]
    # And once more, from nothing.
    web.apply(encryption=key(KEYS[2]))
    assert readable()
    assert held().partition("|")[0]
    web.apply()


def test_no_secret_shows(web):
    web.apply(tls=certificate(50), **HTTPS)
    assert web.environment("concourse-web")["CONCOURSE_OIDC_CLIENT_SECRET"] == OIDC
    hidden = [*PASSWORDS, USER, OIDC, OIDC[::-1], KEYS[0], once.rsa_key(1), ADMIN]
    assert leaks(web.script, hidden) == []
    # The search does find what is there to be found.
    web.script("cat >/var/log/told; chmod 644 /var/log/told; cp /var/log/told /srv/told", OIDC)
    assert set(leaks(web.script, hidden)) == {"log /var/log/told", "file /srv/told"}
    web.script("rm /var/log/told /srv/told")


def test_it_goes_back_to_plain_http_and_leaves_nothing(web):
    web.apply()
    assert web.sh("ls /etc/concourse/keys | grep tls; true") == ""
    assert '"version"' in web.get(f"{URL}/api/v1/info")
    assert web.script(NAMES) == "{}\n"
    web.call("ci.concourse.web.web.remove", say=False)
    assert web.sh("ls -A /etc/concourse 2>&-; true") == ""
