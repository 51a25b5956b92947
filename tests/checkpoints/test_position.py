"""Resuming within an epoch: which sentences are trained on, by iterators alone.

A `Training` is all workers of one: each has an iterator of its own, as in fairseq's trainer, and an
update is `update_freq` batches of each. What is compared is the sentences of every update.
"""

from __future__ import annotations

import itertools
import logging
from argparse import Namespace

import numpy as np
import pytest
import torch
from fairseq.data import FairseqDataset
from fairseq.data.iterators import EpochBatchIterator, GroupedIterator

import fairseq_hybrid  # noqa: F401
from fairseq_hybrid.checkpoints import position
from fairseq_hybrid.tasks.streams import StreamIterator, Streams

COUNT = 293


class Sentences(FairseqDataset):
    """`COUNT` sentences of 1 to 9 words, those of a length in a random order."""

    def __init__(self, count: int = COUNT):
        self.sizes = np.random.RandomState(3).randint(1, 10, count)

    def __len__(self):
        return len(self.sizes)

    def __getitem__(self, index):
        return index

    def num_tokens(self, index):
        return self.sizes[index]

    def num_tokens_vec(self, indices):
        return self.sizes[indices]

    def size(self, index):
        return self.sizes[index]

    def collater(self, samples):
        return list(samples)

    def ordered_indices(self):
        shuffled = np.random.permutation(len(self))
        return shuffled[np.argsort(self.sizes[shuffled], kind="stable")]


class Training:
    def __init__(self, workers=1, update_freq=1, batch_size=8, *, dataset=None, **options):
        self.update_freq = update_freq
        dataset = dataset or Sentences()
        self.iterators = [
            self.iterator(dataset, batch_size, options, num_shards=workers, shard_id=rank)
            for rank in range(workers)
        ]
        cfg = Namespace(
            dataset={
                "max_tokens": None,
                "batch_size": batch_size,
                "required_batch_size_multiple": 1,
            },
            optimization=Namespace(update_freq=[update_freq]),
        )
        for itr in self.iterators:
            position.tell(itr, cfg, 1, kept=True)
        self.epochs: list = []

    def iterator(self, dataset, batch_size, options, **shard):
        with_seed = np.random.RandomState(options.get("seed", 1)).randint(1000)
        np.random.seed(with_seed)
        batches = dataset.batch_by_size(dataset.ordered_indices(), max_sentences=batch_size)
        return EpochBatchIterator(
            dataset, dataset.collater, batches, **shard, **{"seed": 1, **options}
        )

    def begin(self):
        self.epochs = [itr.next_epoch_itr(shuffle=True) for itr in self.iterators]
        skip = self.iterators[0].skip_remainder_batch
        self.groups = [GroupedIterator(e, self.update_freq, skip) for e in self.epochs]
        return self

    def train(self, updates: int | None = None) -> list[list[int]]:
        """The sentences of so many updates, or of all that are left of the epoch."""
        if not self.epochs:
            self.begin()
        seen = []
        while (updates is None or len(seen) < updates) and self.groups[0].has_next():
            seen.append(sorted(i for g in self.groups for batch in next(g) for i in batch))
        return seen

    def save(self) -> dict:
        return self.iterators[0].state_dict()

    def resume(self, state: dict) -> Training:
        for itr in self.iterators:
            itr.load_state_dict(dict(state))
        return self

    @property
    def ended(self) -> bool:
        return all(itr.end_of_epoch() for itr in self.iterators)


def flat(updates: list[list[int]]) -> list[int]:
    return sorted(itertools.chain.from_iterable(updates))


ALL = list(range(COUNT))  # 37 batches of 8
SHAPES = [(1, 4), (2, 2), (4, 1)]


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("now", SHAPES)
@pytest.mark.parametrize("before", SHAPES)
def test_any_number_of_workers_goes_on_with_the_same_updates(before, now, grouped):
    first = Training(*before, grouped_shuffling=grouped)
    begun = first.train(6)
    state, expected = first.save(), first.train()
    assert first.ended
    second = Training(*now, grouped_shuffling=grouped).resume(state)
    assert second.train() == expected
    assert second.ended
    if not grouped:  # which leaves out batches that fill no group
        assert flat(begun + expected) == ALL
        again = Training(*before).resume(second.save())
        assert again.train() == second.begin().train()
    else:
        assert second.save()["epoch"] == 2


