# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Web's certificate: from a secret or by another application; renewed, ended, taken away."""

import dataclasses
import json
import os
import time

import pytest
from cryptography import x509
from ops import testing

from ci.concourse.plan import messages
from ci.concourse.web import files as web_files
from ci.concourse.web import health as web_health
from ci.concourse.web.tls import Signing
from options import certificates as read
from plan import plan
from tests import certificates, once
from tests.unit.situations import codes, database, make_plan, parse, refused, state, unit

KEY = once.rsa_key(1)
LEAF = certificates.made("ci.example.com", key=1)
CHAINED = certificates.made("ci.example.com", key=1, signer=9)
CA = certificates.ca()
PAIR = {"certificate": LEAF, "private-key": KEY}
URL = "https://ci.example.com"


@pytest.fixture
def signing(tmp_path):
    """Web's certificate, in a folder of the test's own."""
    return Signing(tmp_path, lambda: once.rsa_key(3))


@pytest.fixture
def handed_in(rooms, signing):
    """The same, which the charm has."""
    rooms.hand_in(signing=signing)
    return signing


def test_a_pair_of_certificate_and_key():
    assert parse(web_tls_secret=PAIR).ci.web.tls == read.Tls(LEAF, KEY)
    assert "PRIVATE" not in repr(parse(web_tls_secret=PAIR).ci.web)
    assert parse().ci.web.tls is None
    with_chain = parse(
        web_tls_secret={**PAIR, "certificate": CHAINED, "chain": CA + CHAINED}
    ).ci.web.tls
    assert with_chain.chain == CHAINED + CA


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"certificate": LEAF}, "has no field private-key"),
        ({"private-key": KEY, "certificate": ""}, "has no field certificate"),
        ({**PAIR, "key": "x"}, "has the field key"),
        ({**PAIR, "certificate": "PEM"}, "no readable certificates in PEM"),
        ({**PAIR, "chain": "PEM"}, "no readable certificates in PEM"),
        ({**PAIR, "private-key": once.rsa_key(2)}, "does not match its private-key"),
        ({**PAIR, "private-key": "PEM"}, "does not match its private-key"),
        ({**PAIR, "certificate": CA + LEAF}, "does not match its private-key"),
    ],
)
def test_a_pair_that_can_not_be_used(fields, why):
    text = refused(web_tls_secret=fields)
    assert why in text
    assert "BEGIN" not in text


@pytest.mark.parametrize(
    ("options", "url", "port"),
    [
        ({}, "https://10.0.0.7", 443),
        ({"web-tls-port": 8443}, "https://10.0.0.7:8443", 8443),
        ({"external-url": URL}, URL, 443),
        # Another port in front of it, as a load balancer has.
        ({"external-url": f"{URL}:4443"}, f"{URL}:4443", 443),
    ],
)
def test_a_web_with_a_certificate_speaks_https(options, url, port):
    made = make_plan(unit("web", options={"web-tls-secret": PAIR, **options})).ci.own.web
    assert (made.external_url, made.open_port) == (url, port)
    assert web_files.Files().settings(made)["tls_port"] == port
    made = make_plan(unit("web")).ci.own.web
    assert (made.external_url, made.open_port) == ("http://10.0.0.7:8080", 8080)
    assert web_files.Files().settings(made)["tls_port"] == 0


@pytest.mark.parametrize(
    ("options", "code"),
    [({"external-url": "http://a"}, "url-without-tls"), ({"web-port": 443}, "tls-port-taken")],
)
def test_what_does_not_go_with_a_certificate(options, code):
    found = unit("web", options={"web-tls-secret": PAIR, **options})
    assert codes(found) == [("blocked", code)]
    assert make_plan(found).ci.own.web is plan.Keep.AS_IS
    assert codes(unit("web", options=options)) == []


@pytest.mark.parametrize(
    ("days", "near", "over"), [(90, False, False), (13, True, False), (-1, True, True)]
)
def test_the_end_of_a_certificate(tmp_path, days, near, over):
    path = tmp_path / "certificate"
    assert web_health.certificate_end(path) == ("", False)
    path.write_text("damaged")
    assert web_health.certificate_end(path) == ("", False)
    pem = certificates.made("a", key=1, days=days)
    path.write_text(pem)
    day = read.lifetime(pem)[2]
    assert web_health.certificate_end(path) == (day if near else "", over)


def test_a_request_is_made_once_for_its_names(signing, tmp_path):
    names = ("ci.example.com", "10.0.0.7", "fd00::7")
    assert signing.request(()) == signing.pending() == ""
    assert list(tmp_path.iterdir()) == []
    first = signing.request(names)
    assert signing.request(names) == first == signing.pending()
    asked = x509.load_pem_x509_csr(first.encode())
    found = asked.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name.value) for name in found] == list(names)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    other = signing.request(("other.example.com",))
    assert other != first
    assert x509.load_pem_x509_csr(other.encode()).public_key() == asked.public_key()
    assert signing.remove()
    assert not signing.remove()


def test_a_certificate_is_asked_for_anew_before_it_ends_and_once(signing, tmp_path):
    first = signing.request(("a",))
    old = certificates.made("a", days=5, signer=9, request=first)
    used = signing.certificate(old)
    signing.shown.write_text(used.chain)
    long_ago = time.time() - 190 * 86400
    os.utime(tmp_path / "tls_request.pem", (long_ago, long_ago))
    second = signing.request(("a",))
    assert second != first
    assert signing.request(("a",)) == second
    # Until the new one is there, web shows what it has.
    assert signing.certificate("") == used
    new = certificates.made("a", days=90, signer=9, request=second)
    assert signing.certificate(new).chain == new
    # One for a key that is not ours is nobody's.
    assert signing.certificate(LEAF) == used


