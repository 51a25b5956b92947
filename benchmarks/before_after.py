"""Is this checkout as fast as another one? Words per second of both, in turns.

    git worktree add /tmp/before COMMIT
    python benchmarks/before_after.py /tmp/before --json build/before_after.json
    python benchmarks/before_after.py /tmp/before --systems hybrid --turns 5          # a quick look

For each system (one worker, legacy_ddp, hybrid, sampled: `hybrid_lstm`, random words in batches of
one shape) the workers of both checkouts are started and stay; then they train in turns, half of the
pairs beginning with the one, half with the other. The ratio of a pair is new over old; printed are
its geometric mean and the 95 % interval of that, from the spread of the pairs. Bytes are those that
the loopback device carried in a turn.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
UNIFORM = ("--sample-frequent", "0", "--sample-distribution", "uniform")
"""random words have no frequencies"""
SYSTEMS = {
    "single": (1, ()),
    "legacy_ddp": (2, ("--ddp-backend", "legacy_ddp")),
    "hybrid": (2, ("--ddp-backend", "hybrid")),
    "sampled": (2, ("--ddp-backend", "sampled", "--criterion", "sampled_softmax", *UNIFORM)),
}
SMOOTHED = ("--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1")
T_95 = {10: 2.23, 20: 2.09, 24: 2.06, 30: 2.04, 40: 2.02}
"""Student's t for so many degrees of freedom, or fewer"""


# A worker's process


def trainer_class():
    import fairseq_hybrid  # noqa: F401

    try:
        from fairseq_hybrid.trainer import HybridTrainer
    except ImportError:  # of a checkout before it moved
        from fairseq_hybrid.distributed.trainer import HybridTrainer
    return HybridTrainer


def serve(words: list[str], rank: int) -> None:
    """Train as many updates as a line of standard input says; answer seconds, words and bytes."""
    kind = trainer_class()
    from fairseq import options, tasks, utils
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq.distributed import utils as distributed_utils

    parser = options.get_training_parser()
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, words))
    dt = cfg.distributed_training
    if dt.distributed_world_size > 1:
        dt.distributed_backend, dt.distributed_init_method = "gloo", "env://"
        dt.distributed_rank = rank
        distributed_utils.distributed_init(cfg)
    utils.set_torch_seed(cfg.common.seed)
    task = tasks.setup_task(cfg.task)
    trainer = kind(cfg, task, task.build_model(cfg.model), task.build_criterion(cfg.criterion))
    epoch = trainer.get_train_iterator(epoch=1)
    trainer.begin_epoch(1)
    batches = list(epoch.next_epoch_itr(shuffle=True))
    done = 0
    for line in sys.stdin:
        sent, began, tokens = loopback_bytes(), time.perf_counter(), 0
        for _ in range(int(line)):
            batch = batches[done % len(batches)]
            trainer.train_step([batch])
            tokens += batch["ntokens"]
            done += 1
        seconds = time.perf_counter() - began
        print("turn", json.dumps([seconds, tokens, loopback_bytes() - sent]), flush=True)


def loopback_bytes() -> int:
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    return next(int(line.split()[9]) for line in lines if line.strip().startswith("lo:"))


# The parent


