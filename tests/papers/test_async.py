"""`--ddp-backend async`: every gradient is used once, nobody runs too far ahead, all ends well."""

from __future__ import annotations

import random
import threading
import time
from argparse import Namespace

import pytest
import torch
import torch.distributed as dist
from fairseq.optim import FairseqOptimizer
from jobs import curve, train_command
from warm import Warm
from workers import WorkerError, run_workers

from fairseq_hybrid.optim import rows
from fairseq_hybrid.optim.optimizer import wrap
from fairseq_hybrid.papers.asynchronous import AsyncParallel, Server

UPDATES, WORDS = 20, 9
LM = (
    *("--task", "streamed_language_modeling", "--arch", "hybrid_lstm_lm", "--dropout", "0"),
    *("--decoder-embed-dim", "16", "--decoder-hidden-size", "16", "--tokens-per-sample", "10"),
)
JOB = (
    *("--distributed-world-size", "2", "--ddp-backend", "async", "--batch-size", "4"),
    *("--no-epoch-checkpoints", "--save-interval-updates", "30", "--keep-interval-updates", "1"),
)
SAMPLED = ("--criterion", "sampled_softmax", "--sample-frequent", "20", "--sample-random", "30")


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Parameter(torch.randn(WORDS, 2))
        self.layer = torch.nn.Parameter(torch.randn(3))

    def softmax_parameters(self):
        return (self.table, None)

    def rows_read(self, words):
        return {self.table: words}

    def use_row_gradients(self):
        pass

    def forward(self, words):
        return self.table[words].sum() + self.layer.sum()


class SGD(FairseqOptimizer):
    def __init__(self, params):
        super().__init__(Namespace())
        self._optimizer = torch.optim.SGD(params, lr=0.5)


def optimizer_of(params):
    return wrap(SGD(params), by_rows=True)


