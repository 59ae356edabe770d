# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The settings of Concourse's web that an operator may set in web-settings-secret. Pure.

They are those of logins, credential managers, build logs by syslog, and traces. Settings that the
charm sets itself are not among them: ports, keys, database, local users, metrics.
"""

import typing

_LOGIN: typing.Final = "client-id client-secret"
_TEMPLATES: typing.Final = "pipeline-secret-template team-secret-template"

# From `concourse web --help` of concourse 95872ce1a (8.3), by their first words.
_FAMILIES: typing.Final = {
    "oidc": f"{_LOGIN} ca-cert disable-get-user-info disable-groups display-name groups-key issuer"
    " issuer-url scope skip-email-verified-validation skip-ssl-validation user-name-key",
    "oauth": f"{_LOGIN} auth-url ca-cert display-name groups-key scope skip-ssl-validation"
    " token-url user-id-key user-name-key userinfo-url",
    "github": f"{_LOGIN} ca-cert host",
    "gitlab": f"{_LOGIN} host",
    "gitea": f"{_LOGIN} display-name host",
    "bitbucket-cloud": _LOGIN,
    "microsoft": f"{_LOGIN} groups only-security-groups tenant",
    "ldap": "bind-dn bind-pw ca-cert display-name group-search-base-dn group-search-filter"
    " group-search-group-attr group-search-name-attr group-search-scope group-search-user-attr"
    " host insecure-no-ssl insecure-skip-verify start-tls user-search-base-dn"
    " user-search-email-attr user-search-filter user-search-id-attr user-search-name-attr"
    " user-search-scope user-search-username username-prompt",
    "saml": "ca-cert display-name email-attr entity-issuer groups-attr groups-delim"
    " name-id-policy-format skip-ssl-validation sso-issuer sso-url username-attr",
    "cf": f"{_LOGIN} api-url ca-cert skip-ssl-validation",
    "vault": "auth-backend auth-backend-max-ttl auth-param ca-cert client-cert client-key"
    " client-token disable-srv-lookup enable-kv-mount-cache insecure-skip-verify login-timeout"
    " lookup-templates namespace path-prefix query-timeout retry-initial retry-max server-name"
    " shared-path url",
    "credhub": f"{_LOGIN} ca-cert client-cert client-key insecure-skip-verify path-prefix"
    " shared-path url",
    "aws-secretsmanager": f"{_TEMPLATES} access-key region secret-key session-token"
    " shared-secret-template",
    "aws-ssm": f"{_TEMPLATES} access-key region secret-key session-token shared-path",
    "conjur": f"{_TEMPLATES} account appliance-url authn-api-key authn-login authn-token-file"
    " cert-file secret-template",
    "kubernetes": "config-path namespace-prefix shared-namespace-suffix",
    "secret": "cache-duration cache-duration-notfound cache-enabled cache-purge-interval"
    " retry-attempts retry-interval",
    "syslog": "address ca-cert drain-interval hostname transport",
    "tracing": "attribute honeycomb-api-key honeycomb-dataset jaeger-endpoint jaeger-service"
    " jaeger-tags otlp-address otlp-header otlp-use-tls service-name stackdriver-projectid",
    "main-team-bitbucket-cloud": "team user",
    "main-team-cf": "org space space-guid space-with-any-role space-with-auditor-role"
    " space-with-developer-role space-with-manager-role user",
    "main-team-gitea": "org team user",
    "main-team-github": "org team user",
    "main-team-gitlab": "group user",
    "main-team-ldap": "group user",
    "main-team-microsoft": "group user",
    "main-team-oauth": "group user",
    "main-team-oidc": "group user",
    "main-team-saml": "group user",
}

# In lower case with hyphens, as Juju requires of the fields of a secret.
NAMES: typing.Final = frozenset(
    (
        "password-connector",
        *(f"{family}-{name}" for family, names in _FAMILIES.items() for name in names.split()),
    )
)

# If one of these is missing, Concourse starts without that login and reports nothing
# (concourse 95872ce1a skymarshal/dexserver/dexserver.go:76-89).
LOGINS: typing.Final = {
    family: tuple(f"{family}-{name}" for name in _LOGIN.split())
    for family, names in _FAMILIES.items()
    if names.startswith(_LOGIN) and family != "credhub"
}

# Concourse expects the path of a file in place of the text itself.
FILES: typing.Final = frozenset(
    name
    for name in NAMES
    if name.endswith(
        ("-ca-cert", "-client-cert", "-client-key", "-cert-file", "-token-file", "-config-path")
    )
)


def environment(name: str) -> str:
    """Return the environment variable of a setting."""
    return f"CONCOURSE_{name.upper().replace('-', '_')}"