class Side:
    """The workers of a system in one checkout."""

    def __init__(self, tree: Path, words: list[str], workers: int):
        env = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        env |= {"WORLD_SIZE": str(workers), "GLOO_SOCKET_IFNAME": "lo"}
        self.workers = [
            subprocess.Popen(
                [sys.executable, str(HERE / "before_after.py"), "--serve", *words],
                env={**env, "RANK": str(rank)},
                cwd=tree,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            for rank in range(workers)
        ]

    def turn(self, updates: int) -> tuple[float, int]:
        """Words per second of all workers, and bytes."""
        for worker in self.workers:
            worker.stdin.write(f"{updates}\n")
            worker.stdin.flush()
        answers = [answer(worker) for worker in self.workers]
        tokens = sum(tokens for _, tokens, _ in answers)
        return tokens / max(seconds for seconds, _, _ in answers), answers[0][2]

    def end(self) -> None:
        for worker in self.workers:
            worker.kill()
            worker.wait()


def answer(worker: subprocess.Popen) -> list:
    for line in worker.stdout:
        if line.startswith("turn "):
            return json.loads(line[5:])
    raise SystemExit(f"error: a worker has ended with code {worker.wait()}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def arguments(data: Path, flags: tuple[str, ...], workers: int, options) -> list[str]:
    return [
        *(str(data), "--task", "translation", "-s", "de", "-t", "en", "--cpu", "--seed", "1"),
        *("--arch", "hybrid_lstm", "--encoder-layers", str(options.layers), "--dropout", "0.2"),
        *("--encoder-embed-dim", str(options.hidden), "--encoder-hidden-size", str(options.hidden)),
        *("--batch-size", str(options.sentences), "--distributed-world-size", str(workers)),
        *("--optimizer", "adam", "--lr", "1e-3", "--clip-norm", "1.0", "--num-workers", "0"),
        *("--save-dir", str(data / "checkpoints"), *SMOOTHED[: 0 if "--criterion" in flags else 4]),
        *flags,
    ]


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """Geometric mean and its 95 % interval."""
    logs = [math.log(ratio) for ratio in ratios]
    degrees = max((n for n in T_95 if n <= len(logs) - 1), default=10)
    wide = T_95[degrees] * statistics.stdev(logs) / math.sqrt(len(logs))
    middle = statistics.mean(logs)
    return tuple(math.exp(x) for x in (middle, middle - wide, middle + wide))


def compare(name: str, old: Path, new: Path, data: Path, options) -> dict:
    workers, flags = SYSTEMS[name]
    words = arguments(data, flags, workers, options)
    sides = {"old": Side(old, words, workers), "new": Side(new, words, workers)}
    try:
        for side in sides.values():
            side.turn(6)  # memory grows
        turns = []
        for number in range(options.turns):
            order = ("old", "new") if number % 2 == 0 else ("new", "old")
            turns.append({key: sides[key].turn(options.updates) for key in order})
    finally:
        for side in sides.values():
            side.end()
    ratio, low, high = interval([turn["new"][0] / turn["old"][0] for turn in turns])
    medians = {key: statistics.median(turn[key][0] for turn in turns) for key in ("old", "new")}
    sent = {key: turns[-1][key][1] // options.updates for key in ("old", "new")}
    print(
        f"{name}: {medians['old']:,.0f} and {medians['new']:,.0f} tok/s, ratio {ratio:.3f} "
        f"({low:.3f} to {high:.3f}), {sent['old']:,} and {sent['new']:,} bytes an update",
        flush=True,
    )
    return {"ratio": ratio, "interval": [low, high], "bytes_per_update": sent, "turns": turns}


def main() -> None:
    from common import environment
    from translation_parallel import random_words

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("old", type=Path, help="the other checkout")
    add("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    add("--turns", type=int, default=24)
    add("--updates", type=int, default=4, help="of a turn")
    add("--layers", type=int, default=2)
    add("--hidden", type=int, default=256)
    add("--vocab", type=int, default=8000)
    add("--sentences", type=int, default=32, help="of a batch")
    add("--json", type=Path)
    options = parser.parse_args()
    options.length, options.workers, options.rounds = 24, 2, 20
    result = {"environment": environment(), "systems": {}}
    with tempfile.TemporaryDirectory() as folder:
        data = random_words(options, Path(folder))
        for name in options.systems:
            both = (options.old.resolve(), HERE.parent)
            result["systems"][name] = compare(name, *both, data, options)
            if options.json:  # what is measured is kept
                options.json.parent.mkdir(parents=True, exist_ok=True)
                options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2:], int(os.environ["RANK"]))
    else:
        main()
