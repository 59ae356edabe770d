# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Where a unit is reached stays, whatever its machine gets, unless an operator names another."""

from tests.lab.site import BRIDGE, PROBE, READY

DOCKER0 = "ip link add docker0 type bridge; ip address add 10.1.0.1/16 dev docker0"


def test_new_bridges_move_neither_web_nor_worker(site):
    began, host = site.settings("web/0"), site.published("web/0", "tsa-host")
    own = site.machine("web/0").address
    assert host == {f"{own}:2222"}
    assert site.task(PROBE).returncode == 0
    site.sh(f"{BRIDGE}{DOCKER0}", "web/0")
    site.sh(BRIDGE)
    try:
        site.lab.settle()
        assert site.settings("web/0") == began
        assert began["CONCOURSE_PEER_ADDRESS"] == own
        assert site.published("web/0", "tsa-host") == host
        assert (site.status("web/0"), site.status()) == (("active", "Web ready"), READY)
        assert site.task(PROBE).returncode == 0
    finally:
        site.sh("ip link delete docker0; ip link delete concourse0", "web/0")
        site.lab.settle()
    assert site.settings("web/0") == began


def test_an_address_that_the_operator_names_is_published(site):
    began = site.settings("web/0")
    own = site.machine("web/0").address
    site.sh("ip address add 10.77.0.250/24 dev host0", "web/0")
    try:
        site.configure("web", web_advertise_address="10.77.0.250")
        assert site.published("web/0", "tsa-host") == {"10.77.0.250:2222"}
        assert site.settings("web/0")["CONCOURSE_PEER_ADDRESS"] == "10.77.0.250"
        assert site.status() == READY
    finally:
        site.sh("ip address del 10.77.0.250/24 dev host0", "web/0")
        # A hook hears of the address, and reads the option.
        site.lab.model.set_config("web", {}, ("web-advertise-address",))
        site.lab.settle()
    assert site.published("web/0", "tsa-host") == {f"{own}:2222"}
    site.worker("lab-worker-0", 60)
    again = site.settings("web/0")
    assert again["CONCOURSE_PEER_ADDRESS"] == began["CONCOURSE_PEER_ADDRESS"]
    site.lab.controller.fire("worker/0", "update-status")
    assert site.status() == READY
