# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The options of Concourse's web, typed and validated. Pure."""

import dataclasses
import typing

from plan import option_values
from plan.option_readers import Readers, port, text

NAMES: typing.Final = ("web-port", "external-url", "advertise-address")


@dataclasses.dataclass(frozen=True)
class WebOptions:
    """What the operator wants of the web.

    Attributes:
        port: TCP port of its UI and API.
        external_url: where people reach it; empty: at the unit's own address.
        advertise_address: where others reach this unit's web: an address, a name, or the network
            that has the address, with its `/`; empty: what Juju offers.
    """

    port: int = 8080
    external_url: str = ""
    advertise_address: str = ""


READERS: typing.Final[Readers] = {
    "port": lambda raw: port(raw, "web-port", (), 1),
    "external_url": lambda raw: option_values.url("external-url", text(raw, "external-url")),
    "advertise_address": lambda raw: option_values.advertised(text(raw, "advertise-address")),
}
