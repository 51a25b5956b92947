"""What can be seen to be wrong with a command's files and options before any worker starts."""

from __future__ import annotations

import glob
import os
from typing import Any

from fairseq_hybrid import checkpoints, config
from fairseq_hybrid.config import CheckpointConfig, Config, DistributedConfig
from fairseq_hybrid.errors import UserError


def settle_and_validate(cfg: Config, training: bool) -> None:
    """Refuse missing files and bad options; let a plan choose what is left to choose."""
    validate_data(cfg.task)
    if training:
        validate_timeouts(cfg.distributed_training)
        validate_restore_file(cfg.checkpoint)
        config.settle(cfg)


def validate_timeouts(dt: DistributedConfig) -> None:
    if dt.heartbeat_timeout > 0:
        raise UserError(
            f"--heartbeat-timeout {dt.heartbeat_timeout} can't end a worker that waits for another "
            f"one: use --worker-timeout {max(5, dt.heartbeat_timeout)}"
        )


def validate_data(task: Any) -> None:
    """The folders named on the command line are there and hold what preprocessing makes."""
    has_dictionary = getattr(task, "_name", None) in ("translation", "language_modeling")
    paths = str(getattr(task, "data", None) or "").split(os.pathsep)
    for path in [p for p in paths if p and "://" not in p]:
        how = f"make it with fairseq-preprocess --destdir {path}"
        if not os.path.isdir(path):
            raise UserError(f"data folder {path} does not exist: {how}")
        if has_dictionary and not glob.glob(glob.escape(path) + "/dict*.txt"):
            raise UserError(f"data folder {path} holds no dictionary (dict.*.txt): {how}")


def validate_restore_file(checkpoint: CheckpointConfig) -> None:
    path = checkpoint.restore_file
    if path == "checkpoint_last.pt":
        path = os.path.join(checkpoint.save_dir, path)
    elif "://" not in path and not os.path.exists(path) and not checkpoint.checkpoint_suffix:
        raise UserError(f"--restore-file {path} does not exist: correct the path, or leave it out")
    if os.path.isfile(path) and not checkpoints.looks_complete(path):
        raise UserError(checkpoints.unreadable(path))
