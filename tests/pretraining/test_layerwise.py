"""Pretraining of whole networks: in pieces, on real workers, and as a start for fairseq-train."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest
import torch
from jobs import USER_DIR, curve, train_command, wait_for
from warm import Warm

import fairseq_hybrid  # noqa: F401  (names of fairseq's)
from fairseq_hybrid.errors import UserError
from fairseq_hybrid.pretraining import command, options

MODEL = (
    *("--arch", "feedforward_lm", "--ngram", "3", "--decoder-embed-dim", "8"),
    *("--hidden-layers", "3", "--hidden-size", "12", "--dropout", "0"),
)
PLAIN = ("--task", "language_modeling", "--tokens-per-sample", "20")
LOG = ("--cpu", "--seed", "3", "--log-format", "json", "--log-interval", "10")
QUICK = ("--rbm-minibatch", "64", "--rbm-gaussian-epochs", "1")


def flags(words: Path, folder: Path, *more: str) -> list[str]:
    all_words = (words, "--user-dir", USER_DIR, *PLAIN, *MODEL, *LOG, *QUICK)
    return [*map(str, all_words), "--save-dir", str(folder), *map(str, more)]


def prepared(words: Path, folder: Path, *more: str):
    """As the command does it, on one worker in this process."""
    cfg, settings = command.parse(flags(words, folder, *more))
    options.validate(cfg, settings)
    folder.mkdir(exist_ok=True)
    return command.prepare(cfg, settings)


def result(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / options.RESULT, weights_only=False)["model"]


def assert_same(ours: dict, theirs: dict) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert torch.equal(value, theirs[name]), name


def test_every_layer_is_the_one_of_its_machine_and_the_rest_stays(words, tmp_path):
    pretraining = prepared(words, tmp_path)
    decoder, seen = pretraining.model.decoder, []
    before = {name: value.clone() for name, value in pretraining.model.state_dict().items()}
    finish = pretraining._finish_layer

    def finish_layer():
        machine, below = pretraining.machine, pretraining.layer
        windows = pretraining.windows[torch.arange(50)]
        data = pretraining.inputs(windows)
        assert data.shape == (50, decoder.layers[below].in_features)
        wanted = machine.rbm.hidden(machine.rbm.units(data))
        finish()
        torch.testing.assert_close(pretraining.inputs(windows), wanted, rtol=0, atol=1e-5)
        seen.append((below, machine.rbm.gaussian, machine.update))

    pretraining._finish_layer = finish_layer
    pretraining.run()
    per_epoch = len(pretraining.windows) // 64
    assert seen == [(0, True, per_epoch), (1, False, per_epoch), (2, False, per_epoch)]
    after = result(tmp_path)
    changed = {name for name, value in before.items() if not torch.equal(value, after[name])}
    assert changed == {
        f"decoder.layers.{i}.{kind}" for i in range(3) for kind in ("weight", "bias")
    }
    assert not (tmp_path / options.PROGRESS).exists()


class Stopped(Exception):
    pass


@pytest.mark.parametrize("saves", [1, 4, 8], ids=lambda n: f"after_{n}_saves")
def test_a_resume_continues_exactly(words, tmp_path, saves):
    """Stopped after a save in the middle of an epoch, at its end, between layers."""
    more = ("--save-interval-updates", "40")
    prepared(words, tmp_path / "straight", *more).run()
    stopped = prepared(words, tmp_path / "stopped", *more)
    save, made = stopped.save, []

    def save_some():
        save()
        made.append(stopped.layer)
        if len(made) == saves:
            raise Stopped

    stopped.save = save_some
    with pytest.raises(Stopped):
        stopped.run()
    resumed = prepared(words, tmp_path / "stopped", *more)
    resumed.resume()
    assert resumed.layer == stopped.layer
    assert getattr(resumed.machine, "update", None) == getattr(stopped.machine, "update", None)
    resumed.run()
    assert_same(result(tmp_path / "straight"), result(tmp_path / "stopped"))


def test_embeddings_of_another_model(words, tmp_path):
    prepared(words, tmp_path / "first").run()
    other = ("--seed", "8", "--embeddings-from", tmp_path / "first" / options.RESULT)
    pretraining = prepared(words, tmp_path / "second", *other)
    name = "decoder.embed_tokens.weight"
    expected = result(tmp_path / "first")[name]
    assert torch.equal(pretraining.model.state_dict()[name], expected)
    message = r"needs decoder.embed_tokens.weight of \d+ words x --decoder-embed-dim 9, and it has"
    with pytest.raises(UserError, match=message):
        prepared(words, tmp_path / "third", *other, "--decoder-embed-dim", "9")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--activation", "relu"), "--activation relu cannot be pretrained"),
        (("--rbm-minibatch", "0"), "--rbm-minibatch 0 is too small: give 1 or more"),
        (("--rbm-epochs", "-1"), "--rbm-epochs -1 is too small"),
        (("--rbm-lr", "0"), "--rbm-lr 0.0 is too small: give more than 0"),
        (("--rbm-gaussian-lr", "nan"), "--rbm-gaussian-lr nan"),
        (("--rbm-final-momentum", "1"), "--rbm-final-momentum 1.0 is not a momentum"),
        (("--rbm-weight-decay", "-1"), "--rbm-weight-decay -1.0 is not a penalty"),
        (("--embeddings-from", "nowhere.pt"), "--embeddings-from nowhere.pt does not exist"),
        (("--rbm-minibatch", "9999999"), "--rbm-minibatch 9999999 on 1 workers is more than"),
        (
            ("--distributed-world-size", "2", "--averaging-interval", "0"),
            "--averaging-interval 0 is not a number of updates",
        ),
    ],
)
def test_what_cannot_work_is_refused(words, tmp_path, more, message):
    with pytest.raises(UserError, match=message):
        prepared(words, tmp_path, *more)


def test_other_models_are_refused(words, tmp_path):
    plain = (words, "--user-dir", USER_DIR, *PLAIN, "--arch", "lstm_lm", "--save-dir", tmp_path)
    with pytest.raises(UserError, match=r"--arch lstm_lm has no layers .* use feedforward_lm"):
        options.validate(*command.parse([str(word) for word in plain]))


def test_a_finished_or_different_pretraining_is_not_continued(words, tmp_path):
    first = prepared(words, tmp_path)
    first.machine = first.new_machine()
    first._begin()
    first.save()
    with pytest.raises(UserError, match=r"was begun with --rbm-lr 0.4, not 0.2: give the same"):
        prepared(words, tmp_path, "--rbm-lr", "0.2").resume()
    (tmp_path / options.RESULT).touch()
    with pytest.raises(UserError, match="holds a finished pretraining: train from it with"):
        prepared(words, tmp_path)


# Real jobs

TWO = (
    *("--distributed-world-size", "2", "--averaging-interval", "5"),
    *("--rbm-gaussian-lr", "0.1"),  # for the few updates there are
)


@pytest.fixture(scope="module")
def start(server, words):
    def begin(folder: Path, *more: str) -> Warm:
        folder.mkdir(exist_ok=True)
        line = ["fairseq-hybrid-pretrain", *flags(words, folder, *more)]
        return Warm(server, line, folder)

    return begin


def reconstructions(log: str) -> list[float]:
    """Of the first layer, as the progress bar shows them."""
    lines = map(json.loads, re.findall(r"\| pretrain_inner \| (\{.*\})", log))
    return [float(line["reconstruction"]) for line in lines if float(line["layer"]) == 1]


def test_two_workers_average_learn_and_resume_exactly(start, tmp_path):
    more = (*TWO, "--save-interval-updates", "20")
    log = start(tmp_path / "straight", *more).finish().ok().out
    errors = reconstructions(log)
    assert len(errors) >= 4
    assert errors[-1] < 0.95 * errors[0]
    job = start(tmp_path / "stopped", *more)
    wait_for((tmp_path / "stopped" / options.PROGRESS).exists)
    os.killpg(job.pid, signal.SIGKILL)
    job.finish()
    assert not (tmp_path / "stopped" / options.RESULT).exists()
    resumed = start(tmp_path / "stopped", *more).finish().ok()
    assert "resumed from" in resumed.out
    assert_same(result(tmp_path / "straight"), result(tmp_path / "stopped"))


def test_fairseq_train_starts_from_it(server, words, start, tmp_path):
    start(tmp_path).finish().ok()
    pretrained = tmp_path / options.RESULT
    for n, how in enumerate(
        (
            ("--restore-file", pretrained, "--reset-optimizer"),
            ("--finetune-from-model", pretrained),
        )
    ):
        folder = tmp_path / str(n)
        folder.mkdir()
        more = (*how, "--lr", "1e-30", "--max-update", "2", "--disable-validation")
        line = train_command(words, folder, *more, arch=(*PLAIN, *MODEL))
        trained = Warm(server, line, folder).finish().ok()
        assert list(curve(trained)) == [1, 2]
        model = torch.load(folder / "checkpoint_last.pt", weights_only=False)["model"]
        for name, value in result(tmp_path).items():
            torch.testing.assert_close(model[name], value, rtol=0, atol=1e-20, msg=name)


def test_bad_input_is_one_line(start, tmp_path):
    error = start(tmp_path, "--activation", "relu", *TWO).finish().error()
    assert "--activation relu cannot be pretrained" in error
