"""Pretraining of all hidden layers of a network, from the lowest up, with saving and resuming.

Layer i is trained as a Boltzmann machine (rbm.py) on what the finished layers below make of the
embedded words, then becomes layer i of the network. The lowest reads the embeddings themselves,
side by side, which stay as they are.

All that is random is drawn from seeds made of the layer, the epoch or update and the worker, so
what is saved needs no state of a random generator, and a resume continues exactly. Saving is a
meeting of the workers.
"""

from __future__ import annotations

import itertools
import logging
import os
from typing import Any

import torch
import torch.distributed as dist
from fairseq.distributed import utils as distributed_utils
from fairseq.logging import metrics, progress_bar
from omegaconf import OmegaConf
from torch import Tensor

from fairseq_hybrid import checkpoints
from fairseq_hybrid.backends.averaging import AveragingParallel
from fairseq_hybrid.errors import UserError
from fairseq_hybrid.models.feedforward_lm import FeedforwardLanguageModel
from fairseq_hybrid.pretraining import options
from fairseq_hybrid.pretraining.machine import Machine
from fairseq_hybrid.pretraining.rbm import RestrictedBoltzmannMachine
from fairseq_hybrid.pretraining.windows import Minibatches, Windows
from fairseq_hybrid.seeds import mix

logger = logging.getLogger(__name__)

MEAN_BATCHES = 200
"""minibatches for the means of binary units, which only set a bias to start from"""
WEIGHTS, ORDER, UNITS = range(3)
"""what random numbers are drawn for"""