@pytest.mark.parametrize("now", [(1, 1), (1, 5), (2, 3), (3, 1), (3, 4), (4, 3), (7, 1), (40, 1)])
@pytest.mark.parametrize("updates", [1, 5, 12])
def test_nothing_twice_nothing_left_out_at_any_other_batch(now, updates):
    """And the epoch ends: fairseq would begin it again where the numbers do not divide."""
    first = Training(3, 1)
    begun = first.train(updates)
    second = Training(*now).resume(first.save())
    assert flat(begun + second.train()) == ALL
    assert second.ended
    assert second.save()["epoch"] == 2


def test_a_chain_of_resumes_is_exact():
    shapes = [(1, 1), (4, 1), (3, 2), (1, 4), (5, 1), (2, 2), (2, 1)]
    seen, state = [], None
    for shape in shapes:
        training = Training(*shape)
        if state is not None:
            training.resume(state)
        seen += training.train(1)
        state = training.save()
    assert flat(seen + training.train()) == ALL


@pytest.mark.parametrize(
    "other", [dict(batch_size=16), dict(batch_size=5), dict(seed=2), dict(workers=2, batch_size=3)]
)
def test_other_batches_are_made_of_what_is_left(other, caplog):
    caplog.set_level(logging.INFO, logger=position.__name__)
    first = Training(2, 2)
    seen = first.train(4)
    second = Training(**other).resume(first.save())
    assert f"the {COUNT - 4 * 32} samples not seen yet, of {COUNT}, make" in caplog.text
    seen += second.train(3)
    state = second.save()
    expected = second.train()
    assert flat(seen + expected) == ALL
    caplog.clear()
    third = Training(**other).resume(state)
    assert third.train() == expected, "its own checkpoint goes on exactly"
    assert third.ended
    assert not caplog.text
    fourth = Training(**{"workers": 3, "batch_size": 7}).resume(state)
    assert flat(seen + fourth.train()) == ALL, "and so does one of a third kind"
    full = list(map(len, third.begin().train()))
    assert sum(full) == COUNT, "the next epoch is a whole one"


def test_saved_without_a_number_of_workers_it_is_found_in_the_options():
    """A checkpoint of fairseq's own, or of an earlier version."""
    first = Training(1, 4)
    first.train(6)
    state = position.fairseq_state_dict(first.iterators[0])
    assert state.keys() == {"version", "epoch", "iterations_in_epoch", "shuffle"}
    expected = first.train()
    for workers, update_freq in SHAPES:
        old = {**state}
        position.complete(checkpoint(old, workers=1, update_freq=4))
        assert Training(workers, update_freq).resume(old).train() == expected
    other = {**state}
    position.complete(checkpoint(other, workers=1, update_freq=4))
    assert flat(Training(2, batch_size=5).resume(other).train()) == flat(expected)


def checkpoint(state: dict, workers: int, update_freq: int, history=(6,), epochs="False") -> dict:
    cfg = {
        "distributed_training": {"distributed_world_size": workers},
        "common": {"model_parallel_size": 1, "seed": 1},
        "optimization": {"update_freq": [update_freq]},
        "dataset": {
            "max_tokens": None,
            "batch_size": 8,
            "required_batch_size_multiple": 1,
            "update_ordered_indices_seed": False,
            "update_epoch_batch_itr": epochs == "True",
        },
    }
    updates = [{"num_updates": n} for n in history]
    return {"extra_state": {"train_iterator": state}, "cfg": cfg, "optimizer_history": updates}


@pytest.mark.parametrize(
    ("epoch", "history", "began"),
    [(1, [6], 1), (3, [26], 1), (3, [6, 26], 1), (3, [10, 26], 2), (3, [20, 26], 3)],
)
def test_old_checkpoints_tell_in_which_epoch_their_batches_were_made(epoch, history, began):
    """10 updates of 4 batches an epoch; 6 of the last one are done."""
    state = {"version": 2, "epoch": epoch, "iterations_in_epoch": 24, "shuffle": True}
    position.complete(checkpoint(state, 1, 4, history))
    assert state["made_for_epoch"] == began
    state.pop("workers")
    position.complete(checkpoint(state, 1, 4, history, epochs="True"))
    assert state["made_for_epoch"] == epoch


