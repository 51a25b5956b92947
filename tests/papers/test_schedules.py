"""Learning rates over a training, and what is refused."""

from __future__ import annotations

from argparse import Namespace

import pytest
import torch
from fairseq.optim import FairseqOptimizer

from fairseq_hybrid.errors import UserError
from fairseq_hybrid.papers.schedules import FINISHED, Exponential, Newbob


class Optimizer(FairseqOptimizer):
    def __init__(self):
        super().__init__(Namespace())
        self._optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=9.0)


def exponential(**options) -> Exponential:
    defaults = dict(lr=[0.8], final_lr=0.1, max_update=30, max_epoch=0)
    cfg = Namespace(
        **(defaults | dict(lr_scale_workers="none", distributed_world_size=4) | options)
    )
    return Exponential(cfg, Optimizer())


def newbob(**options) -> Newbob:
    defaults = dict(lr=[0.8], newbob_start=0.01, newbob_end=0.001)
    cfg = Namespace(
        **(defaults | dict(lr_scale_workers="none", distributed_world_size=4) | options)
    )
    return Newbob(cfg, Optimizer())


def test_exponential_over_updates():
    schedule = exponential()
    rates = [schedule.step_update(n) for n in (0, 10, 20, 30, 40)]
    assert rates == pytest.approx([0.8, 0.4, 0.2, 0.1, 0.1])
    assert schedule.optimizer.get_lr() == rates[-1]


def test_exponential_over_epochs():
    schedule = exponential(max_update=0, max_epoch=3)
    rates = []
    for epoch in (1, 2, 3):
        schedule.step_begin_epoch(epoch)
        rates.append(schedule.step_update(100 * epoch))
    assert rates == pytest.approx([0.8, 0.4, 0.2])


@pytest.mark.parametrize(("scale", "factor"), [("none", 1), ("sqrt", 2), ("linear", 4)])
def test_rates_for_several_workers(scale, factor):
    assert exponential(lr_scale_workers=scale).step_update(0) == pytest.approx(0.8 * factor)
    assert newbob(lr_scale_workers=scale).step_update(0) == pytest.approx(0.8 * factor)


def test_newbob_halves_when_gains_get_small_and_stops_when_they_end():
    schedule, rates = newbob(), []
    for epoch, loss in enumerate([5.0, 4.0, 3.99, 3.8, 3.799], start=1):
        schedule.step(epoch, loss)
        rates.append(schedule.step_update(epoch))
    assert rates == pytest.approx([0.8, 0.8, 0.4, 0.2, FINISHED])


def test_newbob_resumes():
    schedule = newbob()
    for epoch, loss in enumerate([5.0, 4.0, 3.99], start=1):
        schedule.step(epoch, loss)
    again = newbob()
    again.load_state_dict(schedule.state_dict())
    assert again.step_update(3) == pytest.approx(0.4)
    for each in (schedule, again):
        each.step(4, 3.9895)
    assert again.step_update(4) == schedule.step_update(4) == FINISHED


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: exponential(max_update=0), "give --max-update or --max-epoch"),
        (lambda: exponential(final_lr=0.0), "--final-lr 0.0: .* needs both above 0"),
        (lambda: newbob(lr_scale_workers="much"), "--lr-scale-workers much is not known"),
        (lambda: newbob(lr=[0.1, 0.2]), "--lr 0.1,0.2: --lr-scheduler newbob takes one rate"),
    ],
)
def test_bad_input_is_refused(make, message):
    with pytest.raises(UserError, match=message):
        make()