class Pretraining:
    """A network, how many of its layers are finished, and the machine of the next one."""

    def __init__(
        self,
        cfg: Any,
        settings: options.Settings,
        model: FeedforwardLanguageModel,
        windows: Windows,
        device: torch.device,
    ):
        self.cfg, self.settings, self.windows, self.device = cfg, settings, windows, device
        self.model = model.to(device).eval()
        self.rank = distributed_utils.get_global_rank()
        self.world = distributed_utils.get_global_world_size()
        self.layer = 0
        self.machine: Machine | None = None
        self.per_epoch = len(self.minibatches(0, 0))
        if self.per_epoch == 0:
            raise UserError(
                f"--rbm-minibatch {settings.rbm_minibatch} on {self.world} workers is more than "
                f"the {len(windows)} words to train on: lower it"
            )

    @property
    def layers(self) -> torch.nn.ModuleList:
        return self.model.decoder.layers

    def run(self) -> None:
        """From wherever it stands to the end."""
        while self.layer < len(self.layers):
            if self.machine is None:
                self.machine = self.new_machine()
                self._begin()
            while self.machine.update < self.machine.updates:
                self._rest_of_epoch()
                self.save()
            self._finish_layer()

    def new_machine(self) -> Machine:
        """Of the next layer, not started."""
        layer, first = self.layers[self.layer], self.layer == 0
        rbm = RestrictedBoltzmannMachine(layer.in_features, layer.out_features, gaussian=first)
        epochs = self.settings.rbm_gaussian_epochs if first else self.settings.rbm_epochs
        rbm, parallel = rbm.to(self.device), None
        if self.world > 1:
            dt = self.cfg.distributed_training
            parallel = AveragingParallel(
                rbm,
                dist.group.WORLD,
                interval=dt.averaging_interval,
                warmup=0,
                state=dt.averaging_state,
            )
        updates = epochs * self.per_epoch
        return Machine(rbm, self.settings, updates=updates, parallel=parallel)

    def _begin(self) -> None:
        mean_V, deviation_V = self.moments()
        self.machine.rbm.start(
            mean_V,
            deviation_V,
            weight_scale=self.settings.rbm_weight_scale,
            generator=torch.Generator().manual_seed(self.seed(WEIGHTS)),
        )

    def _rest_of_epoch(self) -> None:
        machine, common = self.machine, self.cfg.common
        epoch, done = divmod(machine.update, self.per_epoch)
        progress = progress_bar.progress_bar(
            self.minibatches(epoch, done),
            log_format=common.log_format,
            log_interval=common.log_interval,
            epoch=epoch + 1,
            prefix=f"layer {self.layer + 1}",
            default_log_format="simple" if common.no_progress_bar else "tqdm",
        )
        metrics.reset_meters("pretrain_inner")
        with metrics.aggregate(new_root=True) as whole:
            for words in progress:
                with metrics.aggregate("pretrain_inner"):
                    self._step(words)
                if machine.update % common.log_interval == 0:
                    stats = metrics.get_smoothed_values("pretrain_inner")
                    progress.log(stats, tag="pretrain_inner", step=machine.update)
                    metrics.reset_meters("pretrain_inner")
                interval = self.cfg.checkpoint.save_interval_updates
                if interval > 0 and machine.update % interval == 0:
                    self.save()
        progress.print(whole.get_smoothed_values(), tag="pretrain", step=machine.update)

    def _step(self, words: Tensor) -> None:
        machine = self.machine
        seed = self.seed(UNITS, machine.update, self.rank)
        generator = torch.Generator(self.device).manual_seed(seed)
        error = machine.step(self.inputs(words), generator)
        # weight 0: the last value, not a mean
        metrics.log_scalar("layer", self.layer + 1, weight=0, priority=1)
        metrics.log_scalar("num_updates", machine.update, weight=0, priority=2)
        metrics.log_scalar("reconstruction", error, priority=3, round=5)
        metrics.log_scalar("momentum", machine.momentum, weight=0, priority=4, round=3)
        metrics.log_scalar("calm", machine.calm.clone(), weight=0, priority=5, round=3)

    @torch.no_grad()
    def _finish_layer(self) -> None:
        self.machine.sync()
        weight, bias = self.machine.rbm.layer()
        self.layers[self.layer].weight.copy_(weight)
        self.layers[self.layer].bias.copy_(bias)
        self.layer, self.machine = self.layer + 1, None
        self.save()

    def minibatches(self, epoch: int, done: int) -> Minibatches:
        return Minibatches(
            self.windows,
            self.settings.rbm_minibatch,
            seed=self.seed(ORDER, epoch),
            n=done,
            rank=self.rank,
            world=self.world,
        )

    @torch.no_grad()
    def inputs(self, words_NL: Tensor) -> Tensor:
        """data_NV: what the finished layers make of windows of words."""
        return self.model.decoder.hidden(words_NL.to(self.device), self.layer).squeeze(1)

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of every dimension of the next layer's input."""
        batches = self.minibatches(0, 0)
        batches = batches if self.layer == 0 else itertools.islice(batches, MEAN_BATCHES)
        sums = torch.zeros(3, self.layers[self.layer].in_features, dtype=torch.double)
        sums = sums.to(self.device)
        for words in batches:
            data = self.inputs(words).double()
            sums += torch.stack((torch.ones_like(data), data, data.square())).sum(1)
        if self.world > 1:
            dist.all_reduce(sums)
        count, total, squares = sums
        mean = total / count
        deviation = (squares / count - mean.square()).clamp(min=0).sqrt()
        return mean.float(), deviation.float()

    def seed(self, *what: int) -> int:
        return mix(self.cfg.common.seed, self.layer, *what)

    # --- saving -----------------------------------------------------------------------------------

    def path(self, name: str) -> str:
        return os.path.join(self.cfg.checkpoint.save_dir, name)

    def save(self) -> None:
        """What is needed to go on or, at the end, the network."""
        if self.machine is not None:
            self.machine.sync()
        if self.rank > 0:
            return
        if self.layer < len(self.layers):
            state = {
                "identity": options.identity(self.cfg, self.settings),
                "model": self.model.state_dict(),
                "layer": self.layer,
                "machine": self.machine and self.machine.state_dict(),
            }
            checkpoints.save(state, self.path(options.PROGRESS))
            return
        checkpoints.save(self.checkpoint(), self.path(options.RESULT))
        os.remove(self.path(options.PROGRESS))
        logger.info(f"pretrained: {self.path(options.RESULT)}")

    def checkpoint(self) -> dict[str, Any]:
        """The network as fairseq stores one before its first update."""
        start = {"version": 2, "epoch": 1, "iterations_in_epoch": 0, "shuffle": True}
        # fairseq wants to know of an optimizer; without its state nobody looks which one it was
        optimizer = {"optimizer_name": "SGD", "lr_scheduler_state": {}, "num_updates": 0}
        return {
            "args": None,
            "cfg": OmegaConf.to_container(self.cfg, resolve=True, enum_to_str=True),
            "model": self.model.state_dict(),
            "criterion": None,
            "optimizer_history": [optimizer],
            "task_state": {},
            "extra_state": {"train_iterator": start},
        }

    def resume(self) -> None:
        """Go on where the last save was made, if there is one."""
        path, state = self.path(options.PROGRESS), None
        if self.rank == 0 and os.path.exists(path):
            state = checkpoints.load(path, map_location="cpu")
        if self.world > 1:
            state = distributed_utils.broadcast_object(state, 0, dist.group.WORLD, self.device)
        if state is None:
            return
        now = options.identity(self.cfg, self.settings)
        options.refuse_changed_settings(path, state["identity"], now)
        self.model.load_state_dict(state["model"])
        self.layer = state["layer"]
        if state["machine"] is not None:
            self.machine = self.new_machine()
            self.machine.load_state_dict(state["machine"])
        update = self.machine.update if self.machine else 0
        logger.info(f"resumed from {path}: layer {self.layer + 1}, update {update}")
