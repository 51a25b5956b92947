"""``--ddp-backend hybrid`` and ``model_parallel`` as a user runs them: real command lines, real
workers over gloo.

**Same batches.** fairseq deals the batches of an epoch out to the workers one by one, so 1 worker
with ``--update-freq 4``, 2 with 2 and 4 with 1 see the same sentences in each update. 480 sentences
by 13 are 37 batches: 10 updates an epoch, the last of them with a single batch for all workers
together, so that one of 2 workers, or three of 4, get an empty one there.

An epoch ends with updates 10, 20 and 30, which is where fairseq can go on with another number of
workers (within an epoch it counts a worker's own batches). For that its batches have to be those
of the epoch, not those of the epoch in which it was started: ``--update-epoch-batch-itr``.

**What is compared.** Losses and gradient norms of every update, in full precision: fairseq's log
rounds to 3 decimals, and the plugin below takes that away. Weights, optimizer state and averages
from checkpoints, tensor by tensor: the norm of the difference against the norm of the tensor.

**Starting.** Importing fairseq takes some 5 s in every process, which would be most of the time
here. So by default the commands start *warm*: forked, and their workers forked off them, from a
process that has fairseq and this package imported. `test_a_cold_start_...` shows on one run that
nothing else is different, and ``make test-long`` does everything with plain ``fairseq-train``.
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from jobs import (
    TINY_LSTM,
    USER_DIR,
    Result,
    alive,
    children,
    curve,
    run,
    train_command,
    wait_for,
    workers,
)
from warm import Cold, Warm

import fairseq_hybrid  # noqa: F401
from fairseq_hybrid import checkpoints

CLOSE = 1e-4

PLUGIN = '''
"""All digits in the log; a criterion that goes wrong on worker 1 (SPOIL) in its third batch, or in
those of SPOIL_AT; ``--amp`` as on a GPU: with a scaler, and with AUTOCAST in lower precision."""
import functools
import os
import pathlib

import fairseq.logging.meters
import torch
import torch.distributed as dist
from fairseq.criterions import register_criterion
from fairseq.criterions.cross_entropy import CrossEntropyCriterion

import fairseq_hybrid

fairseq.logging.meters.safe_round = lambda number, digits: number
torch.cuda.amp.GradScaler = functools.partial(torch.amp.GradScaler, "cpu")
if os.environ.get("AUTOCAST"):
    torch.cuda.amp.autocast = functools.partial(torch.autocast, "cpu", torch.bfloat16)
    torch.backends.mkldnn.enabled = False  # its LSTM takes no bfloat16 on some machines


@register_criterion("spoiled")
class Spoiled(CrossEntropyCriterion):
    batches = 0

    def forward(self, model, sample, reduce=True):
        loss, size, log = super().forward(model, sample, reduce)
        self.batches += model.training
        turns = map(int, os.environ.get("SPOIL_AT", "3").split())
        if model.training and self.batches in turns and dist.get_rank() == 1:
            pathlib.Path(os.environ["SPOILED"]).touch()
            if os.environ["SPOIL"] == "error":
                raise ValueError("no such word")
            if os.environ["SPOIL"] == "nan":
                loss = loss * float("nan")
            else:  # an overflow that worker 0 does not get to see: in a layer of worker 1
                name = "decoder.layers.3.lstm.bias_hh_l0"
                (weight,) = [p for n, p in model.named_parameters() if n.endswith(name)]
                hook = weight.register_hook(lambda grad: (hook.remove(), grad * float("inf"))[1])
        return loss, size, log
'''


@pytest.fixture(scope="module", params=["warm", pytest.param("cold", marks=pytest.mark.long)])
def begin(request, server):
    """A function that starts a command; see "Starting" above."""
    return Cold if request.param == "cold" else functools.partial(Warm, server)


@pytest.fixture(scope="module")
def plugin(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("plugins") / "exact_plugin"
    folder.mkdir()
    (folder / "__init__.py").write_text(PLUGIN)
    return folder


# Training runs


def small(width: int = 16) -> tuple[str, ...]:
    """4 + 4 layers."""
    sizes = ("--encoder-embed-dim", f"{width}", "--encoder-hidden-size", f"{width}")
    return ("--arch", "hybrid_lstm", "--encoder-layers", "4", *sizes, "--dropout", "0")


def on(backend: str, workers: int, update_freq: int, *more: str) -> tuple[str, ...]:
    spread = ("--distributed-world-size", f"{workers}", "--ddp-backend", backend)
    return (*spread, "--update-freq", f"{update_freq}", *more)


SAME = (
    *("--batch-size", "13", "--required-batch-size-multiple", "1", "--max-update", "30"),
    *("--clip-norm", "0.5", "--num-workers", "0"),  # from about update 8 on the norm is larger
    *("--save-interval", "100", "--validate-interval", "100", "--update-epoch-batch-itr", "True"),
)
EMA = ("--store-ema", "--ema-decay", "0.9")
SAVING = ("--save-interval", "1", "--validate-interval", "1", *EMA)
SHORT = ("--batch-size", "45", "--max-update", "8")  # 11 batches, an empty one for worker 1 of 2
FEEDING = ("--input-feeding", *SHORT)
BOTH_WAYS = ("--encoder-bidirectional-first", *SHORT)
AMP = ("--amp", "--max-update", "10")
HALF = ("--fp16", "--fp16-init-scale", "4", "--max-update", "10")

RUNS = {
    "one worker": ("--update-freq", "4"),
    "legacy_ddp 2": on("legacy_ddp", 2, 2, *SAVING),
    "hybrid 2": on("hybrid", 2, 2, *SAVING),
    "hybrid 4": on("hybrid", 4, 1),
    "hybrid 2 x 2": on("hybrid", 4, 1, "--hybrid-stages", "2"),
    "model_parallel 2": on("model_parallel", 2, 2),
    "by 3 legacy_ddp 2": on("legacy_ddp", 2, 3, *SHORT, "--max-update", "4"),
    "by 3 hybrid 2": on("hybrid", 2, 3, *SHORT, "--max-update", "4"),
    "feeding legacy_ddp 2": on("legacy_ddp", 2, 1, *FEEDING),
    "feeding hybrid 2": on("hybrid", 2, 1, *FEEDING),
    "both ways legacy_ddp 2": on("legacy_ddp", 2, 1, *BOTH_WAYS),
    "both ways hybrid 2": on("hybrid", 2, 1, *BOTH_WAYS),
    "amp hybrid 2": on("hybrid", 2, 2, *AMP),
    # make test-long
    "legacy_ddp 4": on("legacy_ddp", 4, 1),
    "fp16 legacy_ddp 2": on("legacy_ddp", 2, 1, *HALF, "--fp16-no-flatten-grads"),
    "fp16 hybrid 2": on("hybrid", 2, 1, *HALF, "--fp16-no-flatten-grads"),
    "by 3, 30 legacy_ddp 2": on("legacy_ddp", 2, 3),
    "by 3, 30 hybrid 2": on("hybrid", 2, 3),
    "feeding, 30 legacy_ddp 2": on("legacy_ddp", 2, 2, "--input-feeding"),
    "feeding, 30 hybrid 2": on("hybrid", 2, 2, "--input-feeding"),
    "both ways, 30 legacy_ddp 2": on("legacy_ddp", 2, 2, "--encoder-bidirectional-first"),
    "both ways, 30 hybrid 2": on("hybrid", 2, 2, "--encoder-bidirectional-first"),
    "amp model_parallel 2": on("model_parallel", 2, 2, *AMP),
    "amp hybrid 2 x 2": on("hybrid", 4, 1, "--hybrid-stages", "2", *AMP),
    "hybrid 4 x 1": on("hybrid", 4, 1, "--hybrid-stages", "1"),
    "model_parallel 4": on("model_parallel", 4, 1),
    "model_parallel 2 x 2": on("model_parallel", 4, 1, "--hybrid-stages", "2"),
    "feeding model_parallel 2": on("model_parallel", 2, 1, *FEEDING),
    "feeding legacy_ddp 4": on("legacy_ddp", 4, 1, *FEEDING, *BOTH_WAYS),
    "feeding hybrid 4": on("hybrid", 4, 1, *FEEDING, *BOTH_WAYS),
    "both ways model_parallel 2": on("model_parallel", 2, 1, *BOTH_WAYS),
    "lean fp16 legacy_ddp 2": on("legacy_ddp", 2, 1, *HALF, "--memory-efficient-fp16"),
    "lean fp16 hybrid 2": on("hybrid", 2, 1, *HALF, "--memory-efficient-fp16"),
}


@dataclass(eq=False)
class Run:
    result: Result
    folder: Path

    def curve(self, key: str = "loss", updates=range(10**6)) -> dict[int, float]:
        return {u: value for u, value in curve(self.result, key).items() if u in updates}

    def checkpoint(self, name: str = "checkpoint_last.pt") -> dict:
        return checkpoints.load(str(self.folder / name))


class Lab:
    """Makes each run once."""

    def __init__(self, begin, data: Path, plugin: Path, folder: Path):
        self.begin, self.data, self.plugin, self.folder = begin, data, plugin, folder
        self.made: dict[str, Run] = {}

    def command(self, folder: Path, *more: str, arch=None) -> list[str]:
        plugin = ("--user-dir", str(self.plugin))
        return train_command(self.data, folder, *SAME, *plugin, *more, arch=arch or small())

    def start(self, folder: Path, *more: str, arch=None, **env: str):
        return self.begin(self.command(folder, *more, arch=arch), folder, **env)

    def train(self, folder: Path, *more: str, arch=None, **env: str) -> Run:
        return Run(self.start(folder, *more, arch=arch, **env).finish().ok(), folder)

    def __getitem__(self, name: str) -> Run:
        if name not in self.made:
            folder = self.folder / name.replace(" ", "_")
            folder.mkdir()
            self.made[name] = self.train(folder, *RUNS[name])
        return self.made[name]


@pytest.fixture(scope="module")
def lab(begin, data, plugin, tmp_path_factory) -> Lab:
    return Lab(begin, data, plugin, tmp_path_factory.mktemp("runs"))


def assert_same_tensors(got: dict, expected: dict, close: float = CLOSE) -> None:
    assert got.keys() == expected.keys()
    for name, want in expected.items():
        assert got[name].shape == want.shape, name
        assert got[name].dtype == want.dtype, name
        difference = (got[name] - want).double().norm() / want.double().norm()
        assert difference < close, f"{name}: {difference:.1e}"


def assert_same_curves(got: Run, expected: Run, updates: range, close: float = CLOSE) -> None:
    for key in ("wpb", "bsz"):
        assert got.curve(key) == expected.curve(key, updates), "these are not the same batches"
    for key in ("loss", "gnorm"):
        want = expected.curve(key, updates)
        assert list(want) == list(updates)
        assert got.curve(key) == pytest.approx(want, rel=close), key


def averages(checkpoint: dict) -> dict:
    return checkpoint["extra_state"]["ema"]


# The same training


PAIRS = [
    ("legacy_ddp 2", "one worker"),
    ("hybrid 2", "one worker"),
    ("hybrid 4", "one worker"),
    ("hybrid 2 x 2", "one worker"),
    ("model_parallel 2", "one worker"),
    ("by 3 hybrid 2", "by 3 legacy_ddp 2"),
    ("feeding hybrid 2", "feeding legacy_ddp 2"),
    ("both ways hybrid 2", "both ways legacy_ddp 2"),
]
LONG_PAIRS = [
    ("by 3, 30 hybrid 2", "by 3, 30 legacy_ddp 2"),
    ("feeding, 30 hybrid 2", "feeding, 30 legacy_ddp 2"),
    ("both ways, 30 hybrid 2", "both ways, 30 legacy_ddp 2"),
    ("legacy_ddp 4", "one worker"),
    ("hybrid 4 x 1", "one worker"),
    ("model_parallel 4", "one worker"),
    ("model_parallel 2 x 2", "one worker"),
    ("feeding model_parallel 2", "feeding legacy_ddp 2"),
    ("feeding hybrid 4", "feeding legacy_ddp 4"),
    ("both ways model_parallel 2", "both ways legacy_ddp 2"),
]


@pytest.mark.parametrize(
    ("name", "reference"),
    [pytest.param(*pair, id=pair[0]) for pair in PAIRS]
    + [pytest.param(*pair, id=pair[0], marks=pytest.mark.long) for pair in LONG_PAIRS],
)
def test_losses_norms_and_weights_are_the_same(lab, name, reference):
    run, expected = lab[name], lab[reference]
    assert_same_curves(run, expected, range(1, max(expected.curve()) + 1))
    assert_same_tensors(run.checkpoint()["model"], expected.checkpoint()["model"])


def test_the_runs_are_what_they_are_meant_to_be(lab):
    """30 updates that learn something, with and without clipping, and empty batches in them."""
    loss, norm, sentences = (lab["hybrid 2"].curve(key) for key in ("loss", "gnorm", "bsz"))
    assert list(loss) == list(range(1, 31))
    assert loss[30] < 0.8 * loss[1]
    assert min(norm.values()) < 0.5 < max(norm.values())
    for update, count in sentences.items():  # 36 batches of 13 and one of 12
        assert count in ((12, 13) if update % 10 == 0 else (51, 52)), update
    assert sum(sentences.values()) == 3 * 480
    # 11 batches: 6 for worker 0, and 5 for worker 1
    assert lab["feeding hybrid 2"].curve("bsz")[6] in (30, 45)
    # If a worker's last batch of an update is empty, fairseq forgets to count the 2 before it.
    assert lab["by 3 hybrid 2"].curve("bsz")[2] in (120, 135)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["fp16", "lean fp16"])
def test_half_precision_is_the_same_too(lab, kind):
    """Unlike ``--bf16``, which fairseq-train takes for a TPU (torch_xla) under any backend."""
    run, expected = lab[f"{kind} hybrid 2"], lab[f"{kind} legacy_ddp 2"]
    assert_same_curves(run, expected, range(1, 11), close=1e-3)
    weights = run.checkpoint()["model"]
    assert all(torch.equal(w, w.half().float()) for w in weights.values())
    assert_same_tensors(weights, expected.checkpoint()["model"], close=1e-2)


# --amp


def long(*names: str) -> list:
    return [pytest.param(name, marks=pytest.mark.long) for name in names]


@pytest.mark.parametrize(
    "name", ["amp hybrid 2", *long("amp model_parallel 2", "amp hybrid 2 x 2")]
)
def test_a_loss_scale_changes_nothing(lab, name):
    run, expected = lab[name], lab["hybrid 2"]
    assert set(run.curve("loss_scale").values()) == {128}
    assert_same_curves(run, expected, range(1, 11), close=1e-5)
    weights = expected.checkpoint("checkpoint1.pt")["model"]
    assert_same_tensors(run.checkpoint()["model"], weights, close=1e-5)


def test_an_overflow_on_one_worker_is_one_on_all(lab, tmp_path):
    """In update 3, which is repeated, and in update 7, which is then skipped."""
    flags = ("--criterion", "spoiled", "--amp-batch-retries", "1", "--max-update", "9")
    overflow = {"SPOIL": "overflow", "SPOIL_AT": "5 15", "SPOILED": str(tmp_path / "spoiled")}
    run = lab.train(tmp_path, *on("hybrid", 2, 2, "--amp", *flags), **overflow)
    scales = run.curve("loss_scale")
    assert scales == {u: 128 if u < 3 else 64 if u < 7 else 32 for u in range(1, 10)}
    # The same curve as without: so the second try was whole, and the workers' scales are equal.
    plain = lab["hybrid 2"]
    for key in ("loss", "gnorm"):
        same = run.curve(key, range(1, 7))
        assert same == pytest.approx(plain.curve(key, range(1, 7)), rel=1e-5), key
    left = [plain.curve("wpb")[u] for u in (8, 9, 10)]
    assert [run.curve("wpb")[u] for u in (7, 8, 9)] == left
    state = run.checkpoint()["last_optimizer_state"]["state"]
    owners = plain.checkpoint()["last_optimizer_state"]["state"]
    assert {n: values["step"] for n, values in state.items()} == dict.fromkeys(owners, 9)
    assert all(w.isfinite().all() for w in run.checkpoint()["model"].values())


@pytest.mark.long
def test_autocast_is_the_same_up_to_its_precision(lab, tmp_path):
    run = lab.train(tmp_path, *on("hybrid", 2, 2, *AMP), AUTOCAST="1")
    assert_same_curves(run, lab["hybrid 2"], range(1, 11), close=0.02)
    assert run.curve("loss") != lab["hybrid 2"].curve("loss", range(1, 11))
    sent = [sum(r.curve("sent_mb", range(1, 11)).values()) for r in (run, lab["hybrid 2"])]
    assert sent[0] < sent[1]


def test_validation_sees_all_weights(lab):
    def losses(run):
        found = re.findall(r"\| valid \| (\{.*\})", run.result.out)
        return [json.loads(line)["valid_loss"] for line in found]

    assert len(losses(lab["hybrid 2"])) == 3
    assert losses(lab["hybrid 2"]) == pytest.approx(losses(lab["legacy_ddp 2"]), rel=CLOSE)


# Checkpoints


@pytest.fixture(scope="module")
def saved(lab, tmp_path_factory) -> Run:
    """Update 10, saved by 2 hybrid workers, started cold in any case."""
    folder = tmp_path_factory.mktemp("saved")
    command = lab.command(folder, *on("hybrid", 2, 2, *EMA, "--max-update", "10"))
    return Run(run(*command).ok(), folder)


def test_a_cold_start_gives_the_same_curve_and_weights(lab, saved):
    assert_same_curves(saved, lab["hybrid 2"], range(1, 11))
    uninterrupted = lab["hybrid 2"].checkpoint("checkpoint1.pt")
    assert_same_tensors(saved.checkpoint()["model"], uninterrupted["model"])


GO_ON = {
    "hybrid 4": on("hybrid", 4, 1),
    "legacy_ddp 2": on("legacy_ddp", 2, 2),
    "one worker": ("--update-freq", "4"),
    "model_parallel 2": on("model_parallel", 2, 2),
}


def assert_goes_on(lab: Lab, path: Path, folder: Path, *how: str) -> None:
    resumed = lab.train(folder, *how, *EMA, "--restore-file", str(path), "--max-update", "20")
    assert re.search(r"Loaded checkpoint .* @ 10 updates", resumed.result.out)
    uninterrupted = lab["hybrid 2"]
    assert_same_curves(resumed, uninterrupted, range(11, 21))
    got, expected = resumed.checkpoint(), uninterrupted.checkpoint("checkpoint2.pt")
    assert_same_tensors(got["model"], expected["model"])
    assert_same_tensors(averages(got), averages(expected))


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.long if "model" in n else ()) for n in GO_ON]
)
def test_a_checkpoint_of_hybrid_2_goes_on_under(lab, saved, tmp_path, name):
    assert_goes_on(lab, saved.folder / "checkpoint_last.pt", tmp_path, *GO_ON[name])


def test_a_checkpoint_of_legacy_ddp_goes_on_under_hybrid(lab, tmp_path):
    path = lab["legacy_ddp 2"].folder / "checkpoint1.pt"
    assert_goes_on(lab, path, tmp_path, *on("hybrid", 2, 2))


def test_a_checkpoint_has_what_one_of_legacy_ddp_has(lab):
    ours, theirs = lab["hybrid 2"].checkpoint(), lab["legacy_ddp 2"].checkpoint()
    assert ours.keys() == theirs.keys()
    assert ours["extra_state"].keys() == theirs["extra_state"].keys()
    ours, theirs = ours["last_optimizer_state"], theirs["last_optimizer_state"]
    assert ours["param_groups"] == theirs["param_groups"]
    assert list(ours["state"]) == list(theirs["state"])
    for number, expected in theirs["state"].items():
        got = ours["state"][number]
        assert got.keys() == expected.keys() == {"step", "exp_avg", "exp_avg_sq"}
        assert got.pop("step") == expected.pop("step") == 30
        assert_same_tensors(got, expected)


def test_averages_are_those_of_legacy_ddp(lab):
    ours, theirs = lab["hybrid 2"].checkpoint(), lab["legacy_ddp 2"].checkpoint()
    for name, weight in theirs["model"].items():
        assert (averages(theirs)[name] - weight).norm() > 0.01 * weight.norm(), name
    assert_same_tensors(averages(ours), averages(theirs))


def test_generate_reads_a_checkpoint(lab, tmp_path):
    path = lab["hybrid 2"].folder / "checkpoint_last.pt"
    command = ("fairseq-generate", lab.data, "--user-dir", USER_DIR, "--path", path, "--cpu")
    short = ("--beam", "1", "--max-len-b", "10", "--max-len-a", "0")
    result = lab.begin([*command, *short], tmp_path).finish().ok()
    scores = [float(score) for score in re.findall(r"^H-\d+\t(\S+)\t", result.out, re.M)]
    assert len(scores) == 40
    assert all(map(math.isfinite, scores))


# What the log and the timeline tell


@pytest.fixture(scope="module")
def traced(lab, tmp_path_factory) -> Run:
    """Wider, as rows of 16 numbers are small beside nothing, and on single batches."""
    folder = tmp_path_factory.mktemp("traced")
    trace = ("--hybrid-trace", str(folder / "trace.json"), "--max-update", "8")
    return lab.train(folder, *on("hybrid", 2, 1, *trace), arch=small(64))


def test_the_log_tells_where_the_time_goes(traced):
    keys = ("wait0", "wait1", "send0", "send1", "sent_mb", "ideal")
    log = {key: traced.curve(key) for key in keys}
    for key in keys:
        assert list(log[key]) == list(range(1, 9)), key
        assert all(value > 0 for value in log[key].values()), key
    for update in range(1, 9):
        for stage in "01":
            assert log["wait" + stage][update] + log["send" + stage][update] < 100
        assert 50 < log["ideal"][update] < 100
    weights = traced.checkpoint()["model"].values()
    summed_alike = 2 * sum(w.numel() * w.element_size() for w in weights) / 1e6
    assert max(log["sent_mb"].values()) < summed_alike, "legacy_ddp sends so much"


def test_the_timeline_has_every_worker(traced):
    events = json.loads((traced.folder / "trace.json").read_text())["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    assert names == {0: "worker 0, stage 0", 1: "worker 1, stage 1"}
    for worker in names:
        spans = [e for e in events if e["ph"] == "X" and e["pid"] == worker]
        updates = [e for e in spans if e["cat"] == "update"]
        assert [e["name"] for e in updates] == ["update 6", "update 7", "update 8"]
        for update in updates:
            begin, end = update["ts"], update["ts"] + update["dur"]
            inside = [e for e in spans if begin <= e["ts"] and e["ts"] + e["dur"] <= end]
            assert {e["cat"] for e in inside} == {"update", "compute", "wait", "communication"}
            # all 4 + 4 layers of both batches forward and back, in one chunk or more
            for kind in ("encoder", "decoder"):
                for batch in "01":
                    assert any(e["name"] == f"forward {kind} {batch}.0" for e in inside)
                    assert any(e["name"] == f"backward {kind} {batch}.0" for e in inside)


# What goes wrong


def left(job) -> list[int]:
    """Processes of the job's session that still run."""
    members = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(entry.read_text().rsplit(")", 1)[1].split()[3]) == job.pid:
                members.append(int(entry.parent.name))
        except OSError:
            continue
    return alive(members)


