# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Serve releases without telling a file's length: mirror.py ADDRESS PORT FOLDER."""

import contextlib
import http.server
import pathlib
import shutil
import sys


class Handler(http.server.BaseHTTPRequestHandler):
    """Sends what lies below the folder."""

    folder = pathlib.Path()

    def do_GET(self) -> None:
        """Send a file; its end is that of the connection."""
        path = self.folder / self.path.lstrip("/")
        if ".." in path.parts or not path.is_file():
            self.send_error(404)
            return
        self.send_response(200)
        self.end_headers()
        with path.open("rb") as file, contextlib.suppress(ConnectionError):
            shutil.copyfileobj(file, self.wfile)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


if __name__ == "__main__":
    address, port, folder = sys.argv[1:]
    Handler.folder = pathlib.Path(folder)
    with http.server.ThreadingHTTPServer((address, int(port)), Handler) as server:
        print("listening", flush=True)
        server.serve_forever()
