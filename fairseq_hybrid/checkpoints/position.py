"""Where in an epoch a training is, counted over all workers.

fairseq deals the batches of an epoch out to the workers in turns and stores how many each of them
has had.  Resumed by another number of workers, or with other batches, that number means other
sentences.  So a checkpoint also holds

    seen            the sentences of this epoch that were trained on, a bit each
    seen_before     those of them that came before `batches_seen` was counted from 0, if any
    batches_seen    batches of all workers since then
    workers, update_freq, made_for_epoch    of the job that saved

next to fairseq's ``iterations_in_epoch``, which stays what fairseq takes it for: without this
package the file resumes as it always did, a few batches earlier where the numbers do not divide.
On resume

* the batches are the same, or the same sentences come first: training goes on after them exactly,
  dealt out to however many workers there are;
* they are not (another --batch-size, --seed ...): new batches are made of the sentences that are
  left, so that none is seen twice and none left out;
* sentences can't be batched anew (streams of text), or it is other data: what is not known to be
  seen is trained on, and a line says how much comes twice.

A checkpoint of fairseq's, or of this package's before it kept these: `complete` finds the number
of workers and the options of its batches in its configuration.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from fairseq import checkpoint_utils
from fairseq.data.iterators import EpochBatchIterator

logger = logging.getLogger(__name__)

Batches = Sequence[Sequence[int]]


@dataclass(frozen=True)
class RestOfEpoch:
    """What is left of an epoch: `order` without its first `skip` batches, for all workers."""

    epoch: int
    order: Batches
    skip: int
    workers: int
    """by whose number the batches were shuffled (--grouped-shuffling)"""
    before: np.ndarray | None = None
    """a bool per sentence: seen before `order`"""


@dataclass(frozen=True)
class BatchOrigin:
    """How the batches of an iterator were made, which its trainer knows and it does not."""

    batching: dict[str, Any]
    """options of `batch_by_size`"""
    update_freq: Sequence[int]
    made_for: int
    """the epoch whose random numbers ordered the sentences before they were batched"""
    kept: bool
    """whether the batches are those of the following epochs as well"""


def tell(itr: Any, cfg: Any, epoch: int, kept: bool) -> None:
    """Note on `itr`, which was made in `epoch`, how its batches were made."""
    if not isinstance(itr, EpochBatchIterator) or getattr(itr, "origin", None):
        return
    itr.origin = BatchOrigin(batching(cfg.dataset), list(cfg.optimization.update_freq), epoch, kept)


def batching(cfg: Any) -> dict[str, Any]:
    """The options of `batch_by_size` in ``cfg.dataset``."""
    return {
        "max_tokens": cfg["max_tokens"],
        "max_sentences": cfg["batch_size"],
        "required_batch_size_multiple": cfg["required_batch_size_multiple"],
    }


# --- the order of an epoch ----------------------------------------------------------------------


def order_batches(self: Any, epoch: int, fix_batches_to_gpus: bool, shuffle: bool) -> Batches:
    """In place of `EpochBatchIterator.ordered_batches`: this worker's, of what is left to do."""
    rest = self.rest
    if rest is None or rest.epoch != epoch:
        self.asked = (epoch, fix_batches_to_gpus, shuffle)
        whole: Batches = fairseq_ordered(self, epoch, fix_batches_to_gpus, shuffle)
        return whole
    left = rest.order[rest.skip :]
    mine = list(left[self.shard_id :: self.num_shards])
    mine += [[]] * (math.ceil(len(left) / self.num_shards) - len(mine))
    if self._supports_prefetch:
        self.dataset.prefetch([i for batch in mine for i in batch])
    return mine


def order_of_all(
    itr: EpochBatchIterator,
    epoch: int,
    shuffle: bool,
    workers: int,
    batches: Batches | None = None,
) -> Batches:
    """All batches of an epoch, as they are dealt out to `workers` workers in turns."""
    all_of_it = copy.copy(itr)
    all_of_it.rest, all_of_it._supports_prefetch = None, False
    all_of_it.num_shards = workers if itr.grouped_shuffling else 1
    if batches is not None:
        all_of_it._frozen_batches = tuple(batches)
    shards = []
    for worker in range(all_of_it.num_shards):
        all_of_it.shard_id = worker
        shards.append(all_of_it.ordered_batches(epoch, False, shuffle))
    order = [batch for turn in zip(*shards) for batch in turn]
    while order and not len(order[-1]):
        order.pop()
    return order


