# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
#
# Each target installs what it needs first, and works on a fresh Debian 12 or Ubuntu machine.
.PHONY: help setup lint format test test-lab bench soak integration integration36 prove-kit prove-gpu lab pack clean

help:  ## List the targets.
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' Makefile | expand -t 15

setup:  ## Install everything that the other targets need.
	@scripts/setup

lint:  ## Check format, style, types, imports, spelling and shell scripts.
	@scripts/setup lint
	@scripts/lint

format:  ## Format the code and fix what ruff can fix.
	@scripts/setup lint
	@.venv/bin/python -m ruff format .
	@.venv/bin/python -m ruff check --fix .

test:  ## Run the tests of the code and of single parts; PYTEST_ARGS="tests/lab -k name" selects others.
	@scripts/test $(or $(PYTEST_ARGS),tests/unit tests/functional)

test-lab:  ## Run the tests of the packed charm in the lab, and attacks on it.
	@scripts/test tests/lab tests/attacks tests/soak $(PYTEST_ARGS)

bench:  ## Measure the cost of the GPU runtime and write docs/reference/performance.md; BENCH_ARGS="--help".
	@scripts/bench $(or $(BENCH_ARGS),--write)

soak:  ## Run the long tests: leases in a virtual machine with cgroup v2, long fuzz and fault runs.
	@scripts/setup soak
	@GPUCI_SOAK=1 scripts/test $(PYTEST_ARGS)

integration:  ## Run the integration tests on the Juju model of the current controller.
	@scripts/setup integration
	@scripts/pack
	@.venv/bin/python -m pytest -rs -W default \
		tests/integration $(PYTEST_ARGS)

integration36:  ## Run the pytest-operator test on the current controller, which runs Juju 3.6.
	@scripts/setup integration36
	@scripts/pack
	@PATH="$$PATH:$(CURDIR)/.venv/bin" .venv-juju36/bin/python -m pytest -rs \
		-c tests/integration/juju36/pytest.ini tests/integration/juju36 $(PYTEST_ARGS)

prove-kit:  ## Collect the packages for make prove-gpu in .prove-kit, for a machine without a network.
	@scripts/setup integration
	@.venv/bin/python scripts/prove_gpu/kit.py

prove-gpu:  ## Prove the project on this machine with a real NVIDIA GPU; PYTHON=/path/to/python3, STEPS="health".
	@$(or $(PYTHON),python3) scripts/prove_gpu $(STEPS)

lab:  ## Start the lab: the packed charm on disposable machines with simulated GPUs.
	@scripts/setup lab
	@./lab up --bare

pack:  ## Pack the charm for this machine: gpu-ci-worker_*.charm.
	@scripts/pack

clean:  ## Remove build results; ./lab destroy removes the lab.
	rm -rf .venv .venv-juju36 .venv-selftest .pack .soak .prometheus .engines .proxies .prove-kit dist venv
	rm -rf .pytest_cache .ruff_cache .hypothesis
	rm -f gpu-ci-worker_*.charm
	find src lib tests benchmarks scripts -name __pycache__ -prune -exec rm -rf {} +
