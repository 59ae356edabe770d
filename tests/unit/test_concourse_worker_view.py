# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""How web on a real port says that it sees its workers, honest and hostile; and for how long."""

import json
import time

import pytest

from ci.concourse.api import worker_view as registered
from relations.worker_view import ABSENT, Sight, digest
from tests.unit.test_concourse_build_info import (
    PASSWORD,
    Web,
    drip,
    drip_headers,
    endless,
    mine,
    silent,
)

PATH = "/api/v1/workers"
GPU = digest(["gpu", "gpu-count=1"])


@pytest.fixture
def settings(tmp_path):
    return tmp_path / "web.env"


@pytest.fixture
def web(settings):
    web = Web(settings)
    yield web
    web.server.shutdown()
    web.server.server_close()


def look(settings, wanted, comes=0.0, **more):
    return registered.look(wanted, settings, mine, comes=comes, **more)


def lists(web, *workers):
    web.answers[PATH] = (200, json.dumps(list(workers)).encode())


def worker(name="ci-worker-0", state="running", tags=("gpu-count=1", "gpu"), **more):
    return {"name": name, "state": state, "tags": tags and list(tags), "platform": "linux", **more}


def test_each_worker_is_seen_as_web_lists_it(web, settings):
    lists(
        web, worker(), worker("ci-worker-1", "stalled", None), worker("another"),
        worker("ci-worker-2", "landed", (), resource_types=[{"type": "git"}]),
    )  # fmt: skip
    names = [f"ci-worker-{number}" for number in range(4)]
    seen = look(settings, dict.fromkeys(names, GPU))
    assert seen == {
        "ci-worker-0": Sight("running", GPU),
        "ci-worker-1": Sight("stalled", digest([])),
        "ci-worker-2": Sight("landed", digest([])),
        "ci-worker-3": Sight(ABSENT),
    }


def test_a_worker_that_comes_within_seconds_is_waited_for(web, settings):
    answers = iter([[], [worker(tags=("old",))], [worker()]])

    def listed(handler):
        handler.reply((200, json.dumps(next(answers)).encode()))

    web.answers[PATH] = listed
    seen = look(settings, {"ci-worker-0": GPU}, comes=30.0)
    assert seen == {"ci-worker-0": Sight("running", GPU)}


@pytest.mark.parametrize(("comes", "asked"), [(0.0, 1), (0.7, 2)])
def test_one_that_never_comes_is_waited_for_no_longer_than_that(web, settings, comes, asked):
    lists(web)
    absent = {"ci-worker-0": Sight(ABSENT)}
    assert look(settings, {"ci-worker-0": ""}, comes=comes, seconds=60.0) == absent
    assert web.asked.count(PATH) >= asked
    assert web.asked.count(PATH) == 1 or comes


@pytest.mark.parametrize(
    "answer",
    [
        (500, b"x"), (200, b"x"), (200, b"{}"), (200, b"[" * 5000), (200, b"[1]"), (200, b""),
        (200, b'[{"name": 1, "state": "running"}]'), (200, b'[{"name": "a", "state": "new"}]'),
        (200, b'[{"name": "a", "state": "running", "tags": [1]}]'),
        (200, b'[{"name": "a", "state": "running", "tags": "gpu"}]'),
        (404, b""),
    ],
)  # fmt: skip
def test_an_answer_that_is_none_is_never_taken_for_absence(web, settings, answer):
    web.answers[PATH] = answer
    assert look(settings, {"ci-worker-0": GPU}) is None


@pytest.mark.parametrize("hostile", [drip, drip_headers, endless, silent])
def test_a_web_that_does_not_end_holds_up_nobody(web, settings, hostile):
    web.answers[PATH] = hostile
    begun = time.monotonic()
    assert look(settings, {"ci-worker-0": GPU}, seconds=1.0) is None
    assert time.monotonic() - begun < 30


def test_a_web_that_is_not_there_or_speaks_no_http_tells_nothing(web, settings):
    web.answers[PATH] = lambda handler: handler.wfile.write(b"220 mail ESMTP\r\n")
    assert look(settings, {"ci-worker-0": GPU}) is None
    web.answers[PATH] = (302, b"")
    assert look(settings, {"ci-worker-0": GPU}) is None
    web.server.shutdown()
    web.server.server_close()
    assert look(settings, {"ci-worker-0": GPU}) is None


def test_without_web_or_password_nothing_is_known(web, settings, tmp_path):
    assert look(tmp_path / "none", {"ci-worker-0": GPU}) is None
    settings.write_text(settings.read_text().replace("admin:", "admin:wrong"))
    assert look(settings, {"ci-worker-0": GPU}) is None
    assert PASSWORD not in repr(web.asked)


def pruned(web):
    return [path for path in web.asked if path.endswith("/prune")]


def test_web_forgets_a_worker_that_does_not_run_and_no_other(web, settings):
    lists(
        web, worker("ci-worker-0", "stalled"), worker("ci-worker-1", "landed"),
        worker("ci-worker-2"), worker("ci-worker-3", "retiring"),
        worker("ci-worker-4", "landing"), worker("another", "stalled"),
    )  # fmt: skip
    gone = [f"ci-worker-{number}" for number in range(6)]
    wanted = [f"{PATH}/ci-worker-{number}/prune" for number in (0, 1)]
    web.answers |= dict.fromkeys(wanted, (200, b"null"))
    left = registered.prune(gone, settings, mine)
    assert left == {"ci-worker-2", "ci-worker-3", "ci-worker-4"}
    assert sorted(pruned(web)) == wanted


@pytest.mark.parametrize(
    ("answer", "left"), [((404, b""), set()), ((400, b"{}"), {"a/b"}), ((500, b""), {"a/b"})]
)
def test_a_worker_that_web_refuses_to_forget_may_be_listed_still(web, settings, answer, left):
    """It runs again, or web can't tell; another web was first where there is none."""
    lists(web, worker("a/b", "stalled"))
    web.answers[f"{PATH}/a%2Fb/prune"] = answer
    assert registered.prune({"a/b"}, settings, mine) == left
    assert pruned(web) == [f"{PATH}/a%2Fb/prune"]


def test_a_web_that_can_not_be_asked_has_forgotten_nobody(web, settings, tmp_path):
    lists(web, worker("ci-worker-0", "stalled"))
    assert registered.prune({"ci-worker-0"}, tmp_path / "none", mine) == {"ci-worker-0"}
    web.answers[PATH] = (200, b"{}")
    assert registered.prune({"ci-worker-0"}, settings, mine) == {"ci-worker-0"}
    assert registered.prune({"ci-worker-0"}, settings, lambda _inode: False) == {"ci-worker-0"}
    assert pruned(web) == []


def test_how_long_it_is_wrong_counts_from_the_first_time(tmp_path):
    note = tmp_path / "run/worker-not-seen"
    assert registered.wrong_for(wrong=False, note=note) == 0.0
    assert registered.wrong_for(wrong=True, note=note) == 0.0
    first = int(note.read_text())
    assert time.monotonic() - 60 < first <= time.monotonic() + 1
    note.write_text(f"{first - 601}\n")
    assert 600 <= registered.wrong_for(wrong=True, note=note) < 700
    assert registered.wrong_for(wrong=False, note=note) == 0.0
    assert registered.wrong_for(wrong=True, note=note) == 0.0
    note.write_text("\0")
    assert registered.wrong_for(wrong=True, note=note) == 0.0