def has_known_order(itr: EpochBatchIterator) -> bool:
    """Whether the order of `itr` is that of `order_of_all`."""
    plain = type(itr)._get_iterator_for_epoch is EpochBatchIterator._get_iterator_for_epoch
    return plain and not (itr._supports_prefetch and itr.asked is not None and itr.asked[1])


def sentences(batches: Batches) -> np.ndarray:
    parts = [np.asarray(batch, dtype=np.int64) for batch in batches if len(batch)]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def mark(itr: EpochBatchIterator, batches: Batches, before: Any = None) -> np.ndarray:
    """A bool for every sentence: whether it is in `before` or in `batches`."""
    seen = np.zeros(len(itr.dataset), dtype=bool) if before is None else before.copy()
    seen[sentences(batches)] = True
    return seen


def to_bits(seen: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.packbits(seen))


def from_bits(bits: torch.Tensor, count: int) -> np.ndarray:
    return np.unpackbits(bits.numpy(), count=count).astype(bool)


# --- saving -------------------------------------------------------------------------------------


def save_position(self: Any) -> dict[str, Any]:
    """In place of `EpochBatchIterator.state_dict`: with the position counted over all workers."""
    state: dict[str, Any] = fairseq_state_dict(self)
    state["workers"] = self.num_shards
    if self.origin is not None:
        fixed = self.origin.kept and not callable(self.batch_sampler)
        state["made_for_epoch"] = self.origin.made_for if fixed else state["epoch"]
        state["update_freq"] = update_freq(self, state["epoch"])
    if self.end_of_epoch() or not has_known_order(self):
        return state
    rest = self.rest
    if rest is None or rest.epoch != self.epoch:
        epoch, _, shuffle = self.asked or (self.epoch, False, self.shuffle)
        order = order_of_all(self, epoch, shuffle, self.num_shards)
        rest = RestOfEpoch(epoch, order, 0, self.num_shards)
    done = min(rest.skip + self.iterations_in_epoch * self.num_shards, len(rest.order))
    seen = mark(self, rest.order[:done], rest.before)
    state.update(sentences=len(seen), batches_seen=done, order_of=rest.workers, seen=to_bits(seen))
    if rest.before is not None:
        state["seen_before"] = to_bits(rest.before)
        total = len(sentences(self.frozen_batches))
        state["iterations_in_epoch"] = int(len(self) * int(seen.sum()) / total)
    return state


def update_freq(itr: EpochBatchIterator, epoch: int) -> int:
    return 1 if itr.origin is None else of_epoch(itr.origin.update_freq, epoch)


def of_epoch(update_freq: Sequence[int], epoch: int) -> int:
    """The value of ``--update-freq`` in an epoch: the last one goes on."""
    return int(update_freq[min(epoch, len(update_freq)) - 1])


# --- resuming -----------------------------------------------------------------------------------


def load_position(self: Any, state_dict: dict[str, Any]) -> None:
    """In place of `EpochBatchIterator.load_state_dict`: go on after what was seen."""
    state, self.rest = state_dict, None
    if not state.get("iterations_in_epoch") and "seen" not in state:
        fairseq_load_state_dict(self, state)
        return
    if not has_known_order(self):
        fairseq_load_state_dict(self, by_workers(self, state))
        return
    self.epoch, self._next_epoch_itr = state["epoch"], None
    if callable(self.batch_sampler):
        self._frozen_batches = None
    if hasattr(self.dataset, "set_epoch"):
        self.dataset.set_epoch(self.epoch)
    rest = what_is_left(self, state)
    if rest is not None:
        resume_with(self, rest, state.get("shuffle", True))


