"""`--ddp-backend sampled` on real workers: the update of one worker on the joined batch."""

from __future__ import annotations

import pytest
import torch
from jobs import curve, train_command
from torch import nn
from warm import Warm

from fairseq_hybrid.backends import sampled

SEQUENCES = 8
LM = (
    *("--task", "streamed_language_modeling", "--arch", "hybrid_lstm_lm", "--dropout", "0"),
    *("--decoder-embed-dim", "16", "--decoder-hidden-size", "16", "--tokens-per-sample", "10"),
)
SAMPLED = ("--criterion", "sampled_softmax", "--sample-frequent", "20", "--sample-random", "30")
UPDATES = 12


def options(workers: int, *more: str) -> list[str]:
    backend = ("--ddp-backend", "sampled") if workers > 1 else ()
    return [
        *SAMPLED, "--distributed-world-size", str(workers), *backend,
        *("--batch-size", str(SEQUENCES // workers), "--max-update", str(UPDATES)),
        *("--clip-norm", "0.5", "--disable-validation", "--no-epoch-checkpoints", *more),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def job(server, words):
    """Trains, and returns the log and the checkpoint."""

    def run_it(folder, workers: int, *more: str, data=words, arch=LM):
        folder.mkdir(exist_ok=True)
        command = train_command(data, folder, *options(workers, *more), arch=arch)
        result = Warm(server, command, folder).finish().ok()
        return result, torch.load(folder / "checkpoint_last.pt", weights_only=False)

    return run_it


def assert_same(expected, got, tolerance=1e-5):
    for key in ("loss", "gnorm", "words"):
        wanted, found = curve(expected[0], key), curve(got[0], key)
        assert len(wanted) == UPDATES
        assert found == pytest.approx(wanted, rel=tolerance, abs=2e-3)  # as many digits as logged
    for name, value in expected[1]["model"].items():
        torch.testing.assert_close(got[1]["model"][name], value, rtol=tolerance, atol=tolerance)
    states = [system[1]["last_optimizer_state"]["state"] for system in (expected, got)]
    rows = 0
    for number, state in states[0].items():
        for name, value in state.items():
            found = states[1][number][name]
            if torch.is_tensor(value):
                torch.testing.assert_close(found, value, rtol=tolerance, atol=tolerance)
            else:
                assert found == value
            if name == "row_steps":
                assert 0 <= value.min() < value.max() <= UPDATES  # lazily, not every row each time
                rows += 1
    return rows


@pytest.fixture(scope="module")
def alone(job, tmp_path_factory):
    return job(tmp_path_factory.mktemp("alone"), 1)


@pytest.mark.parametrize("workers", [2, 4])
def test_equals_one_worker_on_the_joined_batch(job, alone, tmp_path, workers):
    got = job(tmp_path, workers)
    assert "gradients are summed in memory that the workers share" in got[0].all
    assert assert_same(alone, got) == 3  # input embedding, output weight and bias
    sent = curve(got[0], "sent_mb")
    assert min(sent.values()) > 0


def test_equals_it_by_messages_too(job, alone, tmp_path):
    """As between machines; above the workers share memory."""
    got = job(tmp_path, 2, "--sums-through", "messages")
    assert "gradients are summed by messages" in got[0].all
    assert assert_same(alone, got) == 3


def test_shared_embeddings_sgd_and_update_freq(job, tmp_path):
    more = (
        *("--share-decoder-input-output-embed", "--optimizer", "sgd", "--momentum", "0.9"),
        *("--lr", "0.5", "--update-freq", "2"),
    )
    alone = job(tmp_path / "alone", 1, *more)
    assert_same(alone, job(tmp_path / "two", 2, *more))


TRANSLATION = (
    *("--arch", "hybrid_lstm", "--encoder-layers", "2", "--dropout", "0"),
    *("--encoder-embed-dim", "16", "--encoder-hidden-size", "16"),
)


@pytest.mark.parametrize(
    "more",
    [pytest.param((), marks=pytest.mark.long), ("--share-decoder-input-output-embed",)],
    ids=["", "shared"],
)
def test_the_wavefront_makes_the_same_updates(job, data, tmp_path, more):
    """hybrid against sampled, both on 2 workers with the same batches and the same words."""
    systems = [
        job(tmp_path / name, 2, "--ddp-backend", name, *more, data=data, arch=TRANSLATION)
        for name in ("sampled", "hybrid")
    ]
    assert_same(*systems)


def test_only_sampled_rows_travel(job, tmp_path):
    """Bytes in the log against what data parallelism sends of the same model."""
    result, checkpoint = job(tmp_path, 2, "--decoder-embed-dim", "256")
    weights = checkpoint["model"]
    vocabulary = weights["decoder.output_weight"].size(0)
    tables = [w for w in weights.values() if w.size(0) == vocabulary]
    assert len(tables) == 3
    hidden = sum(w.numel() for w in weights.values()) - sum(w.numel() for w in tables)
    # (the words read are about those to be predicted: not more rows than the sample has)
    rows = max(curve(result, "words").values())
    some = rows * sum(w.size(1) for w in tables)
    sent = max(curve(result, "sent_mb").values()) * 1e6 / 2  # per worker; rounded to 0.01 MB
    sets = 2 * vocabulary  # a byte for each word in the unions of target words and of words read
    assert 4 * hidden - 5_000 < sent < 4 * (hidden + some) + sets + 5_000
    assert sent < 0.5 * 4 * sum(w.numel() for w in weights.values())


FIRST, LAST = slice(10), slice(-10, None)
LEARNT = 0.25
"""of the loss, in bits: more than the words' frequencies, which the model begins with"""


def test_hidden_rows_that_are_not_sent_come_later(job, tmp_path):
    """Half of the hidden rows per update: less is sent, and it still learns as well."""
    more = ("--max-update", "200", "--lr", "0.01")
    whole = job(tmp_path / "whole", 2, *more)
    half = job(tmp_path / "half", 2, "--share-hidden-fraction", "0.5", *more)
    sent = [max(curve(system[0], "sent_mb").values()) for system in (whole, half)]
    assert sent[1] < sent[0]
    losses = [list(curve(system[0]).values()) for system in (whole, half)]
    assert losses[0] != losses[1]
    early, late = ([sum(values[part]) / 10 for values in losses] for part in (FIRST, LAST))
    assert late[1] < early[1] - LEARNT
    assert late[1] < late[0] + 0.3


def test_another_criterion_is_refused(server, words, tmp_path):
    more = ("--distributed-world-size", "2", "--ddp-backend", "sampled", "--batch-size", "4")
    command = train_command(words, tmp_path, *more, "--criterion", "cross_entropy", arch=LM)
    result = Warm(server, command, tmp_path).finish()
    assert "--ddp-backend sampled does not go with --criterion cross_entropy" in result.error()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--share-hidden-fraction", "0"), "--share-hidden-fraction 0.0 is not a share"),
        (("--sums-through", "memory"), "--sums-through memory is not known: use auto, messages"),
        (("--sample-random", "9999"), "--sample-random 9999 are more than the dictionary's"),
        (("--optimizer", "adadelta"), "--optimizer adadelta cannot update single rows"),
        (("--fp16",), "--fp16 does not go with --criterion sampled_softmax"),
    ],
)
def test_bad_input_is_one_line_before_any_worker_starts(server, words, tmp_path, more, message):
    command = train_command(words, tmp_path, *options(2), *more, arch=LM)
    assert message in Warm(server, command, tmp_path).finish().error()


def test_buckets_go_in_their_order(monkeypatch):
    """However backward reaches them, and not before they are asked for."""
    monkeypatch.setattr(sampled, "BUCKET", 16)
    params = [nn.Parameter(torch.ones(n)) for n in (4, 1, 3, 2)]  # [4], [1, 3], [2]
    sent = []
    early = sampled.Early(params, lambda grads: sent.append(len(grads)))
    assert [len(bucket) for bucket in early.buckets] == [1, 2, 1]
    sum(p.sum() for p in params).backward()
    assert early.pop() == [], "it does not listen yet"
    early.listens = True
    (params[1].sum() + params[2].sum() + params[3].sum()).backward()
    assert sent == [], "the first is missing"
    params[0].sum().backward()
    assert sent == [1, 2, 1]
    assert [bucket for bucket, _ in early.pop()] == early.buckets
    assert early.pop() == []
