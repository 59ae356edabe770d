# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Give several web units one address: pass each connection to the first unit that accepts it.

one_address.py HOST:PORT BACKEND:PORT...
"""

import contextlib
import socket
import sys
import threading


def serve(listen: tuple[str, int], backends: list[tuple[str, int]]) -> None:
    """Hand on connections for as long as the process lives."""
    with socket.create_server(listen) as server:
        print("listening", flush=True)
        while True:
            client, _ = server.accept()
            threading.Thread(target=hand_on, args=(client, backends), daemon=True).start()


def hand_on(client: socket.socket, backends: list[tuple[str, int]]) -> None:
    """Bring a connection to a backend, and everything both ways until one side ends."""
    with client:
        for backend in backends:
            with contextlib.suppress(OSError):
                with socket.create_connection(backend, timeout=2) as server:
                    server.settimeout(None)
                    other = threading.Thread(target=pump, args=(server, client), daemon=True)
                    other.start()
                    pump(client, server)
                    other.join()
                return


def pump(source: socket.socket, target: socket.socket) -> None:
    """Copy until the end."""
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def place(text: str) -> tuple[str, int]:
    """HOST:PORT."""
    host, _, port = text.rpartition(":")
    return host, int(port)


if __name__ == "__main__":
    serve(place(sys.argv[1]), [place(word) for word in sys.argv[2:]])
