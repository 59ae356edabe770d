# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Entry of the back end; compiled at each start, so it is kept to the import of what is not."""

import os
import sys

# The real path: a call that has begun keeps to its version when the link is switched meanwhile.
HOME = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))


def say_damaged(kind: type[BaseException], *_: object) -> None:
    """Say in runc's log, and not on the step's stderr, that a module can't be imported."""
    log = dict(zip(sys.argv, sys.argv[1:], strict=False)).get("--log", os.devnull)
    text = f"gpu-ci-worker: {HOME} is damaged ({kind.__name__}), and is mended within minutes"
    line = f'{{"level":"error","msg":"{text}: run it again","time":"1970-01-01T00:00:00Z"}}\n'
    try:
        with open(log, "a") as file:
            file.write(line)
    except OSError:
        pass  # the exit status still tells


sys.excepthook = say_damaged
sys.path.insert(0, HOME)

# The hook comes first. Whoever calls for an engine's container says so.
if sys.argv[1:2] == ["--engine"]:
    from gpu_runtime.engine_call import main
else:
    from gpu_runtime.task_call import main

main(sys.argv[1:])
