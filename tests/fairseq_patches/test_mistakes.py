"""What people get wrong: one line with exit code 2, before any worker starts.

Each row is a mistake and what is said. Those that only show when data or models are read are made
by commands that run to their end.
"""

from __future__ import annotations

import pytest
from jobs import TINY_LSTM, USER_DIR
from rehearse import Rehearsal
from warm import Warm

from fairseq_hybrid.errors import user_line

JOB = (*TINY_LSTM, "--cpu", "--optimizer", "adam", "--lr", "0.1", "--max-tokens", "200")


@pytest.fixture(scope="module")
def rehearse(tmp_path_factory):
    rehearsal = Rehearsal(tmp_path_factory.mktemp("rehearsal"), look_at_data=True)
    yield rehearsal
    rehearsal.close()


BEFORE_WORKERS = [
    ("--seed=-1", "--seed -1 is not a seed: give 0 to"),
    ("--batch-size=0", "--batch-size 0 is not a number of sentences: give 1 or more"),
    ("--max-tokens=-5", "--max-tokens -5 is not a number of words: give 1 or more"),
    ("--update-freq 0", "--update-freq [0] is not a number of batches: give 1 or more"),
    ("--num-workers=-1", "--num-workers -1 is not a number of processes: give 0 or more"),
    ("--max-tokns 100", "--max-tokns is not known: did you mean --max-tokens"),
    ("--share-all", "--share-all is not known: did you mean --share-all-embeddings"),
    ("--sample-random 5", "--sample-random is an option of --criterion sampled_softmax: choose"),
    ("--ng-alpha 4", "--ng-alpha is an option of --optimizer ng_sgd: choose that, or leave it"),
    ("--lr-scheduler exponential", "must know when training ends: give --max-update or --max-"),
    ("--lr-scheduler newbob --lr-scale-workers x", "--lr-scale-workers x is not known: use none"),
    ("--bf16", "--bf16 is for TPUs in fairseq and needs torch_xla"),
    ("--fp16", "--fp16 on CPU workers needs --fp16-no-flatten-grads or --memory-efficient-fp16"),
    ("--fp16 --bf16", "Cannot combine --fp16 and --tpu"),
    ("--optimizer sgd --memory-efficient-fp16", "does not go with --optimizer sgd: use --opt"),
    ("--tpu", "--tpu is for TPUs in fairseq and needs torch_xla"),
    ("--arch lsmt", "--arch lsmt is not known: did you mean lstm"),
    ("--task translaton", "--task translaton is not known: did you mean translation"),
    ("--criterion x_entropy", "--criterion x_entropy is not known: did you mean"),
    ("--lr fast", "--lr: invalid"),
    ("--restore-file no.pt", "--restore-file no.pt does not exist"),
]


@pytest.mark.parametrize(("flags", "said"), BEFORE_WORKERS, ids=[f for f, _ in BEFORE_WORKERS])
def test_before_workers(rehearse, data, flags, said):
    result = rehearse(["fairseq-hybrid-train", str(data), *JOB, *flags.split()])
    assert said in result.error()
    assert result.code == 2


def test_no_arch(rehearse, data):
    words = ("--cpu", "--optimizer", "adam", "--max-tokens", "200")
    result = rehearse(["fairseq-hybrid-train", str(data), *words])
    assert "--arch is not given: name a model, as --arch hybrid_lstm" in result.error()
    assert result.code == 2


def test_a_file_where_the_data_folder_should_be(rehearse, text):
    result = rehearse(["fairseq-hybrid-train", str(text / "train.de"), *JOB])
    assert "train.de does not exist: make it with fairseq-preprocess" in result.error()


WHILE_LOADING = [
    ("--max-tokens 5", "--max-tokens 5 is less than the longest sentence: give more"),
    ("--valid-subset vaild", "has no data set vaild"),
    ("--encoder-embed-dim=-5", "a size of the model is -5: give 1 or more to --encoder-embed-dim"),
]


@pytest.mark.parametrize(("flags", "said"), WHILE_LOADING)
def test_while_loading(server, data, tmp_path, flags, said):
    save = ("--save-dir", tmp_path / "save", "--max-update", "1")
    words = ("fairseq-train", data, "--user-dir", USER_DIR, *JOB, *save, *flags.split())
    result = Warm(server, words, tmp_path).finish()
    assert said in result.error()
    assert result.code == 2


def test_fairseqs_plain_exceptions_that_name_a_flag():
    assert user_line(Exception("too long, skip it with --skip-it")) is not None
    assert user_line(Exception("too long")) is None
