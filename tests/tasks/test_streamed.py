"""`streamed_language_modeling`: the order of its batches, and learning across their edges."""

from __future__ import annotations

import math
import random
import re
from argparse import Namespace
from collections import Counter, defaultdict
from itertools import chain

import numpy as np
import pytest
import torch
from fairseq.data import (
    Dictionary,
    IdDataset,
    ListDataset,
    MonolingualDataset,
    NestedDictionaryDataset,
    NumelDataset,
    TokenBlockDataset,
)
from jobs import USER_DIR

from fairseq_hybrid.tasks.streamed_language_modeling import StreamedLanguageModelingTask
from fairseq_hybrid.tasks.streams import Streams

BLOCK = 5


def dictionary(words=50):
    result = Dictionary()
    for i in range(words):
        result.add_symbol(f"w{i}")
    return result


def task_with(tokens: int, split: str = "train") -> StreamedLanguageModelingTask:
    """A task with a random corpus of so many tokens as its `split`."""
    vocab, chance = dictionary(), random.Random(tokens)
    words = [chance.randrange(vocab.nspecial, len(vocab)) for _ in range(tokens)]
    sentences = []
    while words:
        length = min(chance.randint(1, 9), len(words))
        sentence, words = words[:length], words[length:]
        sentences.append(torch.tensor([*sentence[:-1], vocab.eos()]))
    blocks = TokenBlockDataset(
        *(sentences, [len(s) for s in sentences], BLOCK),
        pad=vocab.pad(),
        eos=vocab.eos(),
        break_mode="none",
        include_targets=True,
    )
    args = Namespace(train_subset="train", tokens_per_sample=BLOCK, data="")
    task = StreamedLanguageModelingTask(args, vocab)
    task.corpus = torch.cat(sentences)
    task.datasets[split] = MonolingualDataset(
        blocks, blocks.sizes, vocab, shuffle=True, targets=["future"]
    )
    return task


def read(task, split="train", *, batch_size=4, workers=1, rank=0, epochs=1) -> list[dict]:
    """The batches of one worker, as `fairseq-train` gets them."""
    iterator = task.get_batch_iterator(
        dataset=task.dataset(split),
        max_sentences=batch_size,
        max_tokens=None,
        num_shards=workers,
        shard_id=rank,
        disable_iterator_cache=True,
    )
    return [b for _ in range(epochs) for b in iterator.next_epoch_itr(shuffle=True)]


def source(batch):
    return batch["net_input"]["src_tokens"]