def resume_with(itr: EpochBatchIterator, rest: RestOfEpoch, shuffle: bool) -> None:
    """Let the next epoch of `itr` be `rest`, or the one after if that is too short."""
    # fairseq counts a worker's batches in whole updates, or it would begin the epoch again.
    freq = update_freq(itr, rest.epoch)
    done = rest.skip // (itr.num_shards * freq) * freq
    skip = rest.skip - done * itr.num_shards
    each = math.ceil((len(rest.order) - skip) / itr.num_shards)
    if itr.skip_remainder_batch:
        each = (each - 1) // freq * freq
    if done >= each:
        log_once(itr, f"nothing is left of epoch {rest.epoch}: going on with the next")
        itr.epoch += 1
        return
    itr.rest = replace(rest, skip=skip)
    itr._next_epoch_itr = itr._get_iterator_for_epoch(rest.epoch, shuffle, offset=done)


def what_is_left(itr: EpochBatchIterator, state: dict[str, Any]) -> RestOfEpoch | None:
    """Of the epoch in `state`; None: begin it anew."""
    epoch, shuffle, count = state["epoch"], state.get("shuffle", True), len(itr.dataset)
    if state.get("sentences", count) != count:
        log_once(
            itr,
            f"the checkpoint is of {state['sentences']} training samples, the data have {count}: "
            f"epoch {epoch} begins anew, and what is known from before comes twice",
        )
        return None
    workers = state.get("order_of") or state.get("workers") or itr.num_shards
    before = batches = None
    if "seen_before" in state and can_batch(itr):
        before = from_bits(state["seen_before"], count)
        batches = batch_anew(itr, ~before)
    order = order_of_all(itr, epoch, shuffle, workers, batches)
    if "seen" in state:
        done, seen = state["batches_seen"], from_bits(state["seen"], count)
    else:
        found = seen_by_old(itr, state, order, workers)
        if found is None:
            log_once(
                itr,
                f"the checkpoint does not tell which samples of epoch {epoch} it has seen, and its "
                f"options or data were others: the epoch begins anew, and they come twice",
            )
            return None
        done, seen = 0, found
    if not np.array_equal(seen, mark(itr, order[:done], before)):
        done = first_unseen(order, seen)
    twice = seen.sum() - mark(itr, order[:done], before).sum()
    if not twice:
        log_numbers(itr, state, done, len(order))
        return RestOfEpoch(epoch, order, done, workers, before)
    why = f"epoch {epoch} cannot go on with the batches of the checkpoint, which were others"
    if not can_batch(itr):
        log_once(itr, f"{why}: {twice} of {count} samples come twice, none is left out")
        return RestOfEpoch(epoch, order, done, workers, before)
    left = batch_anew(itr, ~seen)
    log_once(
        itr,
        f"{why} (--batch-size, --max-tokens, --seed?): the {len(sentences(left))} samples not "
        f"seen yet, of {count}, make {len(left)} new batches; none comes twice, none is left out",
    )
    order = order_of_all(itr, epoch, shuffle, itr.num_shards, left)
    return RestOfEpoch(epoch, order, 0, itr.num_shards, seen)


def can_batch(itr: EpochBatchIterator) -> bool:
    return itr.origin is not None and not getattr(itr, "in_order", False)


def batch_anew(itr: EpochBatchIterator, which: np.ndarray, options: Any = None) -> Batches:
    """Batches of those sentences that `which` marks, in their order by length."""
    by_length = sentences(itr.frozen_batches)
    options = options or itr.origin.batching
    batches: Batches = itr.dataset.batch_by_size(by_length[which[by_length]], **options)
    return batches


def seen_by_old(
    itr: EpochBatchIterator, state: dict[str, Any], order: Batches, workers: int
) -> np.ndarray | None:
    """What a job had seen that stored nothing but its options, as far as they tell.

    `order` is that of `workers` workers, with the options of now.
    """
    turns, options = state["iterations_in_epoch"], state.get("batching")
    if state.get("seed", itr.seed) != itr.seed:
        return None
    now = None if itr.origin is None else itr.origin.batching
    dealt = workers
    if not getattr(itr, "in_order", False):
        if options is not None and now is not None and options != now:
            everything = batch_anew(itr, np.ones(len(itr.dataset), dtype=bool), options)
            shuffle = state.get("shuffle", True)
            order = order_of_all(itr, state["epoch"], shuffle, workers, everything)
    elif workers != itr.num_shards or options != now:
        if options is None or now is None:
            return None
        if options["max_sentences"] * workers != now["max_sentences"] * itr.num_shards:
            return None
        dealt = itr.num_shards  # the same streams, a block of each in every turn
    if turns * dealt >= len(order):
        return None
    return mark(itr, order[: turns * dealt])


