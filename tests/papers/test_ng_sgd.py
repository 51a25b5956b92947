"""`--optimizer ng_sgd`: against plain references, on a bad quadratic, and in real jobs."""

from __future__ import annotations

from argparse import Namespace

import pytest
import torch
import torch.nn.functional as F
from jobs import curve, train_command
from test_natural_gradient import Plain
from torch import nn
from warm import Warm

import fairseq_hybrid  # noqa: F401  (names of fairseq's)
from fairseq_hybrid.errors import UserError
from fairseq_hybrid.optim.optimizer import wrap
from fairseq_hybrid.papers import ng_sgd
from fairseq_hybrid.papers.natural_gradient import OnlineNaturalGradient

RANK_IN, RANK_OUT, LR, MOMENTUM, DECAY = 3, 4, 0.05, 0.9, 0.01


def make(model: nn.Module, *, by_rows: bool = False, lr: float = LR, **options):
    """As the trainer does it."""
    options = {"momentum": 0.0, "weight_decay": 0.0, "ng_rank_in": RANK_IN, **options}
    options = {"ng_rank_out": RANK_OUT, **options}
    cfg = ng_sgd.NaturalGradientSGDConfig(lr=[lr], **options)
    inner = ng_sgd.NaturalGradientSGD(cfg, list(model.parameters()))
    return wrap(inner, by_rows=by_rows, of=(model,))


def update(optimizer, model: nn.Module, *losses: torch.Tensor) -> None:
    optimizer.zero_grad()
    for loss in losses:
        loss.backward()
    optimizer.all_reduce_grads(model)
    if optimizer.scales_once:
        optimizer.clip_grad_norm(0.0)
    optimizer.step()


class Reference:
    """What becomes of the rows that come by, by the plain version of the natural gradient."""

    def __init__(self, rank: int):
        self.rank, self.plain = rank, None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.plain is None:
            self.plain = Plain(x, min(self.rank, x.size(1) - 1))
        return self.plain.precondition(x)


def two_sides() -> tuple[Reference, Reference]:
    return Reference(RANK_IN), Reference(RANK_OUT)


def along_axes(sides: tuple[Reference, Reference], grad: torch.Tensor) -> torch.Tensor:
    return sides[1](sides[0](grad).T).T


def close(got: torch.Tensor, expected: torch.Tensor) -> None:
    # Both go through eigenvalues of a square, of which the small ones have half of the digits.
    most = expected.abs().max().item()
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5 * most)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(3)


def batch(*shape: int) -> torch.Tensor:
    """Rows that are correlated and of different size by column."""
    mix = torch.linspace(0.1, 3, shape[-1]).double()
    return torch.randn(*shape).double() * mix + 0.3


def test_a_layer_and_its_bias_over_several_updates():
    """With two batches per update, momentum and weight decay."""
    layer = nn.Linear(6, 5).double()
    weight = torch.cat((layer.weight, layer.bias.unsqueeze(1)), 1).detach().clone()
    speed = torch.zeros_like(weight)
    lr = LR / 50  # in which it converges: where it does not, rounding errors grow too
    optimizer = make(layer, lr=lr, momentum=MOMENTUM, weight_decay=DECAY)
    inputs, outputs = two_sides()
    for _ in range(14):
        batches, wanted = [batch(2, 8, 6) for _ in range(2)], torch.randn(2, 8, 5).double()
        losses = [(layer(x) - wanted).square().sum() / 2 for x in batches]
        update(optimizer, layer, *losses)
        grad = torch.zeros_like(weight)
        for x in batches:
            x1 = torch.cat((x, torch.ones(2, 8, 1).double()), -1).flatten(0, 1)
            dy = x1 @ weight.T - wanted.flatten(0, 1)
            grad += outputs(dy).T @ inputs(x1)
        speed = MOMENTUM * speed + grad + DECAY * weight
        weight = weight - lr * speed
        close(layer.weight, weight[:, :-1])
        close(layer.bias, weight[:, -1])


def test_the_gradient_of_a_layers_input_is_the_plain_one():
    layer, x = nn.Linear(6, 5).double(), batch(4, 6).requires_grad_()
    layer(x).square().sum().backward()
    expected, x.grad = x.grad, None
    optimizer = make(layer)
    layer(x).square().sum().backward()
    assert optimizer.inner.layers[layer.weight].called
    close(x.grad, expected)


