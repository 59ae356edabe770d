# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""`python3 registry.py FOLDER LAYERS FILES`: a registry of container images with one large image.

The image has so many layers with so many files of a mebibyte each: zeros, so that the network
counts for little beside the unpacking. It listens on port 5000 of all addresses and says `ready`.
The forms are those of the OCI's distribution specification 1.1 and image specification 1.1.
"""

import gzip
import hashlib
import http.server
import json
import pathlib
import sys
import tarfile

PORT = 5000
NAME = "large/image"
_INDEX = "application/vnd.oci.image.manifest.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_MEBIBYTE = b"\0" * (1 << 20)
_PACKED = gzip.compress(_MEBIBYTE, 1, mtime=0)


class Layer:
    """A layer that is written, and the digests of what it has, plain and compressed.

    What is added is a member of the gzip file each, so that what comes often is compressed once.
    """

    def __init__(self, file):
        self._file, self.plain, self.packed = file, hashlib.sha256(), hashlib.sha256()

    def add(self, name, content, mode=0o644):
        info = tarfile.TarInfo(name)
        info.size, info.mode = len(content), mode
        self._out(info.tobuf(), content, b"\0" * (-len(content) % tarfile.BLOCKSIZE))

    def end(self):
        self._out(b"\0" * tarfile.RECORDSIZE)

    def _out(self, *parts):
        for part in parts:
            data = _PACKED if part is _MEBIBYTE else gzip.compress(part, 1, mtime=0)
            self.plain.update(part)
            self.packed.update(data)
            self._file.write(data)


def digest(found):
    return f"sha256:{found.hexdigest()}"


def layer(folder, number, files, extra=()):
    """Write a layer; its descriptor, and the digest of what it is uncompressed."""
    path = folder / "layer"
    with path.open("wb") as file:
        written = Layer(file)
        for entry in extra:
            written.add(*entry)
        for count in range(files):
            written.add(f"opt/large/{number}/{count}", _MEBIBYTE)
        written.end()
    name = digest(written.packed)
    path.rename(folder / name)
    size = (folder / name).stat().st_size
    return {"mediaType": _LAYER, "digest": name, "size": size}, digest(written.plain)


def blob(folder, content):
    data = json.dumps(content).encode()
    name = digest(hashlib.sha256(data))
    (folder / name).write_bytes(data)
    return name, len(data)


def make(folder, layers, files, busybox="/bin/busybox"):
    """Make the image. Return the digest of its manifest."""
    shell = pathlib.Path(busybox).read_bytes()
    # Names of one file: a link would be one more form.
    base = [("bin/busybox", shell, 0o755), ("bin/sh", shell, 0o755)]
    made = [layer(folder, 0, 0, base)]
    made += [layer(folder, number, files) for number in range(1, layers + 1)]
    config = {
        "architecture": "amd64", "os": "linux", "config": {"Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [plain for _, plain in made]},
    }  # fmt: skip
    name, size = blob(folder, config)
    manifest = {
        "schemaVersion": 2, "mediaType": _INDEX,
        "config": {"mediaType": _CONFIG, "digest": name, "size": size},
        "layers": [found for found, _ in made],
    }  # fmt: skip
    return blob(folder, manifest)[0]


def serve(folder, manifest):
    """Serve the image under every tag, for ever."""

    class Answer(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            kind, _, wanted = self.path.rpartition("/")
            name = wanted if wanted.startswith("sha256:") else manifest
            path = folder / name
            if self.path == "/v2/":
                self.answer(200, b"{}", "application/json")
            elif kind in (f"/v2/{NAME}/manifests", f"/v2/{NAME}/blobs") and path.is_file():
                self.answer(
                    200, path, _INDEX if "manifests" in kind else "application/octet-stream"
                )
            else:
                self.answer(404, b"{}", "application/json")

        def do_HEAD(self):
            self.do_GET()

        def answer(self, status, content, kind):
            is_file = isinstance(content, pathlib.Path)
            size = content.stat().st_size if is_file else len(content)
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(size))
            if is_file:
                self.send_header("Docker-Content-Digest", content.name)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content.read_bytes() if is_file else content)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("", PORT), Answer) as server:
        print("ready", flush=True)
        server.serve_forever()


def main(folder, layers, files):
    path = pathlib.Path(folder)
    serve(path, make(path, int(layers), int(files)))


if __name__ == "__main__":
    main(*sys.argv[1:])
