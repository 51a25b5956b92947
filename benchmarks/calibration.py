"""What the devices of this machine have to give: products, round trips, and bytes of a link.

    bash benchmarks/devices.sh 2 1 1gbit python benchmarks/calibration.py          or ... quickly

Every device runs it; device 0 prints a line of JSON. The benchmarks do the same with their workers
before the first round, on emulated devices or not, and keep it beside their results:

    products_gflops   of large float32 products of one worker, the others doing nothing
    products_ratio    what all workers do at the same time, over that
    round_trip_ms     a byte to worker 1 and back, by a plain connection: the median
    link_mb_per_s     what two workers send each other at the same time, in each direction
    flop_per_byte     products_gflops / link_mb_per_s: operations of a device in the time in which
                      its link carries a byte. The head of devices.sh has those of real devices

Plain sockets and no backend are timed, so this is a bound for all of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import statistics
import sys
import threading
import time

import torch
from common import sgemm_rate

PORT = 29600
TRIPS = 50
CHUNK = 1 << 20
LEAST = 0.4  # seconds that a message takes whose rate counts
PATIENCE = 120.0


def calibrate(rank: int, world: int, host: str, port: int = PORT, seconds: float = 1.0) -> dict:
    """All workers call it; returns the result on worker 0, whose address is `host`.

    `seconds` is the time for products, each alone and all together."""
    torch.set_num_threads(1)
    sgemm_rate(seconds=0.0)  # makes pages
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(peer) for peer in connect_all(rank, world, host, port)]
        if rank:
            wait(peers[0])
            tell(peers[0])
            wait(peers[0])
            peers[0].sendall(json.dumps(sgemm_rate(seconds=seconds)).encode().ljust(32))
            if rank == 1:
                answer(peers[0])
            return {}
        for peer in peers:  # all are there and have nothing to do
            tell(peer)
            wait(peer)
        alone = sgemm_rate(seconds=seconds)
        for peer in peers:
            tell(peer)
        rates = [sgemm_rate(seconds=seconds), *(float(receive(peer, 32)) for peer in peers)]
        trip, megabytes = exchange(peers[0])
    return {
        "products_gflops": round(alone, 1),
        "products_ratio": round(sum(rates) / alone, 2),
        "round_trip_ms": round(1000 * trip, 3),
        "link_mb_per_s": round(megabytes, 2),
        "flop_per_byte": round(1000 * alone / megabytes),
    }


def connect_all(rank: int, world: int, host: str, port: int) -> list[socket.socket]:
    """Worker 0's connections to the others; theirs to worker 0."""
    if rank == 0:
        with socket.create_server((host, port), backlog=world) as server:
            server.settimeout(PATIENCE)
            peers = [server.accept()[0] for _ in range(world - 1)]
        order = {int(receive(peer, 4)): peer for peer in peers}
        peers = [order[rank] for rank in sorted(order)]
    else:
        peers = [connect(host, port)]
        peers[0].sendall(b"%4d" % rank)
    for peer in peers:
        peer.settimeout(PATIENCE)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return peers


def connect(host: str, port: int) -> socket.socket:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return socket.create_connection((host, port), timeout=PATIENCE)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def tell(peer: socket.socket) -> None:
    peer.sendall(b".")


def wait(peer: socket.socket) -> None:
    receive(peer, 1)


def receive(peer: socket.socket, count: int) -> bytes:
    """So many bytes; of those of a long message only the end."""
    end, left = b"", count
    while left:
        piece = peer.recv(min(left, CHUNK))
        if not piece:
            raise ConnectionError("a worker of the calibration is gone")
        end, left = (end + piece)[-32:], left - len(piece)
    return end


def exchange(peer: socket.socket) -> tuple[float, float]:
    """Worker 0: seconds of a round trip, and MB/s in each direction when both are used."""
    trips = []
    for _ in range(TRIPS):
        begin = time.perf_counter()
        tell(peer)
        wait(peer)
        trips.append(time.perf_counter() - begin)
    count, seconds = CHUNK, 0.0
    while seconds < LEAST:
        count *= 2
        peer.sendall(b"%16d" % count)
        seconds = both_ways(peer, count)
    peer.sendall(b"%16d" % 0)
    return statistics.median(trips), count / 1e6 / seconds


def answer(peer: socket.socket) -> None:
    """Worker 1's part of `exchange`."""
    for _ in range(TRIPS):
        wait(peer)
        tell(peer)
    while count := int(receive(peer, 16)):
        both_ways(peer, count)


def both_ways(peer: socket.socket, count: int) -> float:
    """Send and receive so many bytes at the same time; returns seconds."""
    begin = time.perf_counter()
    sender = threading.Thread(target=send, args=(peer, count), daemon=True)
    sender.start()
    receive(peer, count)
    sender.join()
    return time.perf_counter() - begin


def send(peer: socket.socket, count: int) -> None:
    piece = bytes(CHUNK)
    for _ in range(count // CHUNK):
        peer.sendall(piece)


def line(result: dict) -> str:
    """As it stands below a table."""
    return (
        f"calibration: products of all workers together {result['products_ratio']:.2f} times those "
        f"of one ({result['products_gflops']:.0f} GFLOP/s); a round trip "
        f"{result['round_trip_ms']:.2f} ms, {result['link_mb_per_s']:,.1f} MB/s each way; "
        f"{result['flop_per_byte']:,} FLOP per byte"
    )


def main() -> None:
    try:
        rank, world = int(os.environ["NODE_RANK"]), int(os.environ["NODES"])
        host = os.environ["FIRST_HOST"]
    except KeyError as error:
        raise SystemExit(f"error: no variable {error}: start it by devices.sh") from None
    if world < 2:
        raise SystemExit("error: one device has nobody to talk to: give devices.sh 2 or more")
    result = calibrate(rank, world, host, seconds=0.1 if sys.argv[1:] == ["quickly"] else 1.0)
    if rank == 0:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