def first_unseen(order: Batches, seen: np.ndarray) -> int:
    """How many batches at the beginning of `order` hold nothing new."""
    for n, batch in enumerate(order):
        if not seen[np.asarray(batch, dtype=np.int64)].all():
            return n
    return len(order)


def by_workers(itr: EpochBatchIterator, state: dict[str, Any]) -> dict[str, Any]:
    """`state`, with the position in batches of this number of workers, rounded down."""
    done = state["iterations_in_epoch"] * state.get("workers", itr.num_shards)
    each, more = divmod(done, itr.num_shards)
    if more:
        log_once(itr, f"{more} batches of epoch {state['epoch']} come twice, none is left out")
    return {**state, "iterations_in_epoch": each}


def log_numbers(itr: EpochBatchIterator, state: dict[str, Any], done: int, total: int) -> None:
    """Say where an epoch goes on, if that looks different than in the job that saved."""
    was = state.get("workers", itr.num_shards)
    now = itr.num_shards * update_freq(itr, state["epoch"])
    update = was * state.get("update_freq", update_freq(itr, state["epoch"]))
    if was == itr.num_shards and update == now:
        return
    text = f"epoch {state['epoch']} goes on after batch {done} of {total} of all workers"
    text += f" ({was} before, {itr.num_shards} now)"
    if now != update:
        text += f"; an update was {update} batches and is {now}: --update-freq"
    log_once(itr, text)


def log_once(itr: EpochBatchIterator, text: str) -> None:
    if itr.shard_id == 0:
        logger.info(text)


# --- checkpoints without a position --------------------------------------------------------------


def complete(state: dict[str, Any]) -> None:
    """Put into a loaded checkpoint what its position needs and its configuration tells."""
    position = (state.get("extra_state") or {}).get("train_iterator") or {}
    cfg = state.get("cfg")
    if not position.get("iterations_in_epoch") or "workers" in position or not cfg:
        return
    world = cfg["distributed_training"]["distributed_world_size"]
    position["workers"] = max(world // cfg["common"]["model_parallel_size"], 1)
    position["batching"] = batching(cfg["dataset"])
    position["update_freq"] = of_epoch(cfg["optimization"]["update_freq"], position["epoch"])
    position["made_for_epoch"] = began(state, position)
    position["seed"] = cfg["common"]["seed"]
    if cfg["dataset"]["update_ordered_indices_seed"]:
        position["seed"] += position["made_for_epoch"]


def began(state: dict[str, Any], position: dict[str, Any]) -> int:
    """The epoch in which the job that saved was started: fairseq keeps the batches of that one."""
    epoch: int = position["epoch"]
    history: list[dict[str, int]] = state["optimizer_history"]
    if state["cfg"]["dataset"]["update_epoch_batch_itr"]:
        return epoch
    resumed_at = history[-2]["num_updates"] if len(history) > 1 else 0
    here: int = position["iterations_in_epoch"] // position["update_freq"]
    full = (history[-1]["num_updates"] - here) // max(epoch - 1, 1)
    return min(1 + resumed_at // full, epoch) if full > 0 else epoch


@contextlib.contextmanager
def completing() -> Iterator[None]:
    """While a trainer reads a checkpoint: see `complete`."""
    load = checkpoint_utils.load_checkpoint_to_cpu

    def and_complete(*args: Any, **kwargs: Any) -> Any:
        state = load(*args, **kwargs)
        complete(state)
        return state

    checkpoint_utils.load_checkpoint_to_cpu = and_complete
    try:
        yield
    finally:
        checkpoint_utils.load_checkpoint_to_cpu = load


fairseq_ordered = EpochBatchIterator.ordered_batches
fairseq_state_dict = EpochBatchIterator.state_dict
fairseq_load_state_dict = EpochBatchIterator.load_state_dict


def install() -> None:
    EpochBatchIterator.rest = EpochBatchIterator.asked = EpochBatchIterator.origin = None
    EpochBatchIterator.ordered_batches = order_batches
    EpochBatchIterator.state_dict = save_position
    EpochBatchIterator.load_state_dict = load_position
