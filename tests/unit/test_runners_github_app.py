# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The token of a GitHub App: signed, renewed before its end, and each way in which it fails."""

import base64
import datetime
import email.utils
import json
import typing

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding

from ci.runners.github import GitHub
from ci.runners.github_app import App
from ci.runners.service import Answer, Fault, ServiceError, Talk
from tests.unit.github_rig import answer, converse, key, pem

NOW = 1785585600.0
TOKEN = "ghs_theTokenOfThisHour"
HOUR = 3600.0


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


def app(clock: Clock | None = None) -> App:
    return App("Iv23liAbc", "77", pem(), clock or Clock())


def given(until: float = NOW + HOUR, token: str = TOKEN) -> Answer:
    end = datetime.datetime.fromtimestamp(until, datetime.timezone.utc)
    body = {"token": token, "expires_at": end.strftime("%Y-%m-%dT%H:%M:%SZ"), "permissions": {}}
    return answer(201, body)


def refused(status: int, said: str = "Not Found", at: float = NOW, **headers: str) -> Answer:
    return answer(
        status, {"message": said}, date=email.utils.formatdate(at, usegmt=True), **headers
    )


def failure(conversation: Talk[typing.Any], *answers: Answer) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        converse(conversation, *answers)
    for secret in (TOKEN, "PRIVATE KEY", "eyJ"):
        assert secret not in str(caught.value)
    return caught.value


def decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def test_the_request_is_signed_as_github_asks() -> None:
    secret, (call,) = converse(app().secret(), given())
    assert secret == f"Bearer {TOKEN}"
    assert (call.method, call.path) == ("POST", "/app/installations/77/access_tokens")
    scheme, _, token = call.secret.partition(" ")
    head, claims, signature = token.split(".")
    assert scheme == "Bearer"
    assert json.loads(decoded(head)) == {"alg": "RS256", "typ": "JWT"}
    # At most ten minutes, and dated back by one.
    assert json.loads(decoded(claims)) == {"iat": NOW - 60, "exp": NOW + 540, "iss": "Iv23liAbc"}
    # Raises if the signature is wrong.
    signed = f"{head}.{claims}".encode()
    key().public_key().verify(decoded(signature), signed, padding.PKCS1v15(), hashes.SHA256())
    assert "=" not in token
    assert token not in repr(call)


def test_a_token_is_kept_until_shortly_before_its_end() -> None:
    clock = Clock()
    found = app(clock)
    converse(found.secret(), given())
    clock.now = NOW + HOUR - 301
    assert converse(found.secret()) == (f"Bearer {TOKEN}", [])
    clock.now = NOW + HOUR - 299
    secret, _ = converse(found.secret(), given(clock.now + HOUR, "ghs_next"))
    assert secret == "Bearer ghs_next"


def test_a_conversation_gets_the_token_by_itself() -> None:
    service = GitHub("https://github.com", "acme", app(), now=lambda: NOW)
    none = answer(200, {"total_count": 0, "runners": []})
    _, calls = converse(service.runners(), given(), none)
    assert [call.secret for call in calls[1:]] == [f"Bearer {TOKEN}"]
    _, calls = converse(service.runners(), none)
    assert len(calls) == 1


def test_a_token_that_is_revoked_is_replaced() -> None:
    service = GitHub("https://github.com", "acme", app(), now=lambda: NOW)
    found = failure(service.runners(), given(), refused(401, "Bad credentials"))
    assert found.fault is Fault.CREDENTIAL
    none = answer(200, {"total_count": 0, "runners": []})
    _, calls = converse(service.runners(), given(token="ghs_next"), none)
    assert calls[1].secret == "Bearer ghs_next"


@pytest.mark.parametrize(
    ("wrong", "text"), [(-700, "700 s behind GitHub's"), (95, "95 s ahead of GitHub's")]
)
def test_a_wrong_clock_is_told_as_such(wrong: float, text: str) -> None:
    clock = Clock()
    clock.now = NOW + wrong
    said = "'Expiration time' claim ('exp') must be a numeric value"
    found = failure(app(clock).secret(), refused(401, said))
    assert found.fault is Fault.CLOCK
    assert text in str(found)


@pytest.mark.parametrize("wrong", [-60, 0, 60])
def test_a_key_of_another_app_is_told_as_such(wrong: float) -> None:
    clock = Clock()
    clock.now = NOW + wrong
    found = failure(app(clock).secret(), refused(401, "A JSON web token could not be decoded"))
    assert found.fault is Fault.CREDENTIAL
    assert "not of the same App" in str(found)
    assert "could not be decoded" in str(found)


@pytest.mark.parametrize("date", ["", "yesterday"])
def test_without_githubs_time_the_clock_is_not_blamed(date: str) -> None:
    found = failure(app().secret(), answer(401, {"message": "no"}, date=date))
    assert found.fault is Fault.CREDENTIAL


def test_a_suspended_app_is_told_as_such() -> None:
    found = failure(app().secret(), refused(403, "This installation has been suspended"))
    assert found.fault is Fault.FORBIDDEN
    assert "unsuspend it" in str(found)


def test_an_app_that_is_not_installed_any_more_is_told_as_such() -> None:
    found = failure(app().secret(), refused(404))
    assert found.fault is Fault.CREDENTIAL
    assert "install it again" in str(found)


def test_an_app_waits_when_github_asks_it() -> None:
    found = failure(app().secret(), refused(403, "secondary rate limit", retry_after="30"))
    assert (found.fault, found.retry_after) == (Fault.BUSY, 30)


@pytest.mark.parametrize(
    "body",
    [
        {"token": TOKEN, "expires_at": "soon"},
        {"token": TOKEN, "expires_at": None},
        {"token": None, "expires_at": "2026-08-01T13:00:00Z"},
        {},
        [],
    ],
)
def test_an_answer_without_a_token_and_its_end_is_strange(body: object) -> None:
    found = app()
    conversation = found.secret()
    next(conversation)
    with pytest.raises(ServiceError) as caught:
        conversation.send(answer(201, body))
    assert caught.value.fault is Fault.STRANGE
    # Nothing of it is kept.
    _, calls = converse(found.secret(), given())
    assert len(calls) == 1


def elliptic() -> str:
    form, none = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    made = ec.generate_private_key(ec.SECP256R1())
    return made.private_bytes(serialization.Encoding.PEM, form, none).decode()


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda: "", id="empty"),
        pytest.param(lambda: pem()[:400], id="cut off"),
        pytest.param(lambda: pem(b"password"), id="with a password"),
        pytest.param(elliptic, id="of another kind"),
    ],
)
def test_a_key_that_is_none_is_refused_without_a_word_of_it(
    wrong: typing.Callable[[], str],
) -> None:
    text = wrong()
    with pytest.raises(ValueError, match="no RSA key in PEM") as caught:
        App("1", "77", text)
    assert caught.value.__cause__ is None
    assert text[40:60] not in str(caught.value) or not text


def test_a_key_with_space_around_it_is_read() -> None:
    converse(App("1", "77", f"\n{pem()}\n\n", Clock()).secret(), given())


def test_nothing_shows_the_secrets() -> None:
    found = app()
    converse(found.secret(), given())
    service = GitHub("https://github.com", "acme", found)
    for shown in (repr(found), repr(service), str(vars(service))):
        assert TOKEN not in shown
        assert "PRIVATE" not in shown