def test_an_old_position_beyond_the_end_begins_the_epoch_anew(caplog):
    caplog.set_level(logging.INFO, logger=position.__name__)
    state = {"version": 2, "epoch": 2, "iterations_in_epoch": 30, "shuffle": True, "workers": 2}
    assert flat(Training(2).resume(state).train()) == ALL
    assert caplog.text.count("the epoch begins anew, and they come twice") == 1


def test_other_data_begin_the_epoch_anew(caplog):
    caplog.set_level(logging.INFO, logger=position.__name__)
    first = Training(2)
    first.train(3)
    second = Training(1, dataset=Sentences(200)).resume(first.save())
    assert flat(second.train()) == list(range(200))
    assert f"of {COUNT} training samples, the data have 200: epoch 1 begins anew" in caplog.text


def test_fairseq_alone_resumes_the_file_and_leaves_nothing_out(monkeypatch):
    first = Training(2, 3)
    begun = first.train(2)
    state = first.save()
    third = Training(3, 1).resume(state)
    begun_by_three = begun + third.train(1)
    states = [(state, 2, begun), (third.save(), 3, begun_by_three)]
    for name in ("ordered_batches", "state_dict", "load_state_dict"):
        short = name.replace("ordered_batches", "ordered")
        monkeypatch.setattr(EpochBatchIterator, name, getattr(position, f"fairseq_{short}"))
    for state, workers, seen in states:
        rest = flat(Training(workers).resume(state).train())
        assert set(flat(seen)) | set(rest) == set(ALL)
        twice = len(flat(seen)) + len(rest) - COUNT
        assert twice <= 8 * (workers - 1)


@pytest.mark.parametrize("now", SHAPES)
def test_an_epoch_that_is_over_for_the_new_job_ends(now):
    """`--skip-remainder-batch`: the last updates of an epoch are those of whole batches."""
    first = Training(1, 1, skip_remainder_batch=True)
    first.train(35)
    second = Training(*now, skip_remainder_batch=True).resume(first.save())
    assert second.iterators[0].next_epoch_idx == 2
    assert second.train()


def test_an_end_of_an_epoch_is_the_beginning_of_the_next():
    first = Training(2)
    first.train()
    state = first.save()
    assert (state["epoch"], state["iterations_in_epoch"]) == (2, 0)
    assert "seen" not in state
    expected = first.begin().train()
    assert Training(2).resume(state).train() == expected


def test_positions_are_plain_and_small():
    first = Training(2)
    first.train(3)
    state = first.save()
    assert state.pop("seen").dtype == torch.uint8
    assert all(type(value) in (int, bool) for value in state.values())


class Streaming(Training):
    def iterator(self, dataset, batch_size, options, num_shards, shard_id):
        streams = Streams.cut(len(dataset), batch_size * num_shards, rest=False)
        batches = list(streams.batches(num_shards))
        return StreamIterator(
            dataset, dataset.collater, batches, num_shards=num_shards, shard_id=shard_id
        )


@pytest.mark.parametrize("old", [False, True])
def test_streams_go_on_where_they_were(old):
    """As many streams on another number of workers, each with a smaller batch."""
    first = Streaming(1, 2, batch_size=8)
    first.train(5)
    state = position.fairseq_state_dict(first.iterators[0]) if old else first.save()
    if old:
        position.complete(checkpoint(state, 1, 2))
    expected = first.train()
    for workers in (2, 4):
        assert Streaming(workers, 2, 8 // workers).resume(dict(state)).train() == expected


@pytest.mark.parametrize("old", [False, True])
def test_other_streams_leave_nothing_out(old, caplog):
    caplog.set_level(logging.INFO, logger=position.__name__)
    first = Streaming(1, batch_size=8)
    seen = set(flat(first.train(5)))
    state = position.fairseq_state_dict(first.iterators[0]) if old else first.save()
    if old:
        position.complete(checkpoint(state, 1, 1))
    left = set(flat(Streaming(2, batch_size=8).resume(state).train()))
    assert seen | left == set(range(COUNT - COUNT % 8)) | left
    assert "come twice" in caplog.text