def test_a_layer_that_is_called_twice_adds_up():
    layer = nn.Linear(6, 5, bias=False).double()
    optimizer, (inputs, outputs) = make(layer), two_sides()
    first, second = batch(9, 6), batch(4, 6)
    before = layer.weight.detach().clone()
    update(optimizer, layer, layer(first).square().sum() / 2 + layer(second).square().sum() / 2)
    grad = torch.zeros_like(before)
    for x in (second, first):  # in the order of the backward pass
        grad += outputs(x @ before.T).T @ inputs(x)
    close(layer.weight, before - LR * grad)


class Bare(nn.Module):
    """Uses the weight of a layer without calling it."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 5)

    def forward(self, x):
        return F.linear(x, self.layer.weight, self.layer.bias)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(6, 4)

    def forward(self, x):
        return self.lstm(x)[0]


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(6, 5, 3)

    def forward(self, x):
        return self.conv(x.transpose(1, 2))


@pytest.mark.parametrize("kind", [Bare, Recurrent, Convolution])
def test_other_matrices_are_preconditioned_along_their_axes(kind):
    model, plain = kind().double(), kind().double()
    optimizer = make(model)
    sides = {name: two_sides() for name, p in model.named_parameters() if p.dim() > 1}
    for _ in range(3):
        plain.load_state_dict(model.state_dict())
        plain.zero_grad()
        x = batch(4, 7, 6)
        plain(x).square().sum().backward()
        update(optimizer, model, model(x).square().sum())
        for (name, p), q in zip(plain.named_parameters(), model.parameters()):
            grad = p.grad
            if name in sides:
                grad = along_axes(sides[name], grad.flatten(1)).view_as(grad)
                assert not torch.allclose(grad, p.grad)
            assert grad.norm().item() == pytest.approx(p.grad.norm().item())
            close(q, p - LR * grad)


class Words(nn.Module):
    """An embedding, shared with the output layer or not."""

    def __init__(self, shared: bool = False, sparse: bool = False):
        super().__init__()
        self.embed = nn.Embedding(9, 6, padding_idx=0, sparse=sparse)
        self.out = nn.Linear(6, 9, bias=False)
        if shared:
            self.out.weight = self.embed.weight

    def forward(self, words):
        return self.out(self.embed(words))


def test_a_shared_embedding_is_preconditioned_along_its_rows():
    model = Words(shared=True).double()
    optimizer, inputs = make(model), Reference(RANK_IN)
    assert not optimizer.inner.layers
    for _ in range(3):
        words, before = torch.randint(1, 9, (12,)), model.embed.weight.detach().clone()
        (plain,) = torch.autograd.grad(model(words).square().sum(), model.embed.weight)
        update(optimizer, model, model(words).square().sum())
        close(model.embed.weight, before - LR * inputs(plain))


@pytest.mark.parametrize("by_rows", [False, True])
def test_an_embedding_of_which_some_rows_have_a_gradient(by_rows):
    """As a sparse tensor or as a matrix with zeros; words that are not there stay as they are."""
    model = Words(sparse=by_rows).double()
    optimizer, inputs = make(model, by_rows=by_rows, momentum=MOMENTUM), Reference(RANK_IN)
    weight, speed = model.embed.weight.detach().clone(), torch.zeros(9, 6).double()
    for present in ([2, 5, 2, 7], [5, 8, 8], [2, 5, 7, 7]):
        words = torch.tensor(present)
        model.embed.zero_grad()
        (dy,) = torch.autograd.grad(
            model.out(vectors := F.embedding(words, weight).requires_grad_()).square().sum(),
            vectors,
        )
        grad = torch.zeros_like(weight).index_add_(0, words, dy)
        update(optimizer, model, model(words).square().sum())
        if by_rows:
            rows_ = words.unique()
            speed[rows_] = MOMENTUM * speed[rows_] + inputs(grad[rows_])
            weight[rows_] -= LR * speed[rows_]
        else:
            speed = MOMENTUM * speed + inputs(grad)
            weight = weight - LR * speed
        close(model.embed.weight, weight)
    assert model.embed.weight.grad.is_sparse == by_rows


INPUTS = 40
RATES = [2.0**k for k in range(2, -13, -1)]


def updates_needed(kind: str, lr: float, most: int, target: float = 1e-3) -> int:
    """Linear regression on inputs of which some few directions vary a thousand times more."""
    generator = torch.Generator().manual_seed(11)
    turn, _ = torch.linalg.qr(torch.randn(INPUTS, INPUTS, generator=generator))
    scale = torch.ones(INPUTS)
    scale[:3] = torch.tensor([1e3, 4e2, 2e2]).sqrt()
    wanted = nn.Linear(INPUTS, 4)
    nn.init.normal_(wanted.weight, std=INPUTS**-0.5, generator=generator)
    layer = nn.Linear(INPUTS, 4)
    for p in layer.parameters():
        nn.init.zeros_(p)
    if kind == "sgd":
        optimizer = torch.optim.SGD(layer.parameters(), lr=lr)
    else:
        optimizer = make(layer, lr=lr, ng_rank_in=20, ng_rank_out=80)
    for number in range(most):
        x = torch.randn(256, INPUTS, generator=generator) * scale @ turn
        loss = (layer(x) - wanted(x).detach()).square().mean()
        if loss.item() < target:
            return number
        if not loss < 1e6:
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return most


def test_a_badly_scaled_quadratic_needs_half_of_sgds_updates_or_less():
    """Each at its best rate of a grid; twice as many as the other took are not waited for."""
    ng = sgd = 1000
    for rate in RATES:
        ng = min(ng, updates_needed("ng", rate, ng))
    assert ng < 500
    for rate in RATES:
        sgd = min(sgd, updates_needed("sgd", rate, 2 * ng))
    assert ng <= sgd / 2


@pytest.mark.parametrize("by_rows", [False, True])
def test_no_parameter_moves_further_than_the_cap(by_rows):
    model = Words(sparse=by_rows)
    optimizer = make(model, by_rows=by_rows, lr=1.0, momentum=MOMENTUM, ng_max_change=0.25)
    for _ in range(5):
        before = [p.detach().clone() for p in model.parameters()]
        update(optimizer, model, model(torch.randint(1, 9, (12,))).square().sum())
        for p, old in zip(model.parameters(), before):
            assert (p - old).norm().item() == pytest.approx(0.25, rel=1e-4)


def test_below_the_cap_nothing_changes():
    torch.manual_seed(1)
    free, capped = Words(), Words()
    capped.load_state_dict(free.state_dict())
    words = torch.randint(1, 9, (12,))
    for model, most in ((free, 0.0), (capped, 1e3)):
        optimizer = make(model, ng_max_change=most)
        for _ in range(3):
            update(optimizer, model, model(words).square().sum())
    assert all(map(torch.equal, free.state_dict().values(), capped.state_dict().values()))


def test_what_is_not_finite_goes_through_and_leaves_no_trace():
    ours = OnlineNaturalGradient(rank=3)
    ours.precondition(torch.randn(8, 6))
    before = ours.w_RD
    assert ours.precondition(torch.full((8, 6), float("nan"))).isnan().all()
    assert ours.w_RD is before


def test_many_rows_do_not_wipe_out_the_past():
    ours = OnlineNaturalGradient(rank=3, history=1.0)
    for factor in (1.0, 1e-9, 1.0):
        assert ours.precondition(factor * torch.randn(100, 6)).isfinite().all()
    assert ours.w_RD.isfinite().all()


def test_estimates_start_anew_if_a_resume_changes_their_rank():
    model = nn.Linear(6, 5)
    optimizer = make(model)
    update(optimizer, model, model(torch.randn(8, 6)).square().sum())
    state = optimizer.state_dict()
    same, other = make(model), make(model, ng_rank_in=2)
    for optimizer in (same, other):
        optimizer.load_state_dict(state)
    assert torch.equal(
        same.inner.natural[model.weight].inputs.w_RD,
        state["natural_gradient"]["matrices"][0]["inputs"]["w"],
    )
    assert other.inner.natural[model.weight].inputs.w_RD is None


# Real jobs

NG = (
    *("--optimizer", "ng_sgd", "--lr", "0.5", "--momentum", "0.5", "--ng-max-change", "0.5"),
    *("--disable-validation", "--no-epoch-checkpoints", "--save-interval-updates", "5"),
)
AVERAGING = ("--ddp-backend", "model_averaging", "--averaging-interval", "3")


@pytest.fixture(scope="module")
def job(server, data):
    def run_it(folder, workers: int, *more: str):
        folder.mkdir(exist_ok=True)
        command = train_command(data, folder, "--distributed-world-size", workers, *NG, *more)
        result = Warm(server, command, folder).finish().ok()
        return result, torch.load(folder / "checkpoint_last.pt", weights_only=False)

    return run_it


LONG = pytest.mark.long


@pytest.mark.parametrize(
    ("workers", "more"),
    [
        (1, ("--update-freq", "2")),
        (2, AVERAGING),
        pytest.param(2, (*AVERAGING, "--averaging-state", "average"), marks=LONG),
        pytest.param(2, (*AVERAGING, "--averaging-state", "reset"), marks=LONG),
        pytest.param(2, ("--ddp-backend", "legacy_ddp"), marks=LONG),
        pytest.param(2, ("--ddp-backend", "pytorch_ddp"), marks=LONG),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_resumes_exactly(job, tmp_path, workers, more):
    straight = job(tmp_path / "straight", workers, *more, "--max-update", "8")
    job(tmp_path / "stopped", workers, *more, "--max-update", "5")
    resumed = job(tmp_path / "stopped", workers, *more, "--max-update", "8")
    losses = curve(straight[0])
    assert losses[8] < losses[1]
    assert min(curve(resumed[0])) == 6
    assert "natural gradient: 3 layers" in resumed[0].all
    for name, value in straight[1]["model"].items():
        assert torch.equal(resumed[1]["model"][name], value), name
    seen = [
        c["last_optimizer_state"]["natural_gradient"]["matrices"] for _, c in (straight, resumed)
    ]
    for ours, theirs in zip(*seen):
        assert ours["inputs"]["calls"] == theirs["inputs"]["calls"] >= 8
        assert torch.equal(ours["inputs"]["w"], theirs["inputs"]["w"])


def test_bad_options_are_one_line(server, data, tmp_path):
    command = train_command(data, tmp_path, *NG, "--ng-rank-in", "0", "--max-update", "1")
    error = Warm(server, command, tmp_path).finish().error()
    assert "--ng-rank-in 0 does not go with --optimizer ng_sgd: give 1 or more" in error


def config(**changes):
    cfg = Namespace(
        optimizer=ng_sgd.NaturalGradientSGDConfig(_name="ng_sgd", lr=[0.1]),
        common=Namespace(fp16=False, bf16=False, amp=False),
        optimization=Namespace(use_bmuf=False),
        distributed_training=Namespace(ddp_backend="legacy_ddp", zero_sharding="none"),
    )
    for name, value in changes.items():
        section = next(s for s in vars(cfg).values() if hasattr(s, name))
        setattr(section, name, value)
    return cfg


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"momentum": 1.0}, "--momentum 1.0 .* give 0 <= M < 1"),
        ({"weight_decay": -1.0}, "--weight-decay -1.0 .* 0 or more"),
        ({"ng_rank_out": 0}, "--ng-rank-out 0 .* 1 or more"),
        ({"ng_update_period": 0}, "--ng-update-period 0 .* 1 or more"),
        ({"ng_history": 0.0}, "--ng-history 0.0 .* such as 2000"),
        ({"ng_alpha": float("nan")}, "--ng-alpha nan .* such as 4"),
        ({"ng_max_change": -0.5}, "--ng-max-change -0.5 .* such as 0.75"),
        ({"fp16": True}, "--fp16 .* leave it out"),
        ({"ddp_backend": "async"}, "--ddp-backend async .* or --optimizer sgd"),
        ({"zero_sharding": "os"}, "--zero-sharding os .* leave it out"),
        ({"use_bmuf": True}, "--use-bmuf .* leave it out"),
    ],
)
def test_what_cannot_work_is_refused(changes, message):
    ng_sgd.validate_ng_sgd(config())
    with pytest.raises(UserError, match=message):
        ng_sgd.validate_ng_sgd(config(**changes))