# --- order --------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("rest", [False, True])
def test_every_shape_of_streams(workers, size, rest):
    streams = workers * size
    for blocks in range(streams, 5 * streams + 1):
        batches = list(Streams.cut(blocks, streams, rest=rest).batches(workers))
        steps = [list(chain(*batches[i : i + workers])) for i in range(0, len(batches), workers)]
        used = sorted(block for step in steps for block in step)
        assert used == list(range(blocks if rest else blocks // streams * streams))
        for before, after in zip(steps, steps[1:]):
            assert after == [block + 1 for block in before[: len(after)]]
        for w in range(workers):  # what each worker sees only shrinks, too
            mine = batches[w::workers]
            for before, after in zip(mine, mine[1:]):
                assert after == [block + 1 for block in before[: len(after)]]


def test_streams_are_contiguous_text():
    task = task_with(5 * 4 * 7 + 3)  # 4 streams of 7 blocks, and a rest that is left out
    batches = read(task, batch_size=4, epochs=2)
    assert len(batches) == 14
    for i, batch in enumerate(batches):
        assert batch["net_input"]["fresh"].tolist() == [i % 7 == 0] * 4
        assert batch["target"].shape == (4, BLOCK)
    for epoch in (batches[:7], batches[7:]):  # the same order again: nothing is shuffled
        target = torch.cat([b["target"] for b in epoch], 1)
        assert torch.equal(target.flatten(), task.corpus[: 4 * 7 * BLOCK])
        inputs = torch.cat([source(b) for b in epoch], 1)
        assert torch.equal(inputs[:, 1:], target[:, :-1])


@pytest.mark.parametrize("tokens", [5 * 4 * 7, 5 * 4 * 7 + 12])
@pytest.mark.parametrize("split", ["train", "valid"])
def test_workers_together_see_what_one_worker_sees(tokens, split):
    task = task_with(tokens, split)
    alone = read(task, split, batch_size=4)
    together = zip(*(read(task, split, batch_size=2, workers=2, rank=r) for r in (0, 1)))
    for expected, parts in zip(alone, together):
        parts = [p for p in parts if p]  # a worker whose streams have ended gets {}
        assert torch.equal(torch.cat([source(p) for p in parts]), source(expected))
        assert torch.equal(torch.cat([p["target"] for p in parts]), expected["target"])
        fresh = torch.cat([p["net_input"]["fresh"] for p in parts])
        assert torch.equal(fresh, expected["net_input"]["fresh"])
    assert len(alone) == len(read(task, split, batch_size=2, workers=2, rank=1))


@pytest.mark.parametrize("tokens", [5 * 4 * 7, 5 * 4 * 7 + 1, 5 * 4 * 7 + 13, 13])
def test_validation_reads_every_token_once(tokens):
    task = task_with(tokens, "valid")
    streams = defaultdict(list)
    for batch in read(task, "valid", batch_size=4):
        for row, target in enumerate(batch["target"]):
            streams[row] += target[target.ne(1)].tolist()
        assert batch["ntokens"] == batch["target"].ne(1).sum()
    assert list(chain(*(streams[row] for row in sorted(streams)))) == task.corpus.tolist()


def test_scoring_reads_all_of_the_training_data():
    task = task_with(5 * 4 * 7 + 13)
    batches = task.eval_lm_dataloader(task.dataset("train"), batch_size=4, num_workers=0)
    assert sum(batch["ntokens"] for batch in batches) == 5 * 4 * 7 + 13


@pytest.mark.parametrize("shuffle", [False, True])
def test_resuming_goes_on_with_the_next_batch(shuffle):
    """Even from a checkpoint that says its batches were shuffled."""
    task = task_with(5 * 4 * 7)
    options = dict(dataset=task.dataset("train"), max_sentences=4, disable_iterator_cache=True)
    expected = read(task, batch_size=4)
    iterator = task.get_batch_iterator(**options)
    epoch = iterator.next_epoch_itr(shuffle=True)
    for _ in range(3):
        next(epoch)
    resumed = task.get_batch_iterator(**options)
    resumed.load_state_dict(iterator.state_dict() | {"shuffle": shuffle})
    left = list(resumed.next_epoch_itr(shuffle=True))
    assert [b["id"].tolist() for b in left] == [b["id"].tolist() for b in expected[3:]]
    assert not any(b["net_input"]["fresh"].any() for b in left)


def test_iterator_of_a_dataset_is_used_again():
    task = task_with(5 * 4 * 7)
    options = dict(dataset=task.dataset("train"), max_sentences=4)
    assert task.get_batch_iterator(**options) is task.get_batch_iterator(**options)


def test_lines_typed_in_are_no_streams():
    task = task_with(40)
    typed = ListDataset([torch.ones(n) for n in (4, 2, 3)])
    typed = NestedDictionaryDataset(
        {"id": IdDataset(), "lengths": NumelDataset(typed)}, sizes=[np.array([4, 2, 3])]
    )
    (batch,) = task.get_batch_iterator(typed, max_tokens=100).next_epoch_itr(shuffle=False)
    assert sorted(batch["lengths"].tolist()) == [2, 3, 4]


# --- refusals -----------------------------------------------------------------------------------


def one_line(error) -> str:
    message = str(error.value)
    assert "\n" not in message
    return message


def test_batch_size_is_needed():
    with pytest.raises(ValueError, match="--batch-size") as error:
        read(task_with(100), batch_size=None)
    one_line(error)


def test_more_streams_than_blocks_are_refused_in_training_only():
    tokens = 5 * 5 + 4  # the sixth block is not whole
    with pytest.raises(ValueError, match="--batch-size 3 on 2 workers") as error:
        read(task_with(tokens), batch_size=3, workers=2)
    assert "5 blocks of --tokens-per-sample 5" in one_line(error)
    assert len(read(task_with(tokens, "valid"), "valid", batch_size=9)) == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"sample_break_mode": "eos"}, "--sample-break-mode eos"),
        ({"add_bos_token": True}, "--add-bos-token"),
        ({"pad_to_fixed_bsz": True}, "--pad-to-fixed-bsz"),
    ],
)
def test_what_breaks_the_text_up_is_refused(options, says):
    plain = dict(sample_break_mode="none", add_bos_token=False, pad_to_fixed_bsz=False, data=None)
    StreamedLanguageModelingTask.setup_task(Namespace(**plain))
    with pytest.raises(ValueError, match=says) as error:
        StreamedLanguageModelingTask.setup_task(Namespace(**(plain | options)))
    one_line(error)


def test_context_window_is_refused():
    task = task_with(100)
    with pytest.raises(ValueError, match="--context-window 3") as error:
        task.eval_lm_dataloader(task.dataset("train"), batch_size=2, context_window=3)
    one_line(error)


# --- the commands, on a text that cannot be learnt block by block -------------------------------

LENGTH = 4
"""words per block, fewer than a line of the text has"""


