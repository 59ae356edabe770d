# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What is passed on of a job's requests to a container engine, and a door without an engine."""

import asyncio
import contextlib
import json
import socketserver
import threading

import pytest

from ci.runners.containers import engine, requests
from ci.runners.containers.__main__ import Door
from ci.runners.containers.requests import BadRequestError

PLACE = {"CgroupParent": "/runners/one", "Runtime": "gpu-ci"}
HEAD = b"POST /v1.43/containers/create?name=x HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n"


def head(first="POST /containers/create HTTP/1.1", *fields):
    return requests.parse("\r\n".join([first, *fields, "", ""]).encode())


def made(kind, **body):
    return requests.marked(kind, json.dumps(body).encode(), "one", PLACE)


@pytest.mark.parametrize(
    ("first", "makes"),
    [
        ("POST /containers/create HTTP/1.1", "containers"),
        ("POST /v1.41/containers/create?name=x HTTP/1.1", "containers"),
        ("POST /v1.41/networks/create HTTP/1.1", "networks"),
        ("POST /v1.41/volumes/create HTTP/1.1", "volumes"),
        ("GET /v1.41/containers/json HTTP/1.1", ""),
        ("GET /containers/create HTTP/1.1", ""),
        ("POST /v1.41/containers/create/start HTTP/1.1", ""),
        ("POST /v1.41/images/create?fromImage=x HTTP/1.1", ""),
    ],
)
def test_what_a_request_makes(first, makes):
    assert head(first).makes == makes


def test_a_container_is_marked_and_placed_whatever_the_job_says():
    body = made(
        "containers",
        Image="box",
        Labels={"a": "b", "gpu-ci.runner": "other"},
        HostConfig={"CgroupParent": "/", "Runtime": "runc", "Memory": 1},
    )
    assert body == {
        "Image": "box",
        "Labels": {"a": "b", "gpu-ci.runner": "one"},
        "HostConfig": {"Memory": 1, **PLACE},
    }
    assert made("containers", Labels=None)["HostConfig"] == PLACE


@pytest.mark.parametrize("kind", ["networks", "volumes"])
def test_a_network_or_volume_is_marked_and_not_placed(kind):
    assert made(kind, Name="x") == {"Name": "x", "Labels": {"gpu-ci.runner": "one"}}


def test_named_volumes_are_made_before_their_container():
    body = made(
        "containers",
        HostConfig={
            "Binds": ["cache:/c:ro", "/etc:/e", "./here:/h", "cache:/again"],
            "Mounts": [
                {"Type": "volume", "Source": "more", "Target": "/m"},
                {"Type": "volume", "Target": "/anonymous"},
                {"Type": "bind", "Source": "/x", "Target": "/x"},
                {
                    "Type": "volume",
                    "Source": "d",
                    "VolumeOptions": {"DriverConfig": {"Name": "n"}},
                },
            ],
        },
    )
    mark = {"gpu-ci.runner": "one"}
    assert [*requests.volumes(body)] == [
        {"Name": name, "Driver": "local", "Labels": mark} for name in ("cache", "more")
    ]


@pytest.mark.parametrize(
    "body", [b"[]", b"x", b'{"Labels": [1]}', b'{"HostConfig": "x"}', b'{"HostConfig": 1}']
)
def test_a_body_that_is_no_containers_is_refused(body):
    with pytest.raises(BadRequestError) as refusal:
        requests.marked("containers", body, "one", PLACE)
    assert refusal.value.status == 400


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ((), 411),
        (("Transfer-Encoding: chunked",), 411),
        (("Content-Length: -1",), 411),
        (("Content-Length: 99999999",), 413),
    ],
)
def test_a_body_of_unknown_length_is_refused(fields, status):
    with pytest.raises(BadRequestError) as refusal:
        requests.length(head("POST /containers/create HTTP/1.1", *fields))
    assert refusal.value.status == status


def test_a_connection_has_one_request_unless_it_becomes_another_protocols():
    sent = head("GET /info HTTP/1.1", "Connection: keep-alive", "X: y").as_bytes()
    assert sent == b"GET /info HTTP/1.1\r\nX: y\r\nConnection: close\r\n\r\n"
    upgrade = ("Connection: Upgrade", "Upgrade: tcp")
    first = "POST /containers/x/attach HTTP/1.1"
    assert head(first, *upgrade).as_bytes() == "\r\n".join([first, *upgrade, "", ""]).encode()


