"""`--ddp-backend model_averaging` on real workers."""

from __future__ import annotations

import shutil
from argparse import Namespace

import pytest
import torch
import torch.distributed as dist
from fairseq.optim import FairseqOptimizer
from fairseq.optim.adam import Adam
from jobs import curve, train_command
from warm import Warm
from workers import run_workers

from fairseq_hybrid.backends.averaging import AveragingParallel, Nesterov

LM = (
    *("--task", "streamed_language_modeling", "--arch", "hybrid_lstm_lm", "--dropout", "0"),
    *("--decoder-embed-dim", "16", "--decoder-hidden-size", "16", "--tokens-per-sample", "10"),
)
SEQUENCES = 8


LONG = pytest.mark.long


class Optimizer(FairseqOptimizer):
    def __init__(self, params):
        super().__init__(Namespace())
        self._optimizer = Adam(params, lr=0.1)


def snapshot(model, optimizer) -> dict:
    states = optimizer.optimizer.state.values()
    return {
        "weights": [p.detach().clone() for p in model.parameters()],
        "averages": [state["exp_avg"].clone() for state in states],
        "steps": [state["step"] for state in states],
    }


def drift(state: str) -> dict:
    """A worker: a model that drifts away from the other one and meets it."""
    torch.manual_seed(0)
    module = torch.nn.Linear(3, 2)
    model = AveragingParallel(module, dist.group.WORLD, interval=3, warmup=2, state=state)
    optimizer = Optimizer(list(module.parameters()))
    torch.manual_seed(1 + dist.get_rank())
    notes = {}
    for update in range(1, 9):
        model.begin_update(update)
        optimizer.zero_grad()
        model(torch.randn(4, 3)).square().sum().backward()
        model.all_reduce_grads()
        optimizer.step()
        notes[update, "before"] = snapshot(module, optimizer)
        model.after_step(optimizer.optimizer)
        notes[update, "after"] = snapshot(module, optimizer)
    return notes


@pytest.mark.parametrize(
    "state", ["average", pytest.param("keep", marks=LONG), pytest.param("reset", marks=LONG)]
)
def test_models_drift_apart_and_meet(state):
    """2 updates of averaged gradients, then a meeting every 3: after updates 5 and 8."""
    workers = run_workers(drift, 2, state)
    for update in range(1, 9):
        before, after = ([w[update, when] for w in workers] for when in ("before", "after"))
        same = all(map(torch.equal, after[0]["weights"], after[1]["weights"]))
        assert same == (update in (1, 2, 5, 8)), update
        if update not in (5, 8):
            continue
        for mine, theirs, mean in zip(*(b["weights"] for b in before), after[0]["weights"]):
            assert not torch.equal(mine, theirs)
            torch.testing.assert_close(mean, (mine + theirs) / 2)
        averages = [pair for pair in zip(*(b["averages"] for b in before))]
        for rank in range(2):
            for pair, now in zip(averages, after[rank]["averages"]):
                expected = {
                    "keep": pair[rank],
                    "average": (pair[0] + pair[1]) / 2,
                    "reset": torch.zeros_like(now),
                }
                torch.testing.assert_close(now, expected[state])
            assert set(after[rank]["steps"]) == {0 if state == "reset" else update}


# The outer optimizer, and averaging while training goes on


def plan_of(rank: int) -> list[list[float]]:
    """What a worker adds to its parameter in each of nine updates."""
    return [[0.5 * (rank + 1), -0.25 * update] for update in range(1, 10)]


def outer(interval: int, rate: float | None, momentum: float, overlap: bool) -> list:
    """A worker's parameter before each update and at the end, after all has arrived."""
    module = torch.nn.Linear(2, 1, bias=False).double()
    torch.nn.init.zeros_(module.weight)
    made = Nesterov(rate, momentum) if rate is not None else None
    model = AveragingParallel(
        module, dist.group.WORLD, interval=interval, warmup=0, state="keep", outer=made,
        overlap=overlap,
    )  # fmt: skip
    optimizer = Optimizer(list(module.parameters()))
    seen = []
    for update, change in enumerate(plan_of(dist.get_rank()), start=1):
        model.begin_update(update)
        module.weight.data += torch.tensor([change], dtype=torch.float64)
        model.after_step(optimizer.optimizer)
        seen.append(module.weight.detach().clone())
    model.full_parameters(optimizer)
    return [*seen, module.weight.detach().clone()]


