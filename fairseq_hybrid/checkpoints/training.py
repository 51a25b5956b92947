"""fairseq's trainer where it saves and resumes.

* a resume within an epoch goes on after the sentences that were seen (position.py)
* of a save the first file is the one that the next start reads (saving.py)
"""

from __future__ import annotations

import os
from typing import Any

import torch
from fairseq.trainer import Trainer

from fairseq_hybrid import checkpoints
from fairseq_hybrid.checkpoints import position


class ResumingTrainer(Trainer):
    _grad_norm_buf: Any  # fairseq's, which has no types
    _gathered_optim_state: Any
    resumed: dict[str, Any] | None = None
    """the position in a checkpoint that was loaded, until there is an iterator for it"""

    @property
    def last_checkpoint(self) -> str:
        cfg = self.cfg.checkpoint
        return os.path.join(cfg.save_dir, f"checkpoint_last{self.checkpoint_suffix}.pt")

    @property
    def averages(self) -> list[dict[str, torch.Tensor]]:
        """fairseq's exponential moving averages of the weights, if they are kept."""
        if not self.cfg.ema.store_ema:
            return []
        return [dict(self.ema.get_model().named_parameters()), self.ema.fp32_params]

    def save_checkpoint(self, filename: str, extra_state: dict[str, Any]) -> str | None:
        cfg = self.cfg.checkpoint
        resumable = "train_iterator" in extra_state  # not so in the dump after a crash
        if not resumable or cfg.no_last_checkpoints or cfg.write_checkpoints_asynchronously:
            return super().save_checkpoint(filename, extra_state)
        with checkpoints.last_first(self.last_checkpoint):
            return super().save_checkpoint(filename, extra_state)

    def load_checkpoint(self, filename: str, *args: Any, **kwargs: Any) -> dict[str, Any] | None:
        if self.should_save_checkpoint_on_current_rank and checkpoints.saving_is_ours():
            checkpoints.sweep(self.last_checkpoint)
        if self.data_parallel_world_size > 1:
            torch.distributed.barrier(self.data_parallel_process_group)
        with position.completing():
            extra_state = super().load_checkpoint(filename, *args, **kwargs)
        self.resumed = extra_state and extra_state.get("train_iterator")
        return extra_state

    def get_train_iterator(self, epoch: int, *args: Any, **kwargs: Any) -> Any:
        """With the batches of the job that is resumed, which go by the epoch it began in."""
        if self.resumed and epoch == self.resumed["epoch"]:
            epoch = self.resumed.get("made_for_epoch", epoch)
        self.resumed = None
        iterator = super().get_train_iterator(epoch, *args, **kwargs)
        kept = self.task.dataset_to_epoch_iter.get(iterator.dataset) is iterator
        position.tell(iterator, self.cfg, epoch, kept)
        return iterator