def test_a_killed_worker_ends_the_job_and_the_command_goes_on(lab, tmp_path):
    # (validation would bring the weights together before they are saved)
    saving = ("--save-interval-updates", "4", "--disable-validation")
    flags = on("hybrid", 2, 2, "--max-update", "20", *saving)
    job = lab.start(tmp_path, *flags)
    wait_for(lambda: list(tmp_path.glob("checkpoint_1_4.pt")))
    victim = (workers(job.pid) or children(job.pid))[1]
    os.kill(victim, signal.SIGSTOP)  # so that the other one is in the middle of an update
    time.sleep(1)
    assert len(left(job)) >= 3
    os.kill(victim, signal.SIGKILL)
    began = time.monotonic()
    killed = job.finish(60)
    assert time.monotonic() - began < 15
    assert f"worker 1 (pid {victim}) died: killed by signal 9 (SIGKILL)" in killed.error()
    wait_for(lambda: not left(job), timeout=5)
    resumed = Run(lab.start(tmp_path, *flags).finish().ok(), tmp_path)
    first = int(re.search(r"Loaded checkpoint .* @ (\d+) updates", resumed.result.out)[1])
    assert 4 <= first < 20
    assert max(curve(killed)) >= first
    assert_same_curves(resumed, lab["hybrid 2"], range(first + 1, 21))
    expected = lab["hybrid 2"].checkpoint("checkpoint2.pt")["model"]
    assert_same_tensors(resumed.checkpoint()["model"], expected)


