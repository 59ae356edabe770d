# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The lab: disposable systemd machines and an emulated Juju which runs a packed charm in them."""
