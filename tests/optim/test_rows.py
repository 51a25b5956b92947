"""Row-sparse gradients: scaled, clipped and applied like dense ones, at the cost of their rows."""

from __future__ import annotations

from argparse import Namespace

import pytest
import torch
from fairseq.optim import FairseqOptimizer
from torch import nn

from fairseq_hybrid.errors import UserError
from fairseq_hybrid.optim import rows
from fairseq_hybrid.optim.optimizer import wrap

from fairseq.optim.adam import Adam  # isort: skip

KINDS = {
    "adam": lambda params: Adam(params, lr=0.1, betas=(0.9, 0.98)),
    "adam with decay": lambda params: Adam(params, lr=0.1, weight_decay=0.1),
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1),
    "sgd with momentum": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    "sgd with decay": lambda params: torch.optim.SGD(params, lr=0.1, weight_decay=0.1),
    "adagrad": lambda params: torch.optim.Adagrad(params, lr=0.1),
}


class Optimizer(FairseqOptimizer):
    def __init__(self, optimizer):
        super().__init__(Namespace())
        self._optimizer = optimizer


def make(kind: str, by_rows: bool, words: int = 6, seed: int = 0):
    torch.manual_seed(seed)
    table, other = nn.Parameter(torch.randn(words, 3)), nn.Parameter(torch.randn(4))
    optimizer = Optimizer(KINDS[kind]([table, other]))
    if by_rows:
        optimizer = wrap(optimizer, by_rows=True)
    return optimizer, table, other


def update(optimizer, table, other, taken, number: int, sparse: bool, clip: float = 1.0):
    optimizer.zero_grad()
    torch.manual_seed(number)
    scores = torch.randn(len(taken), 3)
    picked = rows.gather(table, torch.tensor(taken), sparse)
    ((picked * scores).sum() + (other * torch.randn(4)).sum()).backward()
    assert table.grad.is_sparse == sparse
    optimizer.multiply_grads(2.0)
    norm = optimizer.clip_grad_norm(clip)
    optimizer.step()
    return norm


@pytest.mark.parametrize("kind", KINDS)
def test_with_a_gradient_in_every_row_it_is_the_plain_optimizer(kind):
    plain, lazy = make(kind, False), make(kind, True)
    for number in range(5):
        everything = [0, 1, 2, 3, 4, 5, 5, 0]  # some twice: their gradients add up
        norms = [
            update(*system, everything, number, sparse)
            for system, sparse in ((plain, False), (lazy, True))
        ]
        torch.testing.assert_close(*norms)
    for expected, got in zip(plain[1:], lazy[1:]):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)
    for name, value in plain[0].optimizer.state[plain[1]].items():
        if torch.is_tensor(value):
            torch.testing.assert_close(
                lazy[0].optimizer.state[lazy[1]][name], value, rtol=1e-5, atol=1e-6
            )


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_is_updated_as_a_parameter_of_its_own(kind):
    """Row by row: the lazy update of a matrix against plain ones of its rows, each at its turns."""
    turns = [[0, 2], [2, 5], [1, 2], [0, 5], [2]]
    optimizer, table, other = make(kind, True)
    alone = [nn.Parameter(row.detach().clone()) for row in table]
    plain = [Optimizer(KINDS[kind]([row])) for row in alone]
    untouched = table[[3, 4]].detach().clone()
    for number, taken in enumerate(turns):
        update(optimizer, table, other, taken, number, True, clip=0.0)
        torch.manual_seed(number)
        for row, score in zip(taken, torch.randn(len(taken), 3)):
            alone[row].grad = 2 * score
            plain[row].step()
    torch.testing.assert_close(table, torch.stack(alone), rtol=1e-5, atol=1e-6)
    assert torch.equal(table[[3, 4]], untouched)


@pytest.mark.parametrize("kind", KINDS)
def test_state_is_saved_and_resumed(kind):
    turns = [[0, 2], [2, 5], [1, 2], [0, 5]]
    straight, stopped = make(kind, True), make(kind, True)
    for number, taken in enumerate(turns):
        update(*straight, taken, number, True)
        if number == 2:  # a new process: the parameters and the optimizer's state dict
            state = stopped[0].state_dict()
            again = make(kind, True, seed=9)
            for old, new in zip(stopped[1:], again[1:]):
                new.data.copy_(old.data)
            again[0].load_state_dict(state)
            stopped = again
        update(*stopped, taken, number, True)
    for expected, got in zip(straight[1:], stopped[1:]):
        assert torch.equal(got, expected)


def test_goes_on_from_a_plain_adams_state():
    plain, lazy = make("adam", False), make("adam", True)
    for number in range(6):
        update(*plain, range(6), number, False)
        if number < 3:
            update(*lazy, range(6), number, False)
        else:
            update(*lazy, range(6), number, True)
    torch.testing.assert_close(lazy[1], plain[1], rtol=1e-5, atol=1e-6)


def test_the_cost_does_not_grow_with_the_vocabulary():
    """Counted, not timed: how many numbers the operations of an update touch."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            in_place = func._schema.name.split("::")[1] in ("index_add_", "index_copy_")
            for tensor in out if isinstance(out, (tuple, list)) else [out]:
                if torch.is_tensor(tensor) and not tensor.is_sparse and not in_place:
                    Largest.seen = max(Largest.seen, tensor.numel())
            return out

    for kind in KINDS:
        system = make(kind, True, words=5000)
        update(*system, [1, 7], 0, True)  # the state is made once
        Largest.seen = 0
        optimizer, table, other = system
        optimizer.zero_grad()
        picked = rows.gather(table, torch.tensor([1, 7, 9]), True)
        with Largest():
            (picked.sum() + other.sum()).backward()
            optimizer.multiply_grads(2.0)
            optimizer.clip_grad_norm(1.0)
            optimizer.step()
        assert 0 < Largest.seen < 100, kind


def test_other_optimizers_are_refused():
    cfg = Namespace(
        optimizer=Namespace(_name="adadelta"), common=Namespace(fp16=False, bf16=False, amp=False)
    )
    with pytest.raises(UserError, match=r"--optimizer adadelta .* use one of adam, sgd, adagrad"):
        rows.refuse_whole_matrices(cfg)
