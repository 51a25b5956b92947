"""Who starts which workers, as data: no process is started here."""

from __future__ import annotations

import os

import pytest
from fairseq.dataclass.configs import FairseqConfig
from omegaconf import OmegaConf

import fairseq_hybrid  # noqa: F401
from fairseq_hybrid.errors import UserError
from fairseq_hybrid.launch.rendezvous import loopback_store
from fairseq_hybrid.launch.topology import Topology, address, topology_of


@pytest.fixture
def cfg(monkeypatch):
    names = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK")
    for name in (*names, *(name for name in os.environ if name.startswith("SLURM_"))):
        monkeypatch.delenv(name, raising=False)
    config = OmegaConf.create(OmegaConf.to_container(OmegaConf.structured(FairseqConfig)))
    config.common.cpu = True
    config.distributed_training.distributed_world_size = 1
    return config


def test_one_worker_is_this_process(cfg):
    assert topology_of(cfg, training=True) == Topology(workers=0)


def test_several_workers_find_our_store(cfg):
    cfg.distributed_training.distributed_world_size = 3
    assert topology_of(cfg, training=True) == Topology(3, 0, distributed=True, hosts_store=True)
    assert cfg.distributed_training.distributed_backend == "gloo"


def test_explicit_address_elsewhere_is_not_ours_to_host(cfg):
    cfg.distributed_training.update(
        distributed_world_size=4,
        distributed_rank=2,
        distributed_num_procs=2,
        distributed_init_method="tcp://10.0.0.1:2000",
    )
    assert topology_of(cfg, training=True) == Topology(2, 2, distributed=True, hosts_store=False)


def test_torchrun_variables_win_over_the_default_world_size(cfg, monkeypatch):
    for name, value in (
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", "1234"),
        ("WORLD_SIZE", "2"),
        ("RANK", "1"),
    ):
        monkeypatch.setenv(name, value)
    assert topology_of(cfg, training=True) == Topology(0, 0, distributed=True)
    assert cfg.distributed_training.distributed_rank == 1
    assert cfg.distributed_training.distributed_world_size == 2


def test_generation_under_torchrun_stays_as_fairseq_has_it(cfg, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert topology_of(cfg, training=False) == Topology(workers=0)


@pytest.fixture
def srun(cfg, monkeypatch, tmp_path):
    """Be one of the tasks that ``srun`` starts on as many nodes."""
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho first\necho second\n")
    (tmp_path / "scontrol").chmod(0o755)
    cfg.distributed_training.distributed_port = 29500

    def be(task: int, tasks: int, world: int) -> None:
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        for name in ("NTASKS", "NNODES", "STEP_NUM_TASKS"):
            monkeypatch.setenv(f"SLURM_{name}", str(tasks))
        for name in ("PROCID", "NODEID"):
            monkeypatch.setenv(f"SLURM_{name}", str(task))
        monkeypatch.setenv("SLURM_LOCALID", "0")
        monkeypatch.setenv("SLURM_STEP_NODELIST", "nodes")
        cfg.distributed_training.distributed_world_size = world

    return be


@pytest.mark.parametrize(
    ("task", "tasks", "world", "wanted", "rank"),
    [
        (0, 2, 2, Topology(0, 0, distributed=True), 0),
        (1, 2, 2, Topology(0, 0, distributed=True), 1),
        (1, 2, 4, Topology(2, 2, distributed=True), 2),
        (2, 3, 9, Topology(3, 6, distributed=True), 6),
    ],
)
def test_slurm_with_one_task_per_node(cfg, srun, task, tasks, world, wanted, rank):
    srun(task, tasks, world)
    assert topology_of(cfg, training=True) == wanted
    dt = cfg.distributed_training
    assert (dt.distributed_world_size, dt.distributed_rank) == (world, rank)
    assert dt.distributed_init_method == "tcp://first:29500"


@pytest.mark.parametrize(("tasks", "world"), [(2, 3), (4, 2)])
def test_slurm_tasks_that_do_not_fit_the_world(cfg, srun, tasks, world):
    srun(0, tasks, world)
    wanted = f"--distributed-world-size {world} does not fit the {tasks} tasks .* give {tasks}"
    with pytest.raises(UserError, match=wanted):
        topology_of(cfg, training=True)


def test_slurm_tasks_need_a_port(cfg, srun):
    srun(0, tasks=2, world=2)
    cfg.distributed_training.distributed_port = -1
    with pytest.raises(UserError, match="Slurm step of 2 tasks needs --distributed-port"):
        topology_of(cfg, training=True)


def test_slurm_without_its_tools(cfg, srun, monkeypatch, tmp_path):
    srun(0, tasks=2, world=2)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(UserError, match=r"scontrol .*: give --distributed-init-method tcp://"):
        topology_of(cfg, training=True)


def test_a_slurm_batch_script_starts_workers_itself(cfg, srun, monkeypatch):
    """It has the variables of a first task, but nobody starts the others."""
    srun(0, tasks=2, world=2)
    for name in ("STEP_NODELIST", "STEP_NUM_TASKS"):
        monkeypatch.delenv(f"SLURM_{name}")
    assert topology_of(cfg, training=True) == Topology(2, 0, distributed=True, hosts_store=True)


@pytest.mark.parametrize("world", [0, -2])
def test_world_size_below_one(cfg, world):
    cfg.distributed_training.distributed_world_size = world
    with pytest.raises(UserError, match=f"--distributed-world-size {world}"):
        topology_of(cfg, training=True)


def test_rank_outside_the_world(cfg):
    cfg.distributed_training.update(distributed_world_size=2, distributed_rank=2)
    with pytest.raises(UserError, match="--distributed-rank 2"):
        topology_of(cfg, training=True)


def test_no_spawn_needs_an_address(cfg):
    cfg.distributed_training.update(distributed_world_size=2, distributed_no_spawn=True)
    with pytest.raises(UserError, match="--distributed-init-method"):
        topology_of(cfg, training=True)


@pytest.mark.parametrize("value", ["tcp://host", "tcp://:12", "tcp://host:port"])
def test_malformed_address(value):
    with pytest.raises(UserError, match="tcp://HOST:PORT"):
        address(value)


def test_port_in_use_is_said_before_anything_starts():
    store = loopback_store(0)
    with pytest.raises(UserError, match=f"port {store.port} is in use"):
        loopback_store(store.port)
