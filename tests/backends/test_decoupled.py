"""``--hybrid-schedule decoupled``: gradients of LSTM layers and embeddings come one update late.

Workers over gloo against a single process that holds the late gradients back (decoupled_cases.py,
float64 and float32); then `fairseq-train`, whose reference is one worker of the same command with a
plugin that swaps gradients just before they are clipped: fairseq has divided them by the sample
size of their own update then. The schedules as plain data: test_schedule.py.
"""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from decoupled_cases import all_parallel, all_references, cases
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from jobs import Result, curve, train_command
from omegaconf import OmegaConf
from warm import Warm
from workers import run_workers

import fairseq_hybrid  # noqa: F401
from fairseq_hybrid import checkpoints, config
from fairseq_hybrid.errors import UserError

# Workers against one process that simulates them


@functools.cache
def results(world: int) -> dict:
    """By rank and "reference"."""
    (reference,) = run_workers(all_references, 1, world)
    return {"reference": reference, **dict(enumerate(run_workers(all_parallel, world, world)))}


everything = [
    pytest.param(
        world, case, id=f"{world}: {case.name}", marks=pytest.mark.long if world > 2 else ()
    )
    for world in (2, 4)
    for case in cases(world)
]


@pytest.mark.parametrize(("world", "case"), everything)
def test_weights_are_those_of_late_gradients_in_one_process(world, case):
    close = 1e-5 if case.dtype == torch.float32 else 1e-10
    every = results(world)
    want = every["reference"][case.name]
    workers = [every[rank][case.name] for rank in range(world)]
    losses = [sum(parts) for parts in zip(*(worker["losses"] for worker in workers))]
    assert losses == pytest.approx(want["losses"], rel=close)
    for worker in workers:
        assert worker["norms"] == pytest.approx(want["norms"], rel=close)
        assert worker["under way"] == 0
        assert worker["weights"].keys() == want["weights"].keys()
        for name, weight in want["weights"].items():
            difference = (worker["weights"][name] - weight).norm() / weight.norm()
            assert difference < close, name
    steps = {name: n for worker in workers for name, n in worker["steps"].items()}
    assert steps == want["steps"]


def test_late_and_shrunk_gradients_make_a_difference():
    """Otherwise the comparison above says little."""
    one = results(2)["reference"]
    late, tied = one["2 chunk=1 x1"], one["2 chunk=2 x1 share_all_embeddings=True"]
    for these, others in (
        (late, one["timely"]),
        (tied, one["2 chunk=None x1 share_all_embeddings=True shrink=0.5"]),
    ):
        for name in ("encoder.layers.0.lstm.weight_hh_l0", "decoder.layers.3.lstm.weight_ih_l0"):
            weight, other = (result["weights"][name] for result in (these, others))
            assert (weight - other).norm() > 1e-3 * weight.norm()
    assert max(late["norms"]) > 0.5 > min(late["norms"])  # clipped and not


# fairseq-train

PLUGIN = '''
"""All digits in the log. With LATE: one worker whose gradients but for the head's come an update
late, and are applied before validation and saving."""
import os

import fairseq.logging.meters

import fairseq_hybrid
from fairseq_hybrid import trainer
from fairseq_hybrid.launch import worker

fairseq.logging.meters.safe_round = lambda number, digits: number
late = {}


class Late(trainer.HybridTrainer):
    def clip_grad_norm(self, clip_norm):
        self.optimizer.scale.clip(self.optimizer.params, 0.0, None)  # by this update's factor
        for name, p in self.model.named_parameters():
            if ".head." not in name:
                p.grad, late[name] = late.get(name), p.grad
        return super().clip_grad_norm(clip_norm)

    def apply_late(self):
        if late:
            self.zero_grad()
            for name, p in self.model.named_parameters():
                p.grad = late.pop(name, None)
            super().clip_grad_norm(self.cfg.optimization.clip_norm)
            self.optimizer.step()
            self.zero_grad()

    def begin_valid_epoch(self, epoch):
        self.apply_late()
        super().begin_valid_epoch(epoch)

    def consolidate_optimizer(self):
        self.apply_late()
        super().consolidate_optimizer()


if os.environ.get("LATE"):
    worker.trainer = Late
'''
MODEL = (
    *("--arch", "hybrid_lstm", "--encoder-layers", "4", "--dropout", "0"),
    *("--encoder-embed-dim", "16", "--encoder-hidden-size", "16"),
)
FLAGS = (
    *("--batch-size", "13", "--required-batch-size-multiple", "1", "--clip-norm", "0.5"),
    *("--num-workers", "0", "--max-update", "24", "--save-interval-updates", "8"),
)
"""480 sentences: 37 batches, so update 19 of two workers ends an epoch with an empty batch"""
DECOUPLED = ("--hybrid-schedule", "decoupled")


