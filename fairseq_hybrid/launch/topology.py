"""How this command takes part in a job, decided before any process exists.

fairseq counts CUDA devices to decide how many workers to start.  Here the decision is plain data
(``Topology``), made from the options, torchrun's or Slurm's variables and the devices there are.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass

import torch
from fairseq.distributed import utils as distributed_utils

from fairseq_hybrid.config import Config, DistributedConfig
from fairseq_hybrid.errors import UserError

LOOPBACK = "127.0.0.1"
LOCAL_HOSTS = ("localhost", LOOPBACK, "::1", "[::1]")
TORCHRUN = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")


@dataclass(frozen=True)
class Topology:
    """Which workers of a job this command starts, and whether it keeps their store."""

    workers: int  # processes to start here; 0: this process is the only worker or one of several
    first_rank: int = 0
    distributed: bool = False
    hosts_store: bool = False  # every worker is started here: the parent keeps the store


def on_cpu(cfg: Config) -> bool:
    return cfg.common.cpu or not torch.cuda.is_available()


def topology_of(cfg: Config, training: bool) -> Topology:
    """Decide who starts what; writes what fairseq expects into ``cfg.distributed_training``."""
    dt = cfg.distributed_training
    if dt.distributed_world_size < 1:
        raise UserError(
            f"--distributed-world-size {dt.distributed_world_size} is not a number of workers: "
            "give 1 or more"
        )
    if cfg.common.tpu:
        return Topology(workers=0)
    if on_cpu(cfg) and dt.distributed_backend == "nccl":
        dt.distributed_backend = "gloo"
    if dt.distributed_init_method is None and training and all(k in os.environ for k in TORCHRUN):
        return join_torchrun(cfg)
    return topology_of_cpus(dt) if on_cpu(cfg) else topology_of_gpus(dt)


def join_torchrun(cfg: Config) -> Topology:
    """Be the worker that torchrun's variables say."""
    dt = cfg.distributed_training
    dt.distributed_world_size = int(os.environ["WORLD_SIZE"])
    if dt.distributed_world_size == 1:
        return Topology(workers=0)
    dt.distributed_init_method = "env://"
    dt.distributed_rank = int(os.environ["RANK"])
    dt.device_id = int(os.environ.get("LOCAL_RANK", 0))
    dt.distributed_no_spawn = True
    return Topology(workers=0, distributed=True)


def topology_of_gpus(dt: DistributedConfig) -> Topology:
    """fairseq knows how to count GPUs and to read Slurm; only the start is ours."""
    devices = torch.cuda.device_count()
    alone = dt.distributed_init_method is None and "SLURM_JOB_NODELIST" not in os.environ
    if alone and dt.distributed_world_size > devices:
        raise UserError(
            f"--distributed-world-size {dt.distributed_world_size} is more than the {devices} GPUs "
            "of this machine: lower it, or add --cpu"
        )
    wanted = dt.distributed_port
    if dt.distributed_init_method is None:
        distributed_utils.infer_init_method(dt)  # picks a port at random if none is wanted
    if dt.distributed_init_method is None:
        return Topology(workers=0)
    if dt.distributed_no_spawn:
        return Topology(workers=0, distributed=True)
    host, port = address(dt.distributed_init_method)
    workers = min(devices, dt.distributed_world_size)
    return started_here(dt, workers, host, wanted if alone else port)


def started_here(
    dt: DistributedConfig, workers: int, host: str | None, port: int | None
) -> Topology:
    """So many workers; the store is kept here too if these are all, and it is to be local."""
    hosts_store = workers == dt.distributed_world_size and host in (None, *LOCAL_HOSTS)
    if hosts_store and port is not None:
        dt.distributed_port = port
    return Topology(workers, dt.distributed_rank, distributed=True, hosts_store=hosts_store)


def slurm_tasks() -> int:
    """How many tasks ``srun`` started, of which this is one; a batch script is not one of many."""
    if "SLURM_STEP_NODELIST" not in os.environ or "SLURM_PROCID" not in os.environ:
        return 1
    return int(os.environ.get("SLURM_STEP_NUM_TASKS") or os.environ.get("SLURM_NTASKS") or 1)


def join_slurm(dt: DistributedConfig, tasks: int) -> None:
    """A worker per task, or equally many. (fairseq makes it one per GPU on nodes with one task.)"""
    world = dt.distributed_world_size
    workers, left = divmod(world, tasks)
    if left:
        raise UserError(
            f"--distributed-world-size {world} does not fit the {tasks} tasks of this Slurm step: "
            f"give {tasks}, a worker per task, or a multiple of it"
        )
    if dt.distributed_port <= 0:
        raise UserError(
            f"--distributed-world-size {world} in a Slurm step of {tasks} tasks needs "
            "--distributed-port, so that the workers can find each other: give a free one, "
            "for example 29500"
        )
    dt.distributed_init_method = f"tcp://{first_host()}:{dt.distributed_port}"
    dt.distributed_rank = workers * int(os.environ["SLURM_PROCID"])
    dt.distributed_num_procs = workers
    dt.distributed_no_spawn = workers == 1
    dt.device_id = int(os.environ.get("SLURM_LOCALID", 0))


def first_host() -> str:
    """The host of the Slurm step's first task."""
    nodes = os.environ["SLURM_STEP_NODELIST"]
    try:
        names = subprocess.check_output(["scontrol", "show", "hostnames", nodes], text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise UserError(
            f"scontrol cannot say which hosts SLURM_STEP_NODELIST={nodes} means ({error}): give "
            "--distributed-init-method tcp://HOST:PORT, --distributed-rank $SLURM_PROCID and "
            "--distributed-no-spawn"
        ) from None
    return names.split()[0]


def topology_of_cpus(dt: DistributedConfig) -> Topology:
    world = dt.distributed_world_size
    tasks = slurm_tasks()
    if dt.distributed_init_method is None and world > 1 and tasks > 1:
        join_slurm(dt, tasks)
    if dt.distributed_init_method is None and world == 1:
        return Topology(workers=0)
    if not 0 <= dt.distributed_rank < world:
        raise UserError(
            f"--distributed-rank {dt.distributed_rank} does not fit --distributed-world-size "
            f"{world}: ranks go from 0 to {world - 1}"
        )
    if dt.distributed_no_spawn:
        if dt.distributed_init_method is None:
            raise UserError(
                f"--distributed-no-spawn with --distributed-world-size {world} needs "
                "--distributed-init-method tcp://HOST:PORT (and --distributed-rank), so that the "
                "workers can find each other"
            )
        return Topology(workers=0, distributed=True)
    # the default of --distributed-num-procs on a machine without GPUs is 1: all that are left
    left = world - dt.distributed_rank
    workers = min(dt.distributed_num_procs, left) if dt.distributed_num_procs > 1 else left
    return started_here(dt, workers, *address(dt.distributed_init_method))


def address(init_method: str | None) -> tuple[str | None, int | None]:
    """Host and port of ``tcp://host:port``; the scheme and None for any other."""
    if init_method is None:
        return None, None
    scheme, _, rest = init_method.partition("://")
    host, _, port = rest.partition("?")[0].rpartition(":")
    if scheme != "tcp":
        return scheme, None
    if not host or not port.isdigit():
        raise UserError(
            f"--distributed-init-method {init_method} is not of the form tcp://HOST:PORT"
        )
    return host, int(port)


def port_taken(port: int | None) -> str:
    return (
        f"port {port} is in use: choose another --distributed-port, or leave it out to get a "
        "free one"
    )