def by_hand(interval: int, rate: float, momentum: float, overlap: bool) -> list[list]:
    """The same in one process, of two workers."""
    start, velocity = torch.zeros(1, 2).double(), torch.zeros(1, 2).double()
    workers, seen, sent = [start.clone(), start.clone()], [[], []], None

    def step(mean_change):
        nonlocal start, velocity
        velocity = momentum * velocity - mean_change
        start = start - rate * (momentum * velocity - mean_change)

    def settle():
        nonlocal sent, workers
        if sent is not None:
            step(sum(s - sent[1] for s in sent[0]) / 2)
            workers = [start + w - s for w, s in zip(workers, sent[0])]
            sent = None

    for update in range(1, 10):
        workers = [
            w + torch.tensor([plan_of(r)[update - 1]], dtype=torch.float64)
            for r, w in enumerate(workers)
        ]
        if update % interval == 0 and overlap:
            settle()
            sent = [w.clone() for w in workers], start.clone()
        elif update % interval == 0:
            step(sum(w - start for w in workers) / 2)
            workers = [start.clone(), start.clone()]
        for rank in range(2):
            seen[rank].append(workers[rank])
    settle()
    return [[*s, sum(workers) / 2] for s in seen]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(("rate", "momentum"), [(1.0, 0.0), (0.7, 0.9)])
def test_the_outer_optimizer_is_nesterov_on_the_means_change(rate, momentum, overlap):
    found = run_workers(outer, 2, 2, rate, momentum, overlap)
    expected = by_hand(2, rate, momentum, overlap)
    for mine, wanted in zip(found, expected):
        torch.testing.assert_close(torch.stack(mine), torch.stack(wanted), rtol=0, atol=1e-12)
    assert torch.equal(found[0][-1], found[1][-1])


@pytest.mark.parametrize(("interval", "overlap"), [(1, False), (3, False), (3, True)])
def test_rate_one_without_momentum_is_the_plain_mean(interval, overlap):
    plain = run_workers(outer, 2, interval, None, 0.0, overlap)
    with_outer = run_workers(outer, 2, interval, 1.0, 0.0, overlap)
    for mine, wanted in zip(with_outer, plain):
        torch.testing.assert_close(torch.stack(mine), torch.stack(wanted), rtol=0, atol=1e-6)