def workers(count: int, *more: str) -> tuple[str, ...]:
    spread = ("--distributed-world-size", f"{count}", "--ddp-backend", "hybrid")
    return (*spread, *DECOUPLED, *more)


RUNS = {
    "simulated 2": ("--update-freq", "2"),
    "decoupled 2": workers(2),
    # make test-long
    "simulated 4": ("--update-freq", "4"),
    "decoupled 4": workers(4),
    "decoupled 2 x 2": workers(4, "--hybrid-stages", "2"),
    "simulated both ways": ("--update-freq", "2", "--encoder-bidirectional-first"),
    "decoupled both ways": workers(2, "--encoder-bidirectional-first"),
}


@dataclass(eq=False)
class Trained:
    result: Result
    folder: Path

    def curve(self, key: str, after: int = 0) -> dict[int, float]:
        return {u: value for u, value in curve(self.result, key).items() if u > after}

    def checkpoint(self, name: str = "checkpoint_last.pt") -> dict:
        return checkpoints.load(str(self.folder / name))


class Lab:
    """Makes each run once."""

    def __init__(self, server, data: Path, folder: Path):
        self.server, self.data, self.folder = server, data, folder
        self.plugin = folder / "late_plugin"
        self.plugin.mkdir()
        (self.plugin / "__init__.py").write_text(PLUGIN)
        self.made: dict[str, Trained] = {}

    def start(self, name: str, *flags: str, **env: str) -> Warm:
        folder = self.folder / name.replace(" ", "_")
        folder.mkdir()
        plugin = ("--user-dir", str(self.plugin))
        command = train_command(self.data, folder, *FLAGS, *plugin, *flags, arch=MODEL)
        return Warm(self.server, command, folder, **env)

    def train(self, name: str, *flags: str) -> Trained:
        env = {"LATE": "1"} if name.startswith("simulated") else {}
        result = self.start(name, *flags, **env).finish().ok()
        return Trained(result, self.folder / name.replace(" ", "_"))

    def __getitem__(self, name: str) -> Trained:
        if name not in self.made:
            self.made[name] = self.train(name, *RUNS[name])
        return self.made[name]


@pytest.fixture(scope="module")
def lab(server, data, tmp_path_factory) -> Lab:
    return Lab(server, data, tmp_path_factory.mktemp("runs"))


def assert_same_weights(got: dict, expected: dict, close: float = 1e-5) -> None:
    assert got.keys() == expected.keys()
    for name, want in expected.items():
        difference = (got[name] - want).norm() / want.norm()
        assert difference < close, f"{name}: {difference:.1e}"


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("decoupled 2", "simulated 2"),
        pytest.param("decoupled 4", "simulated 4", marks=pytest.mark.long),
        pytest.param("decoupled 2 x 2", "simulated 4", marks=pytest.mark.long),
        pytest.param("decoupled both ways", "simulated both ways", marks=pytest.mark.long),
    ],
)
def test_training_is_that_of_one_worker_with_late_gradients(lab, name, reference):
    """Losses, norms, weights: over an end of epoch, validations and checkpoints on the way."""
    run, expected = lab[name], lab[reference]
    assert run.curve("wpb") == expected.curve("wpb"), "these are not the same batches"
    assert list(run.curve("loss")) == list(range(1, 25))
    for key in ("loss", "gnorm"):
        assert run.curve(key) == pytest.approx(expected.curve(key), rel=1e-4), key
    losses = run.curve("loss")
    assert losses[24] < 0.85 * losses[1]
    for at in ("checkpoint_1_8.pt", "checkpoint_last.pt"):
        assert_same_weights(run.checkpoint(at)["model"], expected.checkpoint(at)["model"])


