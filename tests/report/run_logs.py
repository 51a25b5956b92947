"""Logs as fairseq writes them, made without training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta

BEGIN = datetime(2026, 3, 1, 9, 0, 0)
CONFIG = {
    "_name": None,
    "common": {"seed": 1, "cpu": True},
    "optimization": {"max_update": 100, "lr": [0.002]},
    "distributed_training": {"distributed_world_size": 2, "ddp_backend": "hybrid"},
    "model": {"_name": "hybrid_lstm", "arch": "hybrid_lstm", "dropout": 0.1},
    "task": {"_name": "translation", "data": "bin"},
    "criterion": {"_name": "cross_entropy"},
}


class Writer:
    """A log, a report every ten seconds."""

    def __init__(self, style: str = "simple"):
        self.style, self.now, self.lines = style, BEGIN, []

    @property
    def text(self) -> str:
        return "".join(line + "\n" for line in self.lines)

    def say(self, name: str, text: str, level: str = "INFO") -> None:
        when = self.now.strftime("%Y-%m-%d %H:%M:%S")
        if self.style == "hydra":
            self.lines.append(f"[{when},123][{name}][{level}] - {text}")
        else:
            self.lines.append(f"{when} | {level} | {name} | {text}")

    def start(self, config: object = CONFIG, at: int | None = None) -> Writer:
        self.say("fairseq_cli.train", str(config))
        self.say("fairseq_cli.train", "num. shared model params: 2,473,152 (num. trained: 1)")
        if at is not None:
            self.say("fairseq.trainer", f"Loaded checkpoint x.pt (epoch 1 @ {at} updates)")
        return self

    def train(self, updates: Sequence[int], loss: float | str = 4.0, **more: object) -> Writer:
        for update in updates:
            self.now += timedelta(seconds=10)
            values = {"loss": loss, "wps": 1000 + update, "num_updates": update, **more}
            if self.style == "json":
                each = {"epoch": 1, "update": 0.5, **{k: str(v) for k, v in values.items()}}
                self.say("train_inner", json.dumps(each))
            elif self.style == "tqdm":
                pairs = ", ".join(f"{k}={v}" for k, v in values.items())
                bar = f"epoch 001:  12%|█▏        | 9/75 [00:02<00:20,  3.1it/s, {pairs}]"
                self.lines[-1] += f"\r{bar}"
            else:
                pairs = ", ".join(f"{k}={v}" for k, v in values.items())
                self.say("train_inner", f"epoch 001:  {update:5d} / 999 {pairs}")
        return self

    def validate(self, update: int, loss: float, subset: str = "valid", **more: object) -> Writer:
        self.now += timedelta(seconds=5)
        values = {"loss": loss, "ppl": round(2**loss, 2), "num_updates": update, **more}
        if self.style == "json":
            named = {f"{subset}_{k}": str(v) for k, v in values.items()}
            self.say(subset, json.dumps({"epoch": 1, **named}))
        else:
            pairs = " | ".join(f"{k} {v}" for k, v in values.items())
            self.say(subset, f"epoch 001 | valid on '{subset}' subset | {pairs}")
        return self

    def done(self) -> Writer:
        self.say("fairseq_cli.train", "done training in 60.5 seconds")
        return self