@pytest.fixture(scope="module")
def job(server, words):
    def run_it(folder, workers: int, *more: str):
        folder.mkdir(exist_ok=True)
        command = train_command(
            words, folder, "--distributed-world-size", workers,
            *("--batch-size", SEQUENCES // workers, "--no-epoch-checkpoints"),
            *("--ddp-backend", "model_averaging", *more), arch=LM,
        )  # fmt: skip
        result = Warm(server, command, folder).finish().ok()
        return result, torch.load(folder / "checkpoint_last.pt", weights_only=False)

    return run_it


def assert_close(expected: dict, got: dict, tolerance: float) -> None:
    for name, value in expected.items():
        torch.testing.assert_close(got[name], value, rtol=tolerance, atol=tolerance)


SGD = (
    *("--optimizer", "sgd", "--lr", "0.5", "--clip-norm", "0", "--max-update", "12"),
    *("--lr-scheduler", "exponential", "--final-lr", "0.2"),
)


def test_every_update_with_sgd_is_one_worker_on_the_joined_batch(job, tmp_path):
    alone = job(tmp_path / "alone", 1, *SGD)
    together = job(tmp_path / "two", 2, *SGD, "--averaging-interval", "1")
    assert curve(together[0]) == pytest.approx(curve(alone[0]), abs=2e-3)
    assert_close(alone[1]["model"], together[1]["model"], 1e-5)
    rates = curve(together[0], "lr")
    assert rates[6] == pytest.approx((0.5 * 0.2) ** 0.5, rel=1e-4)  # half-way
    assert rates[12] == pytest.approx(0.2, rel=1e-4)
    averaged = job(tmp_path / "averaged", 2, *SGD, "--averaging-interval", "5")
    with pytest.raises(AssertionError):
        assert_close(alone[1]["model"], averaged[1]["model"], 1e-5)
    sent = curve(averaged[0], "sent_mb")
    assert [update for update, mb in sent.items() if mb > 0] == [5, 10]


@pytest.mark.parametrize(
    ("state", "interval"),
    [("keep", 5), pytest.param("keep", 7, marks=LONG), pytest.param("average", 5, marks=LONG)],
)
def test_resumes_exactly_within_an_interval_and_at_its_end(job, tmp_path, state, interval):
    """Saved after update 7, two updates after a meeting, or right after it. (In a task without
    carried states, which a resume forgets.)"""
    more = ("--averaging-interval", interval, "--averaging-state", state)
    more += ("--save-interval-updates", "7")
    more += ("--disable-validation", "--task", "language_modeling", "--sample-break-mode", "none")
    straight = job(tmp_path / "straight", 2, *more, "--max-update", "13")
    job(tmp_path / "stopped", 2, *more, "--max-update", "7")
    resumed = job(tmp_path / "stopped", 2, *more, "--max-update", "13")
    assert min(curve(resumed[0])) == 8
    assert_close(straight[1]["model"], resumed[1]["model"], 1e-6)


OUTER = ("--averaging-outer", "nesterov", "--averaging-interval", "4")


@pytest.mark.parametrize("more", [OUTER, (*OUTER, "--averaging-overlap")], ids=["outer", "overlap"])
def test_a_save_within_an_interval_is_no_outer_step(job, tmp_path, more):
    """Saved half-way from update 4 to 8: who resumes there goes on as who saved; four workers, and
    then one, keep the momentum."""
    more += ("--save-interval-updates", "6", "--disable-validation")
    more += ("--task", "language_modeling", "--sample-break-mode", "none")
    straight = job(tmp_path / "straight", 2, *more, "--max-update", "11")
    _, stopped = job(tmp_path / "stopped", 2, *more, "--max-update", "6")
    states = stopped["last_optimizer_state"]["state"].values()
    for name in ("outer_momentum", "outer_change"):
        assert any(state[name].abs().max() > 0 for state in states), name
    shutil.copytree(tmp_path / "stopped", tmp_path / "others")
    resumed = job(tmp_path / "stopped", 2, *more, "--max-update", "11")
    assert min(curve(resumed[0])) == 7
    assert_close(straight[1]["model"], resumed[1]["model"], 0)
    for workers, update in (4, 7), (1, 8):
        result, saved = job(tmp_path / "others", workers, *more, "--max-update", update)
        assert min(curve(result)) == update
        for mine, before in zip(saved["last_optimizer_state"]["state"].values(), states):
            torch.testing.assert_close(mine["outer_momentum"], before["outer_momentum"])


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--averaging-interval", "0"), "--averaging-interval 0 is not a number of updates"),
        (("--averaging-state", "lost"), "--averaging-state lost is not known: use keep, average"),
        (("--averaging-outer", "adam"), "--averaging-outer adam is not known: use none, nesterov"),
        (("--averaging-outer-rate", "0"), "--averaging-outer-rate 0.0 is not a rate: give more"),
        (("--averaging-outer-momentum", "1"), "--averaging-outer-momentum 1.0 is not a momentum"),
        (("--fp16",), "--fp16 does not go with --ddp-backend model_averaging"),
    ],
)
def test_bad_input_is_one_line(server, words, tmp_path, more, message):
    job = ("--distributed-world-size", "2", "--ddp-backend", "model_averaging")
    command = train_command(words, tmp_path, *job, "--batch-size", "4", *more, arch=LM)
    assert message in Warm(server, command, tmp_path).finish().error()
