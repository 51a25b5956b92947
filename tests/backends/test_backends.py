"""A new ``--ddp-backend`` is one decorated function in one place."""

from __future__ import annotations

import pickle

import pytest
import torch
from fairseq.dataclass import configs, constants
from jobs import TINY_LSTM, curve

import fairseq_hybrid  # noqa: F401
from fairseq_hybrid.backends import registry as backends
from fairseq_hybrid.backends.base import Backend

PLUGIN = '''
"""A user's own plugin on top of ours: gradients summed by hand, so legacy_ddp's losses."""
import torch.distributed as dist
from torch import nn

from fairseq_hybrid.errors import UserError
from fairseq_hybrid.backends.registry import register_backend


class Wrapper(nn.Module):
    def __init__(self, module, group):
        super().__init__()
        self.module, self.group = module, group

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def all_reduce_grads(self):
        for p in self.module.parameters():
            if p.requires_grad:
                dist.all_reduce(p.grad, group=self.group)
                p.grad.div_(dist.get_world_size(self.group))


def refuse_three_workers(cfg):
    if cfg.distributed_training.distributed_world_size > 2:
        raise UserError("--ddp-backend by_hand works with --distributed-world-size 2 only")


@register_backend("by_hand", help="every gradient by itself", validate=refuse_three_workers)
def by_hand(cfg, model, process_group, device):
    return Wrapper(model.to(device), process_group)
'''


@pytest.fixture
def plugin(tmp_path):
    folder = tmp_path / "by_hand_plugin"
    folder.mkdir()
    (folder / "__init__.py").write_text(PLUGIN)
    return folder


def train(server, data, save_dir, plugin, *more):
    return server.run(
        *("fairseq-train", data, "--user-dir", plugin, *TINY_LSTM, "--cpu", "--optimizer", "sgd"),
        *("--lr", "0.5", "--batch-size", "16", "--log-interval", "1", "--log-format", "json"),
        *("--save-dir", save_dir, "--max-update", "3", "--no-save", *more),
    )


def test_registered_backend_trains_on_real_workers(server, data, tmp_path, plugin):
    two = ("--distributed-world-size", "2")
    ours = train(server, data, tmp_path / "a", plugin, *two, "--ddp-backend", "by_hand").ok()
    legacy = train(server, data, tmp_path / "b", plugin, *two, "--ddp-backend", "legacy_ddp").ok()
    assert len(curve(ours)) == 3
    assert curve(ours) == pytest.approx(curve(legacy), rel=1e-5)


def test_its_refusal_comes_before_any_worker_starts(server, data, tmp_path, plugin):
    flags = ("--ddp-backend", "by_hand", "--distributed-world-size", "3")
    result = train(server, data, tmp_path, plugin, *flags)
    assert "--ddp-backend by_hand works with" in result.error()
    assert "distributed init" not in result.out


def test_help_lists_it(server, plugin):
    text = server.run("fairseq-train", "--user-dir", plugin, "--help").ok().out
    assert "by_hand" in text
    assert "every gradient by itself" in " ".join(text.split())


@pytest.fixture
def registered():
    @backends.register_backend("temporary", help="for this test")
    def build(cfg, model, process_group, device):
        return model

    yield
    del backends.BACKENDS["temporary"]
    backends.publish()


@pytest.mark.usefixtures("registered")
def test_choices_survive_pickling_and_reach_hydra():
    from hydra.core.config_store import ConfigStore

    choices = constants.DDP_BACKEND_CHOICES
    assert pickle.loads(pickle.dumps(choices)) is choices
    assert pickle.loads(pickle.dumps(choices.temporary)) == "temporary"
    field = configs.DistributedTrainingConfig.__dataclass_fields__["ddp_backend"]
    assert field.type is choices
    stored = ConfigStore.instance().repo["distributed_training.yaml"].node
    assert stored._get_node("ddp_backend").enum_type is choices


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("name", ["temporary", "legacy_ddp"])
def test_a_name_can_be_taken_once(name):
    with pytest.raises(ValueError, match=f"--ddp-backend {name} is registered already"):
        backends.register_backend(name, help="again")(lambda *_: None)


def test_gradients_are_summed_again_after_a_batch_that_failed():
    """fairseq goes on when memory was too small for a batch."""
    wrapper = Backend(torch.nn.Linear(1, 1))

    def batch() -> None:
        with wrapper.no_sync():
            assert wrapper.accumulating
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        batch()
    assert not wrapper.accumulating