def test_a_new_body_has_its_length():
    sent = head("POST /containers/create HTTP/1.1", "content-length: 2").as_bytes(77)
    assert sent.lower().count(b"content-length") == 1
    assert b"Content-Length: 77\r\n" in sent


def test_podmans_own_api_is_refused():
    with pytest.raises(BadRequestError, match="use docker"):
        head("POST /v4.0.0/libpod/containers/create HTTP/1.1")


@pytest.mark.parametrize("text", [b"\r\n\r\n", b"GET /\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\n"])
def test_what_is_no_request_is_refused(text):
    with pytest.raises(BadRequestError):
        requests.parse(text)


def answers(said, tmp_path):
    """What a door answers whose engine is not there."""

    async def talk():
        door = Door(str(tmp_path / "engine"), "one", "one.slice", "/runners/one", "gpu-ci")
        path = str(tmp_path / "door")
        async with await asyncio.start_unix_server(door.serve, path, limit=requests.LONGEST):
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(said)
            writer.write_eof()
            answer = await asyncio.wait_for(reader.read(), 10)
            writer.close()
            return answer

    status, _, body = asyncio.run(talk()).partition(b"\r\n\r\n")
    return int(status.split()[1]), json.loads(body)["message"]


@pytest.mark.parametrize(
    ("said", "status", "why"),
    [
        (b"GET /info HTTP/1.1\r\n\r\n", 503, "the container engine does not answer"),
        (HEAD + b"{}", 503, "the container engine does not answer"),
        (HEAD + b"{", 400, "not a whole request"),
        (b"GET /" + b"x" * (1 << 17), 400, "not a whole request"),
        (b"hello\r\n\r\n", 400, "not a request"),
    ],
)
def test_a_door_tells_what_is_wrong_as_an_engine_does(tmp_path, said, status, why):
    assert answers(said, tmp_path)[0] == status
    assert why in answers(said, tmp_path)[1]


@contextlib.contextmanager
def engine_at(path, *answers):
    """An engine that gives these answers, one for each connection; yields the requests."""
    asked, left = [], [*answers]

    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            first = self.rfile.readline().decode().split()
            asked.append(" ".join(first[:2]).partition("?")[0])
            length = 0
            while line := self.rfile.readline().strip():
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            self.rfile.read(length)
            status, body = left.pop(0)
            text = json.dumps(body).encode()
            self.wfile.write(f"HTTP/1.0 {status} X\r\n\r\n".encode() + text)

    with socketserver.ThreadingUnixStreamServer(str(path), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield asked
        server.shutdown()


def create(**body):
    text = json.dumps(body).encode()
    head = f"POST /v1.51/containers/create HTTP/1.1\r\nContent-Length: {len(text)}\r\n\r\n"
    return head.encode() + text


def test_a_driver_that_the_engine_does_not_tell_is_not_guessed(tmp_path):
    for told in ((500, {"message": "busy"}), (200, {"message": "odd"})):
        with engine_at(tmp_path / "engine", told) as asked:
            assert answers(create(), tmp_path)[0] == 503
        assert asked == ["GET /info"], "no container is made in a place that may be wrong"
        (tmp_path / "engine").unlink()
        (tmp_path / "door").unlink()


def test_no_container_is_made_whose_volume_would_stay(tmp_path):
    told = (200, {"CgroupDriver": "systemd"}), (409, {"message": "another driver"})
    with engine_at(tmp_path / "engine", *told) as asked:
        status, why = answers(create(HostConfig={"Binds": ["cache:/c"]}), tmp_path)
    assert status == 503
    assert "another driver" in why
    assert asked == ["GET /info", "POST /volumes/create"]


@pytest.mark.parametrize(("status", "is_gone"), [(204, True), (404, True), (409, False)])
def test_what_is_in_use_is_not_gone(tmp_path, status, is_gone):
    path = tmp_path / "engine"
    told = (200, []), (200, [{"Id": "n1"}]), (200, {"Volumes": None}), (status, {})
    with engine_at(path, *told) as asked:
        expected = contextlib.nullcontext() if is_gone else pytest.raises(OSError, match="409")
        with expected:
            engine.clear(str(path), "one")
    # No version in a path: a new engine refuses old ones.
    assert asked == [
        "GET /containers/json",
        "GET /networks",
        "GET /volumes",
        "DELETE /networks/n1",
    ]
