# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The entry point. Python compiles this file at each start, so it only imports other modules."""

import os
import sys

# The real path: a call keeps its version if an upgrade switches the link during the call.
HOME = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))


def say_damaged(kind: type[BaseException], *_: object) -> None:
    """Report in runc's log, and not on the step's stderr, that a module can't be imported."""
    log = dict(zip(sys.argv, sys.argv[1:], strict=False)).get("--log", os.devnull)
    text = f"gpu-ci-worker: runtime-damaged: {HOME} is damaged ({kind.__name__}); "
    text += "the worker repairs it within 5 minutes. Run it again then"
    line = f'{{"level":"error","msg":"{text}","code":"runtime-damaged",'
    line += '"time":"1970-01-01T00:00:00Z"}\n'
    try:
        with open(log, "a") as file:
            file.write(line)
    except OSError:
        pass  # the exit status still shows the failure


sys.excepthook = say_damaged
sys.path.insert(0, HOME)

# The hook comes first. A call for a container of an engine begins with this word.
if sys.argv[1:2] == ["--engine"]:
    from gpu_runtime.engine_call import main
else:
    from gpu_runtime.task_call import main

main(sys.argv[1:])
