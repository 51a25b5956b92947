"""The mean of several checkpoints of one training, as a checkpoint to translate with.

    python examples/translation/average.py TARGET CHECKPOINT...

fairseq's scripts/average_checkpoints.py does the same from a source checkout; it is not installed
with the package, and it does not load checkpoints under current torch.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fairseq_hybrid import checkpoints


def main(target: str, *paths: str) -> None:
    states = [checkpoints.load(path, map_location="cpu") for path in paths]
    average = states[0]
    for name, weight in average["model"].items():
        mean = sum(state["model"][name].double() for state in states) / len(states)
        average["model"][name] = mean.to(weight.dtype)
    average.pop("last_optimizer_state", None)
    torch.save(average, target + ".part")
    os.replace(target + ".part", target)
    print(f"  {len(states)} checkpoints -> {target}")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("average.py: give the file to write and the checkpoints to average")
    main(*sys.argv[1:])
