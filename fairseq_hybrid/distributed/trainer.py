"""fairseq's trainer with what several workers on any device need.

* a save that is cut off between its files is finished by the next start (see compat.checkpoints)
* the check that all workers see the same gradient norm, which fairseq makes on GPUs only
"""

from __future__ import annotations

import os
from typing import Any

import torch
from fairseq.trainer import Trainer

from fairseq_hybrid.compat import checkpoints


class HybridTrainer(Trainer):
    """Bound in place of fairseq's ``Trainer`` when training starts."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.data_parallel_world_size > 1 and self._grad_norm_buf is None and not self.tpu:
            self._grad_norm_buf = torch.zeros(
                self.data_parallel_world_size, dtype=torch.double, device=self.device
            )

    @property
    def last_checkpoint(self) -> str:
        cfg = self.cfg.checkpoint
        return os.path.join(cfg.save_dir, f"checkpoint_last{self.checkpoint_suffix}.pt")

    def save_checkpoint(self, filename: str, extra_state: dict[str, Any]) -> str | None:
        saved = super().save_checkpoint(filename, extra_state)
        cfg = self.cfg.checkpoint
        resumable = "train_iterator" in extra_state  # not so in the dump after a crash
        if (
            saved
            and resumable
            and not (cfg.no_last_checkpoints or cfg.write_checkpoints_asynchronously)
        ):
            checkpoints.announce(saved, self.last_checkpoint)
        return saved

    def load_checkpoint(self, filename: str, *args: Any, **kwargs: Any) -> dict[str, Any] | None:
        if self.should_save_checkpoint_on_current_rank and checkpoints.saving_is_ours():
            checkpoints.finish(self.last_checkpoint)
        if self.data_parallel_world_size > 1:
            torch.distributed.barrier(self.data_parallel_process_group)
        return super().load_checkpoint(filename, *args, **kwargs)
