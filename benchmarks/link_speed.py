"""How fast the link between two hosts is, in both directions at once.

    bash benchmarks/two_hosts.sh 100mbit python benchmarks/link_speed.py [MEGABYTES]

Both hosts send so many megabytes to each other; host 0 prints megabits per second and direction.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time

PORT = 29600


def main(megabytes: float = 4.0) -> None:
    count = int(megabytes * 1e6)
    with meet() as peer:
        begin = time.monotonic()
        sender = threading.Thread(target=peer.sendall, args=(bytes(count),))
        sender.start()
        received = 0
        while received < count:
            received += len(peer.recv(1 << 20))
        seconds = time.monotonic() - begin
        sender.join()
    if os.environ["NODE_RANK"] == "0":
        print(f"{8 * count / 1e6 / seconds:.1f}")


def meet() -> socket.socket:
    """A connection to the other host."""
    address = (os.environ["FIRST_HOST"], PORT)
    if os.environ["NODE_RANK"] == "0":
        with socket.create_server(address) as server:
            return server.accept()[0]
    deadline = time.monotonic() + 10
    while True:
        try:
            return socket.create_connection(address)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