def related(**data):
    return testing.Relation("certificates", remote_app_name="tls", remote_app_data=data)


def offered(request, pem, **more):
    entry = {"certificate_signing_request": request, "certificate": pem, "ca": CA, "chain": [CA]}
    return json.dumps([{**entry, **more}])


def web(*relations, **options):
    return state("web", [database(), *relations], **options)


def test_an_application_signs_webs_certificate_and_goes_again(context, rooms, handed_in):
    relation = related()
    waiting = context.run(context.on.relation_created(relation), web(relation))
    assert waiting.unit_status == testing.WaitingStatus(messages.text("no-certificate"))
    assert rooms.web is None
    told = waiting.get_relation(relation.id).local_unit_data["certificate_signing_requests"]
    assert "PRIVATE" not in told
    (asked,) = json.loads(told)
    request = asked["certificate_signing_request"]
    signed = certificates.made("192.0.2.0", signer=9, request=request)
    after = given(context, waiting, relation, offered(request, signed))
    assert after.unit_status == testing.ActiveStatus("Web ready")
    assert rooms.web.tls.chain == signed + CA
    assert rooms.web.external_url == "https://192.0.2.0"
    assert {port.port for port in after.opened_ports} == {443, 2222}
    assert "PRIVATE" not in str(after.relations)
    alone = dataclasses.replace(
        after, relations=[one for one in after.relations if one.endpoint != "certificates"]
    )
    after = context.run(context.on.config_changed(), alone)
    assert (rooms.web.tls, rooms.web.external_url) == (None, "http://192.0.2.0:8080")
    assert {port.port for port in after.opened_ports} == {8080, 2222}


def given(context, before, relation, text):
    changed = dataclasses.replace(
        before.get_relation(relation.id), remote_app_data={"certificates": text}
    )
    others = [one for one in before.relations if one.id != relation.id]
    after = dataclasses.replace(before, relations=[*others, changed])
    return context.run(context.on.relation_changed(changed), after)


@pytest.mark.parametrize(
    "text",
    [
        "", "[", "7", "[7]", "{}", '[{"certificate": "x"}]', "theirs", "foreign key", "no PEM",
        "revoked",
    ],
)  # fmt: skip
def test_data_of_that_application_that_can_not_be_used_is_waited_for(
    context, rooms, handed_in, text
):
    relation = related()
    waiting = context.run(context.on.relation_created(relation), web(relation))
    request = handed_in.pending()
    signed = certificates.made("192.0.2.0", signer=9, request=request)
    text = {
        "theirs": offered("another request", signed),
        "foreign key": offered(request, LEAF),
        "no PEM": offered(request, "PEM"),
        "revoked": offered(request, signed, revoked=True),
    }.get(text, text)
    after = given(context, waiting, relation, text)
    assert after.unit_status.message.startswith("Waiting for web's certificate")
    assert rooms.web is None


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ({"name": "OTHER", "message": "a\nb\x1b[31m"}, "(OTHER: a b [31m): "),
        ({"message": "\ud800²" * 1000}, "(²"),
        ({"name": [[1]], "message": {"a": None}}, "([[1]]: {'a': None}): "),
        *((hostile, "(no reason is given): ") for hostile in ({}, "x", 7, None, [])),
    ],
)
def test_why_nobody_signs_is_one_short_line(context, rooms, handed_in, error, words):
    relation = related()
    waiting = context.run(context.on.relation_created(relation), web(relation))
    told = json.dumps([7, {"csr": 7}, {"csr": handed_in.pending(), "error": error}])
    changed = dataclasses.replace(
        waiting.get_relation(relation.id), remote_app_data={"request_errors": told}
    )
    others = [one for one in waiting.relations if one.id != relation.id]
    after = context.run(
        context.on.relation_changed(changed),
        dataclasses.replace(waiting, relations=[*others, changed]),
    ).unit_status
    assert after.name == "blocked"
    assert words in after.message
    assert after.message.isprintable()
    assert len(after.message) < 400
    assert rooms.web is None


def test_the_operators_own_certificate_counts(context, rooms, handed_in):
    secret = testing.Secret(PAIR)
    before = dataclasses.replace(web(related(), web_tls_secret=secret.id), secrets=[secret])
    context.run(context.on.config_changed(), before)
    assert rooms.web.tls == read.Tls(LEAF, KEY)


@pytest.mark.parametrize("days", [5, -1])
def test_status_says_when_a_certificate_ends(context, rooms, handed_in, days):
    pem = certificates.made("a", key=1, days=days)
    handed_in.shown.write_text(pem)
    day = read.lifetime(pem)[2]
    secret = testing.Secret(PAIR)
    before = dataclasses.replace(web(web_tls_secret=secret.id), secrets=[secret])
    status = context.run(context.on.config_changed(), before).unit_status
    if days > 0:
        assert status == testing.ActiveStatus(f"Web ready (web's certificate ends on {day})")
    else:
        assert status == testing.BlockedStatus(
            f"Web's certificate ended on {day}: juju update-secret <that of web-tls-secret> with "
            "a new one"
        )


@pytest.mark.parametrize("fields", [None, {"certificate": LEAF}])
def test_a_secret_that_can_not_be_used_changes_nothing(context, rooms, handed_in, fields):
    """A web that speaks HTTPS does not fall back to HTTP."""
    secret = testing.Secret(fields or {"x": "y"})
    present = [secret] if fields else []
    before = dataclasses.replace(web(web_tls_secret=secret.id), secrets=present)
    after = context.run(context.on.config_changed(), before)
    assert after.unit_status.name == "blocked"
    assert after.unit_status.message.startswith("web-tls-secret")
    assert rooms.web is None