def lines(count: int, seed: int) -> str:
    """A letter three times, at fixed places among n's."""
    chance = random.Random(seed)
    letters = [chance.choice("abcd") for _ in range(count)]
    return "".join(f"{k} n {k} n n {k}\n" for k in letters)


def least_perplexity(text: str, block: int) -> float:
    """Of any model that knows all about this text but sees nothing before its block."""
    words = " ".join(f"{line} </s>" for line in text.splitlines()).split()
    after = defaultdict(Counter)
    for i in range(1, len(words)):
        after[tuple(words[max(i // block * block - 1, 0) : i])][words[i]] += 1
    bits = -sum(n * math.log2(n / sum(c.values())) for c in after.values() for n in c.values())
    return 2 ** (bits / len(words))


@pytest.fixture(scope="module")
def letters(server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("letters")
    for seed, (split, size) in enumerate((("train", 3000), ("valid", 200), ("test", 200))):
        (folder / split).write_text(lines(size, seed))
    prefixes = [f"--{split}pref={folder / split}" for split in ("train", "valid", "test")]
    server.run("fairseq-preprocess", "--only-source", *prefixes, "--destdir", folder / "data").ok()
    return folder


@pytest.fixture(scope="module")
def trained(server, letters, tmp_path_factory):
    """Three epochs and a half, with a validation in the middle of one."""
    folder = tmp_path_factory.mktemp("model")
    done = server.run(
        *("fairseq-train", letters / "data", "--user-dir", USER_DIR, "--cpu", "--seed", "1"),
        *("--task", "streamed_language_modeling", "--tokens-per-sample", LENGTH),
        *("--arch", "hybrid_lstm_lm", "--decoder-layers", "1", "--dropout", "0"),
        *("--decoder-embed-dim", "32", "--decoder-hidden-size", "32"),
        *("--batch-size", "60", "--batch-size-valid", "2", "--max-update", "300"),
        *("--optimizer", "adam", "--lr", "0.03", "--clip-norm", "1.0", "--num-workers", "0"),
        *("--validate-interval", "9", "--validate-interval-updates", "200"),
        *("--save-dir", folder, "--no-epoch-checkpoints", "--log-format", "simple"),
    ).ok()
    return folder / "checkpoint_last.pt", done


def evaluate(server, letters, checkpoint, *more) -> tuple[int, float]:
    """(words, perplexity) of the test text by `fairseq-eval-lm`."""
    done = server.run(
        *("fairseq-eval-lm", letters / "data", "--user-dir", USER_DIR, "--cpu", "--path"),
        *(checkpoint, "--gen-subset", "test", *more),
    ).ok()
    words = re.search(r"Evaluated ([\d,]+) tokens", done.all)[1].replace(",", "")
    return int(words), float(re.search(r"Perplexity: ([\d.]+)", done.all)[1])


def test_learns_what_no_block_shows(letters, trained):
    """The text's own perplexity is 2 ** (2 / 7) = 1.22: two bits per line of seven words."""
    perplexities = [float(p) for p in re.findall(r"\| valid .* ppl ([\d.]+)", trained[1].out)]
    assert len(perplexities) == 2
    assert perplexities[-1] < 1.4 < 1.7 < least_perplexity(lines(200, 1), LENGTH)


def test_scores_with_carried_state_are_those_of_long_blocks(server, letters, trained):
    """Two streams in blocks of 4 words are two blocks of 700 words."""
    checkpoint, _ = trained
    streamed = evaluate(
        *(server, letters, checkpoint, "--task", "streamed_language_modeling"),
        *("--batch-size", "2", "--tokens-per-sample", LENGTH),
    )
    long = evaluate(
        server, letters, checkpoint, "--tokens-per-sample", "700", "--max-tokens", "2000"
    )
    assert streamed == long
    assert long[0] == 1400
    assert long[1] < 1.4


def test_generates_the_rest_of_a_line(server, letters, trained):
    """A line per block of seven words: two of them tell how it goes on.

    Streams hardly ever begin where a line does, so not all letters have been learnt that way.
    """
    done = server.run(
        *("fairseq-generate", letters / "data", "--user-dir", USER_DIR, "--cpu", "--path"),
        *(trained[0], "--task", "language_modeling", "--tokens-per-sample", "7"),
        *("--prefix-size", "2", "--beam", "3", "--batch-size", "100", "--max-len-b", "10"),
    ).ok()
    found = re.findall(r"^H-(\d+)\t\S+\t(.*)$", done.out, re.M)
    expected = lines(200, 2).splitlines()
    assert len(found) == 200
    assert all(words[:3] == expected[int(i)][:3] for i, words in found)
    assert sum(words == expected[int(i)] for i, words in found) >= 80
