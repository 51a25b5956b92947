"""The workers' rendezvous: a key-value store, on loopback if all of them are on this machine.

torch's own rendezvous lets the store listen on every interface, and fairseq unpickles what its
object collectives receive.  So a job of one machine gets a store, and gloo and nccl sockets, that
other machines cannot reach.  Under torchrun the agent's store outlives the workers: each restart
uses keys of its own, or it would find the addresses of workers that are gone.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from fairseq.distributed import utils as distributed_utils
from torch.distributed import (  # type: ignore[attr-defined]
    PrefixStore,
    Store,
    TCPStore,
    distributed_c10d,
)

from fairseq_hybrid.config import DistributedConfig
from fairseq_hybrid.errors import UserError
from fairseq_hybrid.launch.topology import LOCAL_HOSTS, LOOPBACK, address, port_taken

SOCKETS = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
STORE_TIMEOUT = timedelta(minutes=15)  # for workers that are still starting, to find the store


def one_machine(dt: DistributedConfig) -> bool:
    """All workers of this job are on this machine, as far as the options tell."""
    host, _ = address(dt.distributed_init_method)
    if host != "env":
        return host in LOCAL_HOSTS
    if os.environ.get("MASTER_ADDR") in LOCAL_HOSTS:
        return True
    return os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE", "")


def loopback_interface() -> str:
    names = [name for _, name in socket.if_nameindex()]
    return next((n for n in ("lo", "lo0") if n in names), names[0])


def loopback_sockets() -> dict[str, str]:
    """Variables that keep gloo and nccl on loopback, unless the user has set them."""
    return {name: os.environ.get(name, loopback_interface()) for name in SOCKETS}


def loopback_store(port: int) -> TCPStore:
    """A store that is reachable from this machine only; port <= 0: a free one."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((LOOPBACK, max(port, 0)))
        listener.listen(1024)
    except OSError:
        listener.close()
        raise UserError(port_taken(port)) from None
    except OverflowError:
        raise UserError(f"--distributed-port {port} is not a port: give 1 to 65535") from None
    return TCPStore(
        LOOPBACK,
        listener.getsockname()[1],
        is_master=True,
        wait_for_workers=False,
        timeout=STORE_TIMEOUT,
        master_listen_fd=listener.detach(),
    )


def variables_of(store: TCPStore) -> dict[str, str]:
    """By which workers started here find the store that their parent keeps."""
    return {
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # every worker is a client
    }


def open_store(init_method: str, rank: int) -> Store:
    """The job's store, as a client or, on worker 0 where nobody else hosts it, as the host."""
    host, port = address(init_method)
    from_environment = host == "env"
    if host is None or port is None:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    local = host in LOCAL_HOSTS
    hosts = rank == 0 and not (from_environment and agent_keeps_store())
    if hosts and local:
        store = loopback_store(port)
    else:
        store = TCPStore(
            LOOPBACK if local else host,
            port,
            is_master=hosts,
            wait_for_workers=not hosts,
            timeout=STORE_TIMEOUT,
        )
    return PrefixStore(f"start {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def agent_keeps_store() -> bool:
    """Whether torchrun's agent, or our parent, keeps the store."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


class Rendezvous:
    """Stands in for ``dist`` in fairseq's module: torch's, but for the store."""

    def __init__(self) -> None:
        self.store: Any = None  # once the workers have found each other
        self.hosted = not agent_keeps_store()  # by worker 0, not by who started the workers

    def __getattr__(self, name: str) -> Any:
        return getattr(dist, name)

    def init_process_group(
        self, backend: str, init_method: str, world_size: int, rank: int
    ) -> None:
        where: dict[str, Any] = {"init_method": init_method}
        if init_method.partition("://")[0] in ("env", "tcp"):
            self.store = open_store(init_method, rank)
            where = {"store": self.store}
        dist.init_process_group(backend, world_size=world_size, rank=rank, **where)


@contextlib.contextmanager
def rendezvous(dt: DistributedConfig, timeout: timedelta | None) -> Iterator[Rendezvous]:
    """fairseq makes its process group inside; ``timeout`` is every collective's, of every group.

    Backends make groups of their own, and torch gives those its own default, not the first group's.
    """
    if one_machine(dt):
        os.environ.update(loopback_sockets())
    if timeout is not None:
        for name in ("default_pg_timeout", "default_pg_nccl_timeout"):
            if getattr(distributed_c10d, name) is not None:  # nccl is there
                setattr(distributed_c10d, name, timeout)
    here = distributed_utils.dist = Rendezvous()
    try:
        yield here
    finally:
        distributed_utils.dist = dist
