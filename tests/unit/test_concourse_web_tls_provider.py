# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Web's certificate, signed by the library that applications which sign use (its class V4)."""

import dataclasses
import datetime
import functools
import json
import os
import time

import ops
import pytest
from ops import testing

from ci.concourse.plan import messages
from ci.concourse.web.tls import Signing
from tests import certificates, once
from tests.unit.situations import database, state

library = pytest.importorskip("charmlibs.interfaces.tls_certificates", reason="not installed")

META = {"name": "ca", "provides": {"certificates": {"interface": "tls-certificates"}}}
LIFE = datetime.timedelta(days=90)


@functools.cache
def authority():
    """Its key and its certificate."""
    key = library.PrivateKey.from_string(once.rsa_key(9))
    about = library.CertificateRequestAttributes(common_name="ca")
    return key, library.Certificate.generate_self_signed_ca(about, key, LIFE)


class Signer(ops.CharmBase):
    """As self-signed-certificates: at each event it signs what is asked for and not there."""

    refuses = ""

    def __init__(self, framework):
        super().__init__(framework)
        self.certificates = library.TLSCertificatesProvidesV4(self, "certificates")
        framework.observe(self.on.certificates_relation_changed, self._sign)
        framework.observe(self.on.stop, self._revoke)

    def _revoke(self, _):
        self.certificates.revoke_all_certificates()

    def _sign(self, _):
        key, ca = authority()
        for asked in self.certificates.get_outstanding_certificate_requests():
            request = asked.certificate_signing_request
            if self.refuses:
                code = library.CertificateRequestErrorCode.DOMAIN_NOT_ALLOWED
                error = library.CertificateError(code=code, name=code.name, message=self.refuses)
                self.certificates.set_relation_error(
                    library.ProviderCertificateError(asked.relation_id, request, error)
                )
                continue
            signed = library.Certificate.generate(
                csr=request, ca=ca, ca_private_key=key, validity=LIFE
            )
            self.certificates.set_relation_certificate(
                library.ProviderCertificate(
                    asked.relation_id, signed, request, ca, chain=[signed, ca]
                )
            )


class Both:
    """Our unit and the one that signs, each told of what the other has said."""

    def __init__(self, context):
        self.ours = context
        self.theirs = testing.Context(Signer, meta=META)
        self.web = state(
            "web", [database(), testing.Relation("certificates", remote_app_name="ca")]
        )
        self.signer = testing.State(
            leader=True, relations=[testing.Relation("certificates", remote_app_name="unit")]
        )
        self.step()

    @property
    def asked(self):
        (one,) = self.web.get_relations("certificates")
        return one

    @property
    def answered(self):
        (one,) = self.signer.get_relations("certificates")
        return one

    def step(self):
        """One event of ours, with what the other side has said until now."""
        told = dataclasses.replace(self.asked, remote_app_data=self.answered.local_app_data)
        others = [one for one in self.web.relations if one.id != told.id]
        self.web = dataclasses.replace(self.web, relations=[*others, told])
        self.web = self.ours.run(self.ours.on.relation_changed(told), self.web)
        return self.web.unit_status

    def sign(self, event="changed"):
        """One event of the other side, and then one of ours."""
        told = dataclasses.replace(
            self.answered, remote_units_data={0: self.asked.local_unit_data}
        )
        before = dataclasses.replace(self.signer, relations=[told])
        on = self.theirs.on
        happens = on.stop() if event == "revoke" else on.relation_changed(told)
        self.signer = self.theirs.run(happens, before)
        return self.step()


@pytest.fixture
def both(context, rooms, tmp_path):
    signing = Signing(tmp_path, lambda: once.rsa_key(3))
    rooms.hand_in(signing=signing)
    both = Both(context)
    both.rooms, both.signing = rooms, signing
    return both


def shown(both):
    """The certificate that web is told to show, and has from now on."""
    both.signing.shown.write_text(both.rooms.web.tls.chain)
    return both.rooms.web.tls.chain


def test_it_is_signed_once_and_shown_with_its_authority(both):
    assert both.rooms.web is None
    assert both.sign() == testing.ActiveStatus("Web ready")
    chain = shown(both)
    assert chain.strip().endswith(str(authority()[1]).strip())
    assert chain.count("BEGIN CERTIFICATE") == 2
    assert both.sign() == testing.ActiveStatus("Web ready")
    assert both.rooms.web.tls.chain == chain, "a second event brings no other"


def test_what_is_refused_is_said_with_the_next_step_until_it_is_signed(both):
    Signer.refuses = "only *.example.com\nis signed"
    try:
        blocked = both.sign()
        why = "DOMAIN_NOT_ALLOWED: only *.example.com is signed"
        assert blocked == testing.BlockedStatus(
            messages.text("certificate-refused", why=why, application="unit")
        )
        assert both.rooms.web is None
    finally:
        Signer.refuses = ""
    assert both.sign() == testing.ActiveStatus("Web ready")


def test_a_certificate_that_is_revoked_stays_until_another_is_there(both):
    both.sign()
    first = shown(both)
    assert both.sign("revoke") == testing.ActiveStatus(
        "Web ready (web's certificate was revoked; waiting for a new one)"
    )
    assert both.rooms.web.tls.chain == first, "a web that speaks HTTPS goes on"
    assert both.sign() == testing.ActiveStatus("Web ready")
    assert shown(both) != first


def test_it_is_renewed_before_it_ends(both, tmp_path):
    both.sign()
    first, request = shown(both), both.signing.pending()
    # The same certificate near its end, and the request of its first days.
    both.signing.shown.write_text(certificates.made("a", days=5, signer=9, request=request))
    long_ago = time.time() - 190 * 86400
    os.utime(tmp_path / "tls_request.pem", (long_ago, long_ago))
    both.step()
    assert both.signing.pending() != request
    # Who signs takes the former away, since nobody asks for it any more.
    assert both.sign() == both.step()
    assert shown(both) != first
    assert both.step() == testing.ActiveStatus("Web ready")
    assert len(json.loads(both.answered.local_app_data["certificates"])) == 1


def test_no_private_key_leaves_the_machine(both):
    both.sign()
    assert "PRIVATE" not in str([both.web.relations, both.signer.relations])
