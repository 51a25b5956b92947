"""The plan of who starts what, as data: no process is started here."""

from __future__ import annotations

import pytest
from fairseq.dataclass.configs import FairseqConfig
from omegaconf import OmegaConf

import fairseq_hybrid  # noqa: F401
from fairseq_hybrid.compat import UserError, launch
from fairseq_hybrid.compat.plan import Plan, address, plan


@pytest.fixture
def cfg(monkeypatch):
    for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    config = OmegaConf.create(OmegaConf.to_container(OmegaConf.structured(FairseqConfig)))
    config.common.cpu = True
    config.distributed_training.distributed_world_size = 1
    return config


def test_one_worker_is_this_process(cfg):
    assert plan(cfg, training=True) == Plan(workers=0)


def test_several_workers_meet_at_our_store(cfg):
    cfg.distributed_training.distributed_world_size = 3
    assert plan(cfg, training=True) == Plan(3, 0, distributed=True, hosts_store=True)
    assert cfg.distributed_training.distributed_backend == "gloo"


def test_explicit_address_elsewhere_is_not_ours_to_host(cfg):
    cfg.distributed_training.update(
        distributed_world_size=4,
        distributed_rank=2,
        distributed_num_procs=2,
        distributed_init_method="tcp://10.0.0.1:2000",
    )
    assert plan(cfg, training=True) == Plan(2, 2, distributed=True, hosts_store=False)


def test_torchrun_variables_win_over_the_default_world_size(cfg, monkeypatch):
    for name, value in (
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", "1234"),
        ("WORLD_SIZE", "2"),
        ("RANK", "1"),
    ):
        monkeypatch.setenv(name, value)
    assert plan(cfg, training=True) == Plan(0, 0, distributed=True)
    assert cfg.distributed_training.distributed_rank == 1
    assert cfg.distributed_training.distributed_world_size == 2


def test_generation_under_torchrun_stays_as_fairseq_has_it(cfg, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert plan(cfg, training=False) == Plan(workers=0)


@pytest.mark.parametrize("world", [0, -2])
def test_world_size_below_one(cfg, world):
    cfg.distributed_training.distributed_world_size = world
    with pytest.raises(UserError, match=f"--distributed-world-size {world}"):
        plan(cfg, training=True)


def test_rank_outside_the_world(cfg):
    cfg.distributed_training.update(distributed_world_size=2, distributed_rank=2)
    with pytest.raises(UserError, match="--distributed-rank 2"):
        plan(cfg, training=True)


def test_no_spawn_needs_an_address(cfg):
    cfg.distributed_training.update(distributed_world_size=2, distributed_no_spawn=True)
    with pytest.raises(UserError, match="--distributed-init-method"):
        plan(cfg, training=True)


@pytest.mark.parametrize("value", ["tcp://host", "tcp://:12", "tcp://host:port"])
def test_malformed_address(value):
    with pytest.raises(UserError, match="tcp://HOST:PORT"):
        address(value)


def test_port_in_use_is_said_before_anything_starts():
    store = launch.loopback_store(0)
    with pytest.raises(UserError, match=f"port {store.port} is in use"):
        launch.loopback_store(store.port)