@pytest.mark.parametrize(
    ("spoil", "said", "more"),
    [
        ("nan", "FloatingPointError", ()),
        ("error", "ValueError: no such word", ()),
        pytest.param(
            *("overflow", "--amp: the loss scale would fall to 64"),
            ("--amp", "--min-loss-scale", "100"),
            marks=pytest.mark.long,
        ),
    ],
)
def test_what_goes_wrong_on_one_worker_ends_all(lab, tmp_path, spoil, said, more):
    stamp = tmp_path / "spoiled"
    flags = on("hybrid", 2, 1, "--criterion", "spoiled", *more)
    job = lab.start(tmp_path, *flags, SPOIL=spoil, SPOILED=str(stamp))
    result = job.finish(120)
    assert time.time() - stamp.stat().st_mtime < 15
    assert result.code != 0
    assert list(curve(result)) == [1, 2]
    wait_for(lambda: not left(job), timeout=5)
    (line,) = [line for line in result.err.splitlines() if line.startswith("fairseq-train: error:")]
    assert said in line


# What cannot work


def hybrid(workers: int, *more: str) -> tuple[str, ...]:
    return ("--ddp-backend", "hybrid", "--distributed-world-size", f"{workers}", *more)


REFUSED = [
    (hybrid(4, "--encoder-layers", "3"), "--encoder-layers 3 cannot be spread over 4 stages"),
    (hybrid(4, "--hybrid-stages", "3"), "world-size 4 is not a multiple of --hybrid-stages 3"),
    (hybrid(2, *TINY_LSTM), "--ddp-backend hybrid cannot split --arch lstm"),
    (hybrid(2, "--hybrid-chunk", "0"), "--hybrid-chunk 0 is not a number of time steps"),
    (hybrid(2, "--hybrid-chunk", "x"), "--hybrid-chunk x is not a number of time steps"),
    (hybrid(2, "--hybrid-layers", "2,3"), "--hybrid-layers 2,3 does not spread 4 encoder layers"),
    (hybrid(2, "--fp16"), "add --fp16-no-flatten-grads or --memory-efficient-fp16"),
    (hybrid(2, "--amp", "--input-feeding"), "--amp does not go with --input-feeding"),
    (hybrid(2, "--sums-through", "x"), "--sums-through x is not known: use auto, messages"),
    (hybrid(2, "--use-bmuf"), "--use-bmuf does not go with --ddp-backend hybrid"),
]
PREFIX = ("--criterion", "label_smoothed_cross_entropy", "--ignore-prefix-size", "1")
ALSO_REFUSED = [
    (
        hybrid(4, "--encoder-layers", "1", "--hybrid-stages", "2"),
        "--encoder-layers 1 cannot be spread over 2 stages",
    ),
    (hybrid(2, "--hybrid-stages", "4"), "world-size 2 is not a multiple of --hybrid-stages 4"),
    (hybrid(2, "--hybrid-stages", "-1"), "--hybrid-stages -1 is not a number of workers"),
    (hybrid(2, "--hybrid-stages", "x"), "--hybrid-stages: invalid int value: 'x'"),
    (hybrid(2, "--hybrid-layers", "4"), "give 2 numbers above 0 that add up to 4, as 2,2"),
    (hybrid(2, "--hybrid-layers", "4,0"), "--hybrid-layers 4,0 does not spread"),
    (hybrid(2, "--hybrid-layers", "1,x"), "--hybrid-layers 1,x does not spread"),
    (hybrid(2, "--zero-sharding", "os"), "--zero-sharding os does not go with --ddp-backend"),
    (
        hybrid(2, "--ddp-backend", "model_parallel", *PREFIX),
        "--ignore-prefix-size 1 does not go with --ddp-backend model_parallel",
    ),
]


@pytest.mark.parametrize(
    ("flags", "said"),
    [pytest.param(*case, id=case[1]) for case in REFUSED]
    + [pytest.param(*case, id=case[1], marks=pytest.mark.long) for case in ALSO_REFUSED],
)
def test_bad_input_is_one_line_before_any_worker_starts(lab, tmp_path, flags, said):
    command = train_command(lab.data, tmp_path, *flags, arch=small())
    result = lab.begin(command, tmp_path).finish(60)
    assert said in result.error()
    assert "distributed init" not in result.all
    assert not list(tmp_path.glob("*.pt"))
