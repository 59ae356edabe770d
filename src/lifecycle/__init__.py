# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What outlasts a hook: the claim on the machine, drains, reboots, driver upgrades, records."""