def test_a_checkpoint_is_drained_and_goes_on(lab):
    """From update 8, in the middle of an epoch: the losses and weights of the run it was made in;
    and other backends read it."""
    whole = lab["decoupled 2"]
    restore = ("--restore-file", str(whole.folder / "checkpoint_1_8.pt"))
    resumed = lab.train("resumed", *workers(2), *restore)
    for key in ("loss", "gnorm"):
        assert resumed.curve(key) == pytest.approx(whole.curve(key, after=8), rel=1e-6), key
    assert_same_weights(resumed.checkpoint()["model"], whole.checkpoint()["model"], 1e-6)
    state = whole.checkpoint("checkpoint_1_8.pt")["last_optimizer_state"]["state"]
    assert {values["step"] for values in state.values()} == {8}
    legacy = ("--distributed-world-size", "2", "--ddp-backend", "legacy_ddp")
    other = lab.train("other", *legacy, "--max-update", "9", *restore)
    assert other.curve("loss")[9] == pytest.approx(whole.curve("loss")[9], rel=1e-5)


def test_the_log_tells_how_busy_the_stages_can_be(lab):
    ideal = lab["decoupled 2"].curve("ideal")
    assert list(ideal) == list(range(1, 25))
    assert all(0 < share <= 100 for share in ideal.values())
    assert min(share for update, share in ideal.items() if update not in (1, 9, 17, 19, 20)) > 80


# What cannot work


@pytest.fixture(scope="module")
def configuration():
    """Of a command that is good."""
    common = (*MODEL, "--optimizer", "adam", "--lr", "0.1", "--cpu", *workers(2))
    parser = options.get_training_parser()
    args = options.parse_args_and_arch(parser, ["data", "--task", "translation", *common])
    return convert_namespace_to_omegaconf(args)


REFUSED = [
    ("distributed_training.hybrid_schedule", "late", "use synchronous, decoupled"),
    ("distributed_training.decoupled_shrink", 0.0, "--decoupled-shrink 0.0 is not a factor"),
    ("distributed_training.decoupled_shrink", 1.5, "--decoupled-shrink 1.5 is not a factor"),
    ("distributed_training.ddp_backend", "model_parallel", "--ddp-backend model_parallel does not"),
    ("criterion._name", "sampled_softmax", "--criterion sampled_softmax does not go with --hybrid"),
    ("common.amp", True, "--amp does not go with --hybrid-schedule decoupled: use --hybrid"),
    ("common.memory_efficient_bf16", True, "--bf16 does not go with --hybrid-schedule decoupled"),
]


@pytest.mark.parametrize(("key", "value", "said"), REFUSED, ids=[said for *_, said in REFUSED])
def test_what_cannot_work_is_refused(configuration, key, value, said):
    config.validate(configuration)
    cfg = copy.deepcopy(configuration)
    OmegaConf.update(cfg, key, value)
    cfg.common.bf16 = cfg.common.memory_efficient_bf16
    with pytest.raises(UserError) as error:
        config.validate(cfg)
    assert said in str(error.value)


def test_it_is_one_line_before_any_worker_starts(lab):
    result = lab.start("refused", *workers(2), "--input-feeding").finish(60)
    assert "--input-feeding does not go with --hybrid-schedule decoupled" in result.error()
    assert "distributed init" not in result.all
