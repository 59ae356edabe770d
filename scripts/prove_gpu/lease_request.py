# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Request devices, write the answer as JSON, and keep them.

Usage: lease_request.py LIB FOLDER POLICY NAME COUNT
"""

import itertools
import json
import sys
import time

lib, folder, path, name, count = sys.argv[1:]
sys.path.insert(0, lib)

from gpu_runtime import lease_manager, policy  # noqa: E402
from gpu_runtime.decision_log import Decision  # noqa: E402
from gpu_runtime.holder_usage import Host  # noqa: E402
from gpu_runtime.lease_store import Store  # noqa: E402
from gpu_runtime.refusal import Refused  # noqa: E402

decision = Decision(name)
decision.asked = int(count)
request = lease_manager.Request(name, f"{folder}/{name}", "")
policies = itertools.repeat(policy.read(path))
try:
    grant = lease_manager.acquire(Store(f"{folder}/leases"), Host(), policies, request, decision)
    answer = {
        "granted": grant.ids,
        "environment": grant.environment,
        "waited_ms": decision.waited_ms,
        "decided_ms": decision.decided_ms,
    }
except Refused as refusal:
    answer = {"code": refusal.code, "text": str(refusal)}
print(json.dumps(answer), flush=True)
time.sleep(600)