def gradient(rank: int, update: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows of the table, their gradient, and that of the layer: whatever the parameters are."""
    draw = torch.Generator().manual_seed(1000 * rank + update)
    taken = torch.randperm(WORDS, generator=draw)[:4].sort().values
    return taken, torch.randn(4, 2, generator=draw), torch.randn(3, generator=draw)


def push_all(staleness: int, fails: int | None = None) -> tuple[dict, list[int] | None]:
    """A worker: pushes known gradients; returns what it has in the end, and the server's clock."""
    rank = dist.get_rank()
    model = AsyncParallel(Model(), staleness=staleness).train()
    optimizer = optimizer_of(model.server.params) if rank == 0 else None
    model.start(optimizer, lambda: 0.5)
    model.use_row_gradients()
    pace = random.Random(rank)
    for update in range(UPDATES):
        taken, of_rows, of_layer = gradient(rank, update)
        model(words=taken)
        time.sleep(0.003 * rank * pace.random())  # of unequal speed
        model.module.table.grad = rows.sparse_rows(taken, of_rows, model.module.table)
        model.module.layer.grad = of_layer
        model.push()
        if rank == fails and update == UPDATES // 2:
            raise ArithmeticError("as the test asks")
    model.flush()
    return model.module.state_dict(), model.server.clock if rank == 0 else None


@pytest.mark.parametrize(
    ("world", "staleness"), [(2, 2), pytest.param(3, 0, marks=pytest.mark.long)]
)
def test_every_gradient_is_used_once(world, staleness):
    """Gradients that do not depend on the parameters: SGD gives the same in any order."""
    workers = run_workers(push_all, world, staleness)
    table, layer = (p.detach().clone() for p in Model().parameters())
    for rank in range(world):
        for update in range(UPDATES):
            taken, of_rows, of_layer = gradient(rank, update)
            table.index_add_(0, taken, of_rows, alpha=-0.5)
            layer -= 0.5 * of_layer
    for got, _ in workers:
        torch.testing.assert_close(got["table"], table, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(got["layer"], layer, rtol=1e-5, atol=1e-5)
    assert workers[0][1] == [UPDATES] * world


@pytest.mark.parametrize("fails", [0, 1])
def test_nobody_waits_for_one_that_failed(fails):
    """Where nothing watches the workers: started by hand, or by Slurm."""
    with pytest.raises(WorkerError) as error:
        run_workers(push_all, 2, 2, fails, kill=False, timeout=60)
    assert error.value.hung == []
    assert set(error.value.errors) == {0, 1}
    assert "ArithmeticError" in error.value.errors[fails]


def test_nobody_runs_too_far_ahead():
    """Worker 0 may fetch after 2 more updates than worker 1 has made, but not after 3."""
    server = Server([torch.nn.Parameter(torch.zeros(2))], workers=2, staleness=2)
    server.optimizer, server.learning_rate = optimizer_of(server.params), lambda: 0.5
    for _ in range(2):
        server.push(0, [torch.ones(2)])
    assert server.pull(0, [None])[0].tolist() == [-1.0, -1.0]
    server.push(0, [torch.ones(2)])
    fetched = []
    thread = threading.Thread(target=lambda: fetched.append(server.pull(0, [None])))
    thread.start()
    time.sleep(0.3)
    assert not fetched
    server.push(1, [torch.ones(2)])
    thread.join(timeout=10)
    assert fetched[0][0].tolist() == [-2.0, -2.0]


def test_a_failed_server_fails_those_who_ask():
    server = Server([torch.nn.Parameter(torch.zeros(2))], workers=2, staleness=2)
    server.fail(OSError("gone"))
    with pytest.raises(RuntimeError, match="server of the parameters"):
        server.pull(0, [None])


@pytest.mark.parametrize(
    "more",
    [pytest.param(("--criterion", "cross_entropy"), marks=pytest.mark.long), SAMPLED],
    ids=["dense", "rows"],
)
def test_learns_saves_and_goes_on(server, words, tmp_path, more):
    command = train_command(
        words, tmp_path, *JOB, *more, "--max-update", "200", "--lr", "0.01", arch=LM
    )
    first = Warm(server, command, tmp_path).finish().ok()
    losses = list(curve(first).values())
    assert len(losses) == 200
    # The model begins with the words' frequencies, so what it learns is more than that.
    begun = sum(losses[:10]) / 10
    assert sum(losses[-10:]) / 10 < begun - 0.15
    saved = torch.load(tmp_path / "checkpoint_last.pt", weights_only=False)
    steps = {state["step"] for state in saved["last_optimizer_state"]["state"].values()}
    assert steps == {400}  # the server's: 200 of each worker
    command = train_command(
        words, tmp_path, *JOB, *more, "--max-update", "220", "--lr", "0.01", arch=LM
    )
    second = Warm(server, command, tmp_path).finish().ok()
    went_on = list(curve(second).values())
    assert len(went_on) == 20
    assert sum(went_on[:10]) / 10 < begun - 0.15
    saved = torch.load(tmp_path / "checkpoint_last.pt", weights_only=False)
    steps = {state["step"] for state in saved["last_optimizer_state"]["state"].values()}
    assert steps == {440}


def test_the_end_is_quiet(server, words, tmp_path):
    """Workers take leave of the server before the group they talk in is destroyed."""
    command = train_command(words, tmp_path, *JOB, "--max-update", "3", "--no-save", arch=LM)
    result = Warm(server, command, tmp_path).finish().ok()
    assert len(curve(result)) == 3
    assert "Traceback" not in result.all


def test_sampled_rows_are_less_than_everything(server, words, tmp_path):
    sent = []
    for name, more in (("dense", ("--criterion", "cross_entropy")), ("rows", SAMPLED)):
        (tmp_path / name).mkdir()
        command = train_command(
            words, tmp_path / name, *JOB, *more, "--max-update", "8", "--no-save", arch=LM
        )
        result = Warm(server, command, tmp_path / name).finish().ok()
        sent.append(sum(curve(result, "sent_mb").values()))
    assert 0 < sent[1] < 0.5 * sent[0]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--async-staleness", "-1"), "--async-staleness -1 is not a number of updates"),
        (("--fp16",), "--fp16 does not go with --ddp-backend async"),
    ],
)
def test_bad_input_is_one_line(server, words, tmp_path, more, message):
    command = train_command(words, tmp_path, *JOB, *more, arch=LM)
    assert message in Warm(server, command, tmp_path).finish().error()
